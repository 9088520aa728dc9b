"""Plug point: calls to traces."""
