"""Plug-ins of the pipeline benchmark: stages that only sleep, for as long as the task's metadata says."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from pydantic import BaseModel

from polar.evaluators.base import Evidence
from polar.harnesses.base import HarnessContext, Launch
from polar.runtimes.base import Command, Finished, SessionFolders
from polar.tokens.sequences import digest_of
from polar.types import (
    Call,
    CallProfile,
    CallsOutcome,
    CallTimes,
    Lease,
    Message,
    Score,
    Slot,
    Spec,
    Strict,
    TaskRequest,
    Trajectory,
    Waits,
    logprobs,
    token_ids,
)


class Seconds(Strict):
    seconds: float = 0.0


class Sleeper:
    Options: type[BaseModel] = Seconds

    def __init__(self, options: Seconds) -> None:
        self._seconds = options.seconds


class StubRuntime(Sleeper):
    """Takes its time to start."""

    workspace = home = "/"

    async def start(self, place: SessionFolders) -> None:
        await asyncio.sleep(self._seconds)

    async def listener(self) -> None:
        pass

    async def exec(self, command: Command) -> Finished:
        await asyncio.sleep(float(command.argv[0]))
        return Finished(exit_code=0)

    async def put(self, path: str, content: bytes, *, home: bool = False, executable: bool = False) -> None:
        pass

    async def get(self, path: str) -> bytes:
        raise FileNotFoundError(path)

    async def kill(self) -> None:
        pass

    async def stop(self) -> None:
        pass


class StubHarness(Sleeper):
    name, version = "stub", "1"

    def requirements(self) -> tuple[()]:
        return ()

    def launch(self, context: HarnessContext) -> Launch:
        return Launch(argv=(str(self._seconds),))

    def profile(self) -> CallProfile:
        return CallProfile()


class StubBuilder(Sleeper):
    def build(self, session_id: str, calls: Sequence[Call]) -> Trajectory:
        return Trajectory(session_id, "stub")


class StubEvaluator(Sleeper):
    async def evaluate(self, evidence: Evidence) -> Score:
        await asyncio.sleep(self._seconds)
        return Score(reward=1.0)


class StubSlots:
    """No gateway: a slot that nobody calls, and one call for the builder to ignore."""

    async def open(self, lease: Lease, profile: CallProfile, listener: object = None) -> Slot:
        return Slot(base_url="http://127.0.0.1:9", key="none", model="none", context_tokens=1)

    async def seal(self, session_id: str) -> None:
        pass

    async def calls(self, session_id: str) -> list[Call]:
        return [_call_without_tokens(session_id)]

    def outcome(self, session_id: str) -> CallsOutcome:
        return CallsOutcome()

    def waits(self, session_id: str) -> Waits:
        return Waits()

    async def close(self, session_id: str) -> None:
        pass


def _call_without_tokens(session_id: str) -> Call:
    """Nothing was sampled, so nothing has to come out of the builder."""
    prompt_ids = token_ids([1])
    return Call(
        call_id="c1",
        session_id=session_id,
        parent_id=None,
        continues=False,
        new_prompt_ids=prompt_ids,
        completion_ids=token_ids(),
        logprobs=logprobs(),
        prompt_digest=digest_of(prompt_ids),
        prompt_tokens=1,
        finish_reason="stop",
        new_messages=(),
        response=Message(role="assistant"),
        tools=None,
        new_items=(),
        dialect="none",
        kind="agent",
        sampling={},
        engine="none",
        logprob_mode="raw",
        times=CallTimes(0.0, 0.0, 0.0),
    )


def stub_task(task_id: str, init_s: float, run_s: float, postrun_s: float) -> TaskRequest:
    def stub(name: str, seconds: float = 0.0) -> Spec:
        return Spec(name=f"pipeline_stubs:{name}", options={"seconds": seconds})

    return TaskRequest(
        task_id=task_id,
        instruction="sleep",
        runtime=stub("StubRuntime", init_s),
        harness=stub("StubHarness", run_s),
        builder=stub("StubBuilder"),
        evaluator=stub("StubEvaluator", postrun_s),
    )
