"""Plug point: scores a session's work."""
