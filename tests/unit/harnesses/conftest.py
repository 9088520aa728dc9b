"""A session in which harnesses are launched, on a machine that the test chooses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from polar.harnesses.base import HarnessContext
from polar.harnesses.programs import native
from polar.types import Slot

OnMachine = Callable[[str, str], None]
MakeContext = Callable[..., HarnessContext]


@pytest.fixture
def on_machine(monkeypatch: pytest.MonkeyPatch) -> OnMachine:
    def choose(system: str, processor: str) -> None:
        monkeypatch.setattr(native.sys, "platform", system)
        monkeypatch.setattr(native.platform, "machine", lambda: processor)

    return choose


@pytest.fixture
def session(on_machine: OnMachine) -> MakeContext:
    """A context on Linux, whose packages are all in `/cache/<package>`."""
    on_machine("linux", "x86_64")

    def make(
        instruction: str = "Say hello", key: str = "sk-1", model: str = "polar", context_tokens: int = 65536
    ) -> HarnessContext:
        slot = Slot(base_url="http://127.0.0.1:9", key=key, model=model, context_tokens=context_tokens)
        return HarnessContext(instruction, slot, "s-1", "/s/work", "/s/home", Cache())

    return make


class Cache(dict[str, Path]):
    def __missing__(self, package: str) -> Path:
        return Path("/cache") / package
