"""Whose doing it is when a session fails: the engine's, the gateway's, a trainer's pause, or the agent's own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from workshop import AGENT, WRITE, Workshop, agent_task, shell_task

from polar.data.source import TaskFileSource
from polar.engines.base import GenerateRequest, Piece
from polar.node import Node
from polar.testing import ScriptedReply
from polar.types import Policy, SessionResult, Stage, logprobs, token_ids
from waiting import until

SCRIPT = [f"I write it. {WRITE}", "Done."]
RUN = f"{AGENT[0]} {AGENT[1]}"
ASKER = Path(__file__).parent / "asker.py"


def asking(*requests: str) -> str:
    """A harness that sends requests one after the other, and fails if the last one does."""
    return " ".join([sys.executable, str(ASKER), *requests])


def verdict_of(result: SessionResult) -> tuple[str, bool, float | None]:
    assert result.failure is not None, result
    return result.failure.type, result.failure.agent, result.score.reward if result.score else None


def paused_s(node: Node, session_id: str) -> float:
    """0.0 before the session has a slot."""
    try:
        return node.slots.waits(session_id).paused_s
    except KeyError:
        return 0.0


class TestWaiting:
    async def test_a_pause_longer_than_its_run_time_costs_the_session_nothing(self, workshop: Workshop) -> None:
        run_s = 8.0

        async def during(node: Node, source: TaskFileSource) -> None:
            node.gate.set(Policy(paused=True))
            serving = asyncio.create_task(node.serve(source))
            await until(lambda: paused_s(node, "t-0") > run_s)
            node.gate.set(Policy(version="v1"))
            await serving

        await workshop.run(SCRIPT, [agent_task(task_id="t", budgets={"run_s": run_s})], during=during)
        result = workshop.only
        assert (result.stage, result.failure) == (Stage.COMPLETED, None)
        assert result.waited_s > run_s and result.score and result.score.reward == 1.0

    async def test_a_pause_without_end_is_not_the_agents(self, workshop: Workshop) -> None:
        def pausing(turn: int, _: Any) -> str:
            workshop_node[0].gate.set(Policy(paused=True))
            return SCRIPT[turn]

        async def during(node: Node, source: TaskFileSource) -> None:
            workshop_node.append(node)
            await node.serve(source)

        workshop_node: list[Node] = []
        await workshop.run(pausing, [agent_task(budgets={"wait_s": 0.5})], during=during)
        assert workshop.only.stage == Stage.TIMED_OUT
        assert verdict_of(workshop.only) == ("PausedTooLong", False, None)

    async def test_an_engine_that_gives_no_token(self, workshop: Workshop) -> None:
        script = [SCRIPT[0], ScriptedReply(text="never", block_after=0)]
        await workshop.run(script, [agent_task(budgets={"wait_s": 0.5})])
        assert workshop.only.stage == Stage.TIMED_OUT
        assert verdict_of(workshop.only) == ("EngineStalled", False, None)
        assert workshop.only.statistics.trainable_tokens > 0, "what was captured is kept"


class TestCalls:
    @pytest.mark.parametrize(
        ("reply", "kind"),
        [
            (ScriptedReply(text="I am cut off in the middle of", error="GPU lost"), "EngineError"),
            (ScriptedReply(text="I end early.", abort=True), "EngineError"),
            (ScriptedReply(ids=(5, 10**6)), "IndexError"),
            (ScriptedReply(text="I have no logprobs.", without_logprobs=True), "MissingLogprobs"),
        ],
        ids=["cut", "aborted", "no such id", "no logprobs"],
    )
    async def test_a_fault_after_the_first_token_of_a_harness_that_exits_with_0(
        self, workshop: Workshop, reply: ScriptedReply, kind: str
    ) -> None:
        await workshop.run([SCRIPT[0], reply], [shell_task(f"{RUN}; exit 0")])
        assert workshop.only.exit_code == 0 and workshop.only.stage == Stage.FAILED
        assert workshop.only.statistics.calls == 2
        assert verdict_of(workshop.only) == (kind, False, None)

    async def test_a_success_beside_it_does_not_clear_a_failure(self, workshop: Workshop) -> None:
        def script(turn: int, ids: Any) -> ScriptedReply | str:
            return ScriptedReply(error="GPU lost") if turn == 0 else "Fine."

        await workshop.run(script, [shell_task(asking("one", "two"))])
        assert verdict_of(workshop.only) == ("EngineError", False, None)

    async def test_its_own_retry_does(self, workshop: Workshop) -> None:
        def script(turn: int, ids: Any) -> ScriptedReply | str:
            return ScriptedReply(error="GPU lost") if turn == 0 else "Fine."

        await workshop.run(script, [shell_task(asking("one", "two", "one"))])
        assert (workshop.only.stage, workshop.only.failure) == (Stage.COMPLETED, None)


class TestRefusals:
    async def test_what_the_gateway_does_not_serve_is_not_the_agents(self, workshop: Workshop) -> None:
        await workshop.run(["Fine."], [shell_task(asking("one", "image"))])
        assert workshop.only.exit_code == 1
        assert verdict_of(workshop.only) == ("RequestRefused", False, None)
        assert workshop.only.failure and "images_not_supported" in workshop.only.failure.message

    async def test_a_conversation_that_became_too_long_is(self, workshop: Workshop) -> None:
        await workshop.run(["Fine."], [shell_task(asking("one", "long"))])
        assert workshop.only.exit_code == 1
        assert verdict_of(workshop.only) == ("ContextOverflow", True, 0.0)

    async def test_a_refusal_that_the_harness_got_over_explains_nothing(self, workshop: Workshop) -> None:
        await workshop.run(["Fine.", "Fine."], [shell_task(f"{asking('one', 'image', 'two')}; exit 3")])
        assert verdict_of(workshop.only) == ("HarnessExit", True, 0.0)


class TestTooManyTokens:
    @pytest.mark.parametrize("pieces", [1, 10**9], ids=["20,001 at once", "without end"])
    async def test_an_engine_that_does_not_stop_is_cut_and_has_failed(
        self, workshop: Workshop, pieces: int
    ) -> None:
        closed: list[bool] = []

        async def endless(request: GenerateRequest) -> AsyncGenerator[Piece]:
            is_probe = bool(closed)  # the node tries its engine out after a failure, and then it is well
            size = request.max_tokens if is_probe else 20_001 if pieces == 1 else 8
            try:
                for _ in range(1 if is_probe else pieces):
                    yield Piece(token_ids([5] * size), logprobs([-1.0] * size))
                    await asyncio.sleep(0)
                yield Piece(token_ids(), logprobs(), finish_reason="length")
            finally:
                closed.append(True)

        async def during(node: Node, source: TaskFileSource) -> None:
            node.engine.generate = endless  # type: ignore[method-assign]
            await node.serve(source)

        await workshop.run(
            [], [shell_task(f"{asking('one')}; exit 0", sampling={"max_tokens": 64})], during=during
        )
        assert verdict_of(workshop.only) == ("EngineDefect", False, None)
        assert workshop.only.statistics.dropped == {"aborted": 64} and closed, "and its stream is closed"

    async def test_an_engine_that_ends_no_reply_at_its_limit(self, workshop: Workshop) -> None:
        asked: list[GenerateRequest] = []

        async def mute(request: GenerateRequest) -> AsyncGenerator[Piece]:
            asked.append(request)
            yield Piece(token_ids([5] * request.max_tokens), logprobs([-1.0] * request.max_tokens))
            while len(asked) == 1:  # the node's probe of its engine comes next, and has to end
                yield Piece(token_ids(), logprobs())
                await asyncio.sleep(0)
            yield Piece(token_ids(), logprobs(), finish_reason="length")

        async def during(node: Node, source: TaskFileSource) -> None:
            node.engine.generate = mute  # type: ignore[method-assign]
            await node.serve(source)

        await workshop.run([], [shell_task(asking("one"), sampling={"max_tokens": 64})], during=during)
        assert verdict_of(workshop.only) == ("EngineDefect", False, None)


async def test_a_naive_evaluator_and_an_answer_that_is_no_file(workshop: Workshop) -> None:
    """An evaluator that reads the answer and expects nothing else."""
    ends = {"there": ":", "missing": "rm answer.txt", "a-pipe": "rm answer.txt; mkfifo answer.txt"}
    tasks = [
        shell_task(f"{RUN}; {end}; exit 0", task_id=name, evaluator={"name": f"{__name__}:ReadsTheAnswer"})
        for name, end in ends.items()
    ]
    await workshop.run(SCRIPT, tasks)
    assert workshop.results["there-0"].failure is None
    for name in ("missing-0", "a-pipe-0"):
        assert verdict_of(workshop.results[name]) == ("WorkspaceUnusable", True, 0.0)


class ReadsTheAnswer:
    class Options:
        @staticmethod
        def model_validate(options: dict[str, Any]) -> dict[str, Any]:
            return options

    def __init__(self, options: Any) -> None:
        pass

    async def evaluate(self, evidence: Any) -> Any:
        from polar.types import Score

        text = (await evidence.runtime.get("answer.txt")).decode()
        return Score(reward=float(text == "hello\n"))
