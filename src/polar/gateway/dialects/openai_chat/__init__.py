"""OpenAI Chat Completions, and the legacy Completions beside them."""

from polar.gateway.dialects.openai_chat.completions import OpenAICompletions
from polar.gateway.dialects.openai_chat.dialect import OpenAIChat

__all__ = ["OpenAIChat", "OpenAICompletions"]
