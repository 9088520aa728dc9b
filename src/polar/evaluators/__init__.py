"""Plug point: what a session's work is worth."""
