"""Callbacks: where they may go, and their delivery."""
