"""Checks that a renderer keeps its promises, made before a node serves with it."""
