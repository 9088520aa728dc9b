"""Runs of this machine: running tasks, and reading stored runs back."""
