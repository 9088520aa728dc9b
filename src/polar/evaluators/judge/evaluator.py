"""The evaluator `judge`: asks a model for a verdict, and keeps each request with its raw reply.

The node asks the endpoint itself, not through the gateway: the judge's tokens are no part of the session. A reply
that is no verdict is asked for again once; without a verdict there is no reward.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import orjson
from pydantic import BaseModel

from polar.errors import EvaluatorError
from polar.evaluators.base import Evidence
from polar.evaluators.judge.allowed import refuse_unless_allowed
from polar.evaluators.judge.endpoint import JudgeEndpoint, JudgeReply
from polar.evaluators.judge.material import Material, material_of
from polar.evaluators.judge.options import JudgeOptions
from polar.evaluators.judge.prompt import REPAIR, messages_for, new_mark, schema_of
from polar.evaluators.judge.verdicts import JudgedScores, Verdicts, WrongVerdict, read_verdict
from polar.runtimes.host.threads import in_thread
from polar.types import Score, TaskRequest

LOG = "judge.jsonl"
COUNTED = ("judge_requests", "judge_repairs", "judge_prompt_tokens", "judge_completion_tokens")
REASON_CHARS = 1000
QUOTED_CHARS = 200


class NoJudgement(EvaluatorError):
    """The judge's reply is not a verdict, and neither is its second one."""


class Judge:
    Options: type[BaseModel] = JudgeOptions

    def __init__(self, options: JudgeOptions) -> None:
        self._options = options

    def task_problems(self, task: TaskRequest) -> list[str]:
        if "patch" in self._options.sees and not task.keep.patch:
            return ["the judge is to see the patch: set keep.patch = true"]
        return []

    async def evaluate(self, evidence: Evidence) -> Score:
        options = self._options
        refuse_unless_allowed(evidence.endpoints, options.base_url, options.api_key_env)
        material = await in_thread(material_of, evidence, options)
        async with JudgeEndpoint(options) as endpoint:
            inquiries = [Inquiry(options, material, endpoint, evidence.logs, n) for n in range(options.votes)]
            votes = await _all(inquiries)
        return score_of_votes(votes, options, _summed(inquiries))


class Inquiry:
    """One vote: a request and, if its reply is no verdict, a second one."""

    def __init__(
        self, options: JudgeOptions, material: Material, endpoint: JudgeEndpoint, logs: Path | None, vote: int
    ) -> None:
        self._options = options
        self._material = material
        self._endpoint = endpoint
        self._log = None if logs is None else logs / LOG
        self._vote = vote
        self.counts = Counter[str]()
        """By the names of `COUNTED`."""

    async def verdict(self) -> Verdicts:
        mark = new_mark(self._material)
        messages = messages_for(self._options, self._material, mark)
        text, problem = "", ""
        for _ in range(2):
            if problem:
                self.counts["judge_repairs"] += 1
                asked_again = {"role": "user", "content": REPAIR.format(problem=problem)}
                messages = [*messages, {"role": "assistant", "content": text}, asked_again]
            reply = await self._asked(messages, mark)
            text, problem = reply.text, ""
            try:
                return read_verdict(text, self._options, self._material, mark)
            except WrongVerdict as error:
                problem = _why(error, reply)
            finally:
                await self._note(messages, reply, problem)
        raise NoJudgement(
            f"the judge {self._options.model} gave no verdict, also when asked again: {problem};"
            f" it said {text[:QUOTED_CHARS]!r}"
        )

    async def _asked(self, messages: list[dict[str, str]], mark: str) -> JudgeReply:
        try:
            reply = await self._endpoint.ask(self._body(messages, mark))
        except EvaluatorError as error:
            await self._note(messages, None, str(error))
            raise
        self.counts["judge_requests"] += reply.tries
        self.counts["judge_prompt_tokens"] += reply.prompt_tokens
        self.counts["judge_completion_tokens"] += reply.completion_tokens
        return reply

    def _body(self, messages: list[dict[str, str]], mark: str) -> dict[str, Any]:
        options = self._options
        body: dict[str, Any] = {"model": options.model, "messages": messages, "stream": False, **options.body}
        if options.temperature is not None:
            body["temperature"] = options.temperature
        if options.max_tokens is not None:
            body[options.limit_field] = options.max_tokens
        if options.constrain == "json_object":
            body["response_format"] = {"type": "json_object"}
        elif options.constrain == "json_schema":
            schema = schema_of(options, self._material, mark)
            named = {"name": "verdict", "strict": True, "schema": schema}
            body["response_format"] = {"type": "json_schema", "json_schema": named}
        return body

    async def _note(self, messages: list[dict[str, str]], reply: JudgeReply | None, problem: str) -> None:
        if self._log is None:
            return
        told: dict[str, Any] = {"vote": self._vote, "asked_model": self._options.model, "messages": messages}
        if reply is not None:
            told |= {name: getattr(reply, name) for name in reply.__struct_fields__}
        line = orjson.dumps(told | {"problem": problem}) + b"\n"
        await in_thread(_append, self._log, line)


def _append(path: Path, line: bytes) -> None:
    with path.open("ab") as file:
        file.write(line)


def _why(error: WrongVerdict, reply: JudgeReply) -> str:
    cut = reply.finish_reason == "length"
    return f"{error} (it was cut at its token limit: `max_tokens`)" if cut else str(error)


async def _all(inquiries: Sequence[Inquiry]) -> list[Verdicts]:
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(inquiry.verdict()) for inquiry in inquiries]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


def _summed(inquiries: Sequence[Inquiry]) -> dict[str, float]:
    return {name: sum(inquiry.counts[name] for inquiry in inquiries) for name in COUNTED}


def score_of_votes(votes: Sequence[Verdicts], options: JudgeOptions, counts: dict[str, float]) -> Score:
    """The median of each number over the votes; the reward is their mean by the criteria's weights."""
    rewards = {key: _reward(_median([vote[key] for vote in votes]), options) for key in votes[0]}
    by_call = options.per == "call"
    means = {
        f"judge_{each.name}": fmean(median(vote[key].scores[each.name] for vote in votes) for key in rewards)
        for each in options.criteria
    }
    reasons = [
        f"call {number}: {judged.reason}" if by_call else judged.reason
        for vote in votes
        for number, judged in enumerate(vote.values(), start=1)
    ]
    return Score(
        reward=fmean(rewards.values()),
        call_rewards=rewards if by_call else None,
        metrics={**means, **counts},
        reasons=tuple(reason[:REASON_CHARS] for reason in reasons if reason.strip()),
    )


def _median(judged: Sequence[JudgedScores]) -> dict[str, float]:
    return {name: median(each.scores[name] for each in judged) for name in judged[0].scores}


def _reward(scores: dict[str, float], options: JudgeOptions) -> float:
    total = sum(each.weight for each in options.criteria)
    return sum(each.weight * options.scale.reward(scores[each.name]) for each in options.criteria) / total
