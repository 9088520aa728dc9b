"""Google generateContent."""

from polar.gateway.dialects.google.dialect import Google

__all__ = ["Google"]
