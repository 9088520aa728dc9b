"""How long the server keeps what it has: what was fetched, what is removed, and what a client learns of it."""
