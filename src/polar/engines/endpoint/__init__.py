"""Any OpenAI- or Anthropic-compatible endpoint: to try tasks and to evaluate, never to train."""
