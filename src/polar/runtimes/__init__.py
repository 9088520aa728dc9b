"""Plug point: where a harness runs."""
