"""One model call from its arrival to its end."""
