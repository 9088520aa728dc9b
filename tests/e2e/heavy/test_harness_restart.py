"""A harness killed in the middle of its session and started again: no turn twice, and none that no harness saw.

The second start asks what the first one asked. pi, Gemini CLI and Qwen Code say it in the same words, so a reply
that the first start never got is still theirs. Codex, Claude Code and OpenCode begin a thread with a new name, and
a reply to the old one has no receiver.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from exactly_once import assert_exactly_once
from harness_loop import ANSWER, COMMAND, MARK, Loop, Outcome, shell_call
from pydantic import BaseModel

from polar import registry
from polar.config import Config
from polar.harnesses.base import Harness, HarnessContext, Launch, NpmPack
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.types import Call, CallProfile, Spec, Strict

ASKS_THE_SAME = ["pi", "gemini_cli", "qwen_code"]
NAMES_ITS_THREADS = ["codex", "claude_code", "opencode"]
TWICE = """\
until_there() { while [ ! -e "$1" ]; do sleep 0.05; done; }
killed_at="$1" again_at="$2"
shift 2
setsid "$@" &
until_there "$killed_at"
kill -9 -- -$!
until_there "$again_at"
exec "$@"
"""
"""Starts a program in a process group of its own, kills all of it when there is one file, and starts the program
again when there is another."""


class RestartedOptions(Strict):
    real: str
    """The harness that is started."""
    killed_at: str
    """A file that comes into being when the harness is to be killed."""
    again_at: str


class Restarted:
    """A real harness that is killed once."""

    Options: type[BaseModel] = RestartedOptions
    name = "restarted"

    def __init__(self, options: RestartedOptions) -> None:
        self._options = options
        self._real: Harness = registry.make("harness", Spec(name=options.real))
        self.version = self._real.version

    def requirements(self) -> tuple[NpmPack, ...]:
        return self._real.requirements()

    def program(self, installed: dict[str, Path]) -> tuple[str, ...]:
        return self._real.program(installed)

    def launch(self, context: HarnessContext) -> Launch:
        launch = self._real.launch(context)
        flags = (self._options.killed_at, self._options.again_at)
        argv = ("/bin/bash", "-c", TWICE, "bash", *flags, *launch.argv)
        return msgspec.structs.replace(launch, argv=argv)

    def profile(self) -> CallProfile:
        return self._real.profile()


async def run_twice(harness: str, loop: Loop, *, killed_at: str, again_at: str, slow: bool = True) -> Outcome:
    """`killed_at` and `again_at` name files; the engine makes `begun` and `ended` in its first reply."""
    loop.plug_in = "test_harness_restart:Restarted"
    flags = {"killed_at": str(loop.folder / killed_at), "again_at": str(loop.folder / again_at)}
    return await loop.run(harness, faults=["slow"] if slow else [], real=harness, **flags)


def assert_two_turns(outcome: Outcome) -> list[Call]:
    """The loop's two turns are there, once, as one trace; gives whatever calls there are beside them."""
    result = outcome.result
    assert (result.exit_code, result.failure, result.stage.value) == (0, None, "COMPLETED"), result
    assert result.score is not None and result.score.reward == 1.0
    assert_exactly_once(outcome.calls, outcome.trajectory)
    second = next(call for call in outcome.calls if call.response.content == ANSWER)
    first = next(call for call in outcome.calls if call.call_id == second.parent_id)
    assert second.continues and first.received and second.received
    assert [tuple(span.call_id for span in trace.spans) for trace in outcome.trajectory.traces][-1] == (
        first.call_id,
        second.call_id,
    )
    return [call for call in outcome.calls if call not in (first, second)]


@pytest.mark.parametrize("harness", ASKS_THE_SAME)
async def test_killed_in_the_middle_of_a_reply(
    harness: str, smollm2: SmolLM2Renderer, tmp_path: Path, report: Any
) -> None:
    """The second start joins the reply that is still being made, or hears it again if it is done by then."""
    outcome = await run_twice(harness, Loop(smollm2, tmp_path), killed_at="begun", again_at="begun")
    report(harness, {"killed": "in a reply"}, outcome)
    assert assert_two_turns(outcome) == []
    assert len(outcome.engine.requests) == 2, "the reply that was broken off is not sampled again"
    assert len(outcome.trajectory.traces) == 1


async def test_killed_in_a_reply_that_ends_before_the_second_start(
    smollm2: SmolLM2Renderer, tmp_path: Path
) -> None:
    outcome = await run_twice("pi", Loop(smollm2, tmp_path), killed_at="begun", again_at="ended")
    assert assert_two_turns(outcome) == []
    assert len(outcome.engine.requests) == 2, "the reply was kept for whoever asks again"


async def test_killed_in_a_reply_without_a_listener(smollm2: SmolLM2Renderer, tmp_path: Path) -> None:
    """Broken off before the second start, it can only be sampled again; what there was of it is no turn."""
    loop = Loop(smollm2, tmp_path, config=Config.model_validate({"gateway": {"linger_s": 0.2}}))
    outcome = await run_twice("pi", loop, killed_at="begun", again_at="ended")
    (broken,) = assert_two_turns(outcome)
    assert broken.finish_reason == "aborted" and not broken.received
    assert len(outcome.engine.requests) == 3 and len(outcome.trajectory.traces) == 1
    assert {dropped.reason for dropped in outcome.trajectory.dropped} == {"aborted"}


@pytest.mark.parametrize("harness", NAMES_ITS_THREADS)
async def test_killed_in_the_middle_of_a_reply_to_a_thread_with_a_name(
    harness: str, smollm2: SmolLM2Renderer, tmp_path: Path, report: Any
) -> None:
    outcome = await run_twice(harness, Loop(smollm2, tmp_path), killed_at="begun", again_at="begun")
    report(harness, {"killed": "in a reply"}, outcome)
    (lost,) = assert_two_turns(outcome)
    assert not lost.received
    assert {(drop.call_id, drop.length) for drop in outcome.trajectory.dropped} == {
        (lost.call_id, len(lost.completion_ids))
    }
    assert {drop.reason for drop in outcome.trajectory.dropped} <= {"aborted", "not_received"}
    assert len(outcome.trajectory.traces) == 1


def script_with_a_hang(harness: str, killed_at: Path) -> Callable[[str], str]:
    """The first command says that it runs, and does not end by itself for a while."""

    def reply(prompt: str) -> str:
        if MARK in prompt:
            return ANSWER
        hang = f"touch {killed_at} && sleep 20"
        return f"I will write it.\n{shell_call(harness, COMMAND if killed_at.exists() else hang)}"

    return reply


@pytest.mark.parametrize("harness", [*ASKS_THE_SAME, *NAMES_ITS_THREADS])
async def test_killed_while_a_tool_runs(
    harness: str, smollm2: SmolLM2Renderer, tmp_path: Path, report: Any
) -> None:
    """It had the reply and acted on it, so the same question is another sample."""
    loop = Loop(smollm2, tmp_path, script=script_with_a_hang(harness, tmp_path / "running"))
    outcome = await run_twice(harness, loop, killed_at="running", again_at="running", slow=False)
    report(harness, {"killed": "in a tool"}, outcome)
    (before,) = assert_two_turns(outcome)
    assert before.received and before.finish_reason == "tool_calls"
    again = outcome.calls[1]
    assert again.parent_id is None and again.break_reason == "resampled"
    assert outcome.trajectory.dropped == ()
    assert [len(trace.spans) for trace in outcome.trajectory.traces] == [1, 2], "the turn before the kill is real"
    assert len(outcome.engine.requests) == len(outcome.calls) == 3
