"""Renderers: messages to token ids, as in the model's chat template."""
