"""Plug point: agent programs, unmodified."""
