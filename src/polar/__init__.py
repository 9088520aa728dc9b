"""Polar: reinforcement learning over unmodified agent harnesses."""

__version__ = "0.1.0"
