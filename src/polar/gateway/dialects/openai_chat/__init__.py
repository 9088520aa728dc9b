"""OpenAI Chat Completions."""

from polar.gateway.dialects.openai_chat.dialect import OpenAIChat

__all__ = ["OpenAIChat"]
