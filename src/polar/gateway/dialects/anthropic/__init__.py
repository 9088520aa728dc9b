"""Anthropic Messages."""

from polar.gateway.dialects.anthropic.dialect import Anthropic

__all__ = ["Anthropic"]
