"""OpenAI's legacy Completions."""

from polar.gateway.dialects.openai_completions.dialect import OpenAICompletions

__all__ = ["OpenAICompletions"]
