"""Waiting times between tries."""

from datetime import timedelta


def delays(first: timedelta, factor: float, limit: timedelta, tries: int) -> list[timedelta]:
    """One fewer than the tries: each `factor` times the one before, and none above the limit."""
    if tries < 1:
        raise ValueError("there has to be a first try")
    return [min(first * factor**number, limit) for number in range(tries - 1)]
