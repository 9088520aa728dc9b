"""Checks of a renderer before a node serves with it."""
