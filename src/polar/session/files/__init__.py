"""Files of a session: how its workspace begins, what it changed, what is kept of it."""
