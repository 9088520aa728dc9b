"""Renderers: messages to token ids, as the model's chat template lays them out."""
