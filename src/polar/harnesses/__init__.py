"""Plug point: the agent programs, unmodified."""
