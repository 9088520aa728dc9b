"""Prompts as token ids: the call forest, rendering, reading replies, and checks that they are exact."""
