"""Which node gets which session next, and why a session waits."""
