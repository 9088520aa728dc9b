"""The traffic of the gateway benchmark: conversations as a coding agent has them, and the reply of every call.

Text is source code of Python's standard library, cut at another place for each session, so that no two sessions
share a prompt and the tokenizer sees real words and real punctuation.
"""

from __future__ import annotations

import argparse
import asyncio.base_events
import inspect
import pickle
import subprocess
import tarfile
import typing
import unittest.mock
from typing import Any

import orjson

REPLY = (
    "The test fails because the parser drops the last field. I will look at how it splits the line before I "
    'change it. <tool_call>{"name": "bash", "arguments": {"command": "sed -n 1,80p src/parser.py"}}</tool_call>'
)
MODULES = (argparse, asyncio.base_events, subprocess, tarfile, typing, unittest.mock, inspect, pickle)
SOURCE = "".join(map(inspect.getsource, MODULES))
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
        """The harness keeps the reply as it came, streamed or not, and answers its tool call."""
        streamed = reply.startswith(b"data:")
        message = streamed_message(reply) if streamed else orjson.loads(reply)["choices"][0]["message"]
        output = text(self._seed + 31 * len(self.messages), self._later_characters)
        call_id = message["tool_calls"][0]["id"]
        self.messages += [message, {"role": "tool", "tool_call_id": call_id, "content": output}]


def streamed_message(reply: bytes) -> dict[str, Any]:
    """The message of a stream with one tool call."""
    content, arguments = "", ""
    call: dict[str, Any] = {}
    for line in reply.split(b"\n"):
        if not line.startswith(b"data: {"):
            continue
        for choice in orjson.loads(line[6:])["choices"]:
            content += choice["delta"].get("content") or ""
            for part in choice["delta"].get("tool_calls") or ():
                call = call or part
                arguments += part["function"].get("arguments") or ""
    function = {"name": call["function"]["name"], "arguments": arguments}
    calls = [{"id": call["id"], "type": "function", "function": function}]
    return {"role": "assistant", "content": content, "tool_calls": calls}
