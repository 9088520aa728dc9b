"""The traffic of the gateway benchmark: conversations as a coding agent has them, and the reply of every call.

Text is source code of Python's standard library, cut at another place for each session, so that no two sessions
share a prompt and the tokenizer sees real words and real punctuation.
"""

from __future__ import annotations

import argparse
import asyncio.base_events
import inspect
import subprocess
from collections.abc import AsyncGenerator
from time import thread_time_ns
from typing import Any

import aiohttp
import orjson
from pydantic import BaseModel

from polar.engines.base import EngineInfo, GenerateRequest, Piece
from polar.tokens.gguf_vocabulary import Vocabulary
from polar.types import Strict, logprobs, token_ids

REPLY = (
    "The test fails because the parser drops the last field. I will look at how it splits the line before I "
    'change it. <tool_call>{"name": "bash", "arguments": {"command": "sed -n 1,80p src/parser.py"}}</tool_call>'
)
PIECE_TOKENS = 8
SOURCE = "".join(inspect.getsource(module) for module in (argparse, asyncio.base_events, subprocess))
TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command in the workspace and see what it prints.",
        "parameters": {
            "type": "object",
            "required": ["command"],
            "properties": {"command": {"type": "string"}, "timeout_s": {"type": "number"}},
        },
    },
}


def text(seed: int, characters: int) -> str:
    start = seed * 7919 % (len(SOURCE) - characters)
    return SOURCE[start : start + characters]


class Conversation:
    """One session's history as its harness keeps it."""

    def __init__(self, seed: int, first_characters: int, later_characters: int) -> None:
        self._seed = seed
        self._later_characters = later_characters
        system = text(seed, first_characters)
        self.messages: list[dict[str, Any]] = [
            {"role": "system", "content": system},
            {"role": "user", "content": f"Make the tests of project {seed} pass."},
        ]

    def body(self, *, stream: bool) -> bytes:
        asked = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        return orjson.dumps({"model": "polar", "messages": self.messages, "tools": [TOOL], **asked})

    def go_on(self, reply: bytes) -> None:
        """The harness keeps the reply as it came and answers its tool call."""
        message = orjson.loads(reply)["choices"][0]["message"]
        output = text(self._seed + 31 * len(self.messages), self._later_characters)
        call_id = message["tool_calls"][0]["id"]
        self.messages += [message, {"role": "tool", "tool_call_id": call_id, "content": output}]


async def send(http: aiohttp.ClientSession, url: str, key: str, body: bytes) -> bytes:
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    async with http.post(f"{url}/v1/chat/completions", data=body, headers=headers) as response:
        data = await response.read()
        if response.status != 200:
            raise SystemExit(f"{url} answered {response.status}: {data[:300]!r}")
        return data


class CannedEngine:
    """Gives the same reply to every call, in pieces, for next to nothing; counts its own processor time."""

    Options: type[BaseModel] = Strict

    def __init__(self, vocabulary: Vocabulary, stop_id: int) -> None:
        ids = [*vocabulary.encode(REPLY), stop_id]
        cuts = [ids[start : start + PIECE_TOKENS] for start in range(0, len(ids), PIECE_TOKENS)]
        self._pieces = [Piece(token_ids(cut), logprobs([-0.5] * len(cut))) for cut in cuts]
        self.spent_ns = 0

    async def start(self) -> EngineInfo:
        return EngineInfo("canned", "none", 65536, "raw", parallel=64)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Piece]:
        begun = thread_time_ns()
        for piece in self._pieces:
            self.spent_ns += thread_time_ns() - begun
            yield piece
            begun = thread_time_ns()
        last = Piece(token_ids(), logprobs(), finish_reason="stop", evaluated_tokens=len(request.prompt_ids))
        self.spent_ns += thread_time_ns() - begun
        yield last

    async def stop(self) -> None:
        pass

    def counters(self) -> dict[str, Any]:
        return {}
