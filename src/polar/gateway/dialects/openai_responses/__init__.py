"""OpenAI Responses."""

from polar.gateway.dialects.openai_responses.dialect import OpenAIResponses

__all__ = ["OpenAIResponses"]
