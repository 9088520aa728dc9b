"""How much code one streamed model call passes through, and whether docs/walk.md shows the way it takes."""

from __future__ import annotations

import re
import sys
import threading
from contextlib import AsyncExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import aiohttp
import pytest

import polar
from polar.tokens.renderers.smollm2 import SmolLM2Renderer

ROOT = Path(__file__).parents[3]
PACKAGE = Path(polar.__file__).parent
MOST_MODULES = 33
MOST_GATEWAY_FILES = 9
"""Without the dialect, which is one of four."""


class Trace:
    """The modules of the package whose functions run while `recording`, in this thread and in those that start
    inside the block."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self.recording = False

    def __enter__(self) -> Trace:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # pyright: ignore[reportArgumentType]

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if not self.recording or event != "call":
            return
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE):
            self.modules.add(str(path.relative_to(PACKAGE)))


async def second_turn(stack: AsyncExitStack, folder: Path) -> set[str]:
    """A streamed turn of a session that goes on from the one before, through a node with the `vllm` engine."""
    from gateway_targets import GatewayTarget
    from gateway_traffic import REPLY, Conversation
    from stub_server import StubEngine

    trace = stack.enter_context(Trace())  # before the node, whose journal writes in a thread of its own
    target = GatewayTarget(folder, await StubEngine((REPLY,)).start(stack))
    base_url = await target.start(stack)
    (key,) = await target.open(["s1"])
    http = await stack.enter_async_context(aiohttp.ClientSession(headers={"authorization": f"Bearer {key}"}))
    conversation = Conversation(3, 4000, 400)

    async def ask(*, stream: bool) -> Any:
        body = conversation.body(stream=stream)
        async with http.post(f"{base_url}/v1/chat/completions", data=body) as response:
            assert response.status == 200
            return await response.read() if stream else await response.json()

    message = (await ask(stream=False))["choices"][0]["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "ok"}
    conversation.messages += [message, result]
    trace.recording = True
    await ask(stream=True)
    trace.recording = False
    return trace.modules


@pytest.fixture
async def passed(smollm2: SmolLM2Renderer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    async with AsyncExitStack() as stack:
        return await second_turn(stack, tmp_path)


async def test_a_streamed_call_passes_few_modules(passed: set[str]) -> None:
    gateway = {module for module in passed if module.startswith("gateway/") and "dialects" not in module}
    assert len(gateway) <= MOST_GATEWAY_FILES, sorted(gateway)
    assert len(passed) <= MOST_MODULES, sorted(passed)


async def test_the_walk_opens_each_file_of_the_gateway_once(passed: set[str]) -> None:
    page = (ROOT / "docs" / "walk.md").read_text()
    steps = page.partition("## RUNNING")[2].partition("\n## ")[0]
    shown = re.findall(r"`(gateway/[a-z_/]+\.py)`", steps)
    walked = [module for module in shown if "dialects" not in module]
    assert sorted(walked) == sorted(m for m in passed if m.startswith("gateway/") and "dialects" not in m)
