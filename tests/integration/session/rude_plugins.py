"""Plug-ins that do what the ones of hasty authors do: return the wrong thing, block, exit."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from polar.builders.prefix_merging import PrefixMerging
from polar.evaluators.base import Evidence
from polar.harnesses.base import HarnessContext, Launch, NpmPack
from polar.harnesses.shell import Shell
from polar.runtimes.local.runtime import LocalRuntime
from polar.types import Call, CallProfile, Score, Strict


class Blocking:
    """Where plug-ins stand that do not come back, until the test is over."""

    def __init__(self) -> None:
        self.entered = 0
        self._let_go = threading.Event()

    def enter(self) -> None:
        self.entered += 1
        self._let_go.wait()

    def end(self) -> None:
        self._let_go.set()
        self.__init__()


BLOCKING = Blocking()


class Options(Strict):
    how: str = ""


class Exhausted(BaseException):
    """Not an `Exception`."""


def exhaust() -> None:
    raise Exhausted("nothing is left")


DEEDS: dict[str, Callable[[], Any]] = {
    "exits": lambda: sys.exit(3),
    "raises": lambda: 1 / 0,
    "raises a base exception": exhaust,
    "blocks": BLOCKING.enter,
    "returns None": lambda: None,
    "returns text": lambda: "1.0",
    "returns NaN": lambda: float("nan"),
    "returns an unchecked score": lambda: Score.model_construct(reward=float("inf")),
    "returns a list": lambda: [1.0],
    "returns half": lambda: 0.5,
    "returns True": lambda: True,
    "returns a whole number": lambda: 1,
}


class RudeEvaluator:
    """An `async def` that does not await: on the node's own loop it would stop everything."""

    Options: type[BaseModel] = Options

    def __init__(self, options: Options) -> None:
        self._how = options.how

    async def evaluate(self, evidence: Evidence) -> Any:
        await evidence.runtime.get("answer.txt")
        return DEEDS[self._how]()


class PlainEvaluator(RudeEvaluator):
    """A plain `def`, which reads the workspace too."""

    def evaluate(self, evidence: Evidence) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        asyncio.run(evidence.runtime.get("answer.txt"))
        return DEEDS[self._how]()


class WaitingEvaluator(RudeEvaluator):
    """Waits as a coroutine should, and says when it is cancelled."""

    async def evaluate(self, evidence: Evidence) -> Any:
        Path(self._how, "here").touch()
        try:
            await asyncio.Event().wait()
        finally:
            Path(self._how, "cancelled").touch()


def rude_function(evidence: Evidence, how: str = "") -> Any:
    asyncio.run(evidence.runtime.get("answer.txt"))
    return DEEDS[how]()


async def rude_coroutine(evidence: Evidence, how: str = "") -> Any:
    await evidence.runtime.get("answer.txt")
    return DEEDS[how]()


class RudeBuilder:
    Options: type[BaseModel] = Options

    def __init__(self, options: Options) -> None:
        self._how = options.how

    def build(self, session_id: str, calls: Sequence[Call]) -> Any:
        return DEEDS[self._how]()


class OnceBuilder(PrefixMerging):
    """Gives statistics that are none."""

    def build(self, session_id: str, calls: Sequence[Call]) -> Any:
        import msgspec

        return msgspec.structs.replace(super().build(session_id, calls), statistics={"calls": "many"})


class RudeHarness:
    """`how` is `method: deed`."""

    Options: type[BaseModel] = Options
    name = "rude"
    version = "1"

    def __init__(self, options: Options) -> None:
        self._method, _, self._deed = options.how.partition(": ")
        self._shell = Shell(Shell.Options.model_validate({"command": "true"}))
        if self._method == "__init__":
            DEEDS[self._deed]()

    def _do(self, method: str, usual: Any) -> Any:
        return DEEDS[self._deed]() if self._method == method else usual

    def requirements(self) -> tuple[NpmPack, ...]:
        return self._do("requirements", ())

    def program(self, installed: dict[str, Path]) -> tuple[str, ...]:
        return ()

    def profile(self) -> CallProfile:
        return self._do("profile", self._shell.profile())

    def launch(self, context: HarnessContext) -> Launch:
        return self._do("launch", self._shell.launch(context))


class ExitingRuntime(LocalRuntime):
    async def start(self, place: Any) -> None:
        sys.exit(4)


class WrongNotes(LocalRuntime):
    """What it says of itself cannot be put into a result."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.notes = 5  # type: ignore[assignment]
