"""The model APIs, for harnesses that speak more than one of them."""

from __future__ import annotations

from typing import Literal, get_args

Api = Literal["openai-completions", "openai-responses", "anthropic-messages", "google-generative-ai"]
ALL_APIS: tuple[Api, ...] = get_args(Api)
