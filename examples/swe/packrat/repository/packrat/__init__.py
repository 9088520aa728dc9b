"""Keeps snapshots of a folder."""
