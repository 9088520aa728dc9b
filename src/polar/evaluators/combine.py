"""The evaluator `combine`: one reward from several evaluators, with each part shown.

The parts run one after another, in their order. A gate that a session does not pass scores 0.0, and the parts
behind it do not run.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, cast

import msgspec
from pydantic import BaseModel, Field, FiniteFloat, TypeAdapter, ValidationError, model_validator

from polar import registry
from polar.errors import ConfigError, EvaluatorError, PolarError, WorkspaceUnusable
from polar.evaluators.base import Evaluator, Evidence, RuntimeRequest, score_of
from polar.runtimes.host.threads import in_thread
from polar.types import Score, ScorePart, Spec, Strict, TaskRequest

MAX_PARTS = 20


class PartSpec(Strict):
    name: str
    """An evaluator: `test_on_output`, `my_module:Class`, `my_module:function`."""
    options: dict[str, Any] = {}
    label: str = Field(default="", pattern=r"^([A-Za-z0-9][A-Za-z0-9_-]{0,63})?$")
    """The part's name in `Score.parts`. Empty: the evaluator's."""
    weight: FiniteFloat = 1.0
    gate: FiniteFloat | None = None
    """The least reward of this part; with less the whole is 0.0. `weight = 0` makes it a gate only."""

    @property
    def spec(self) -> Spec:
        return Spec(name=self.name, options=self.options)

    @property
    def title(self) -> str:
        return self.label or self.name.replace(":", "-").replace(".", "-")


PARTS = TypeAdapter(list[PartSpec])


class CombineOptions(Strict):
    parts: tuple[PartSpec, ...] = Field(min_length=1, max_length=MAX_PARTS)
    on_missing: Literal["fail", "skip"] = "fail"
    """fail: a part without a verdict leaves the whole without one. skip: the other parts get its weight, in
    proportion to theirs. A gate is never skipped."""

    @model_validator(mode="after")
    def _can_be_made(self) -> CombineOptions:
        titles = Counter(part.title for part in self.parts)
        if double := [title for title, count in titles.items() if count > 1]:
            raise ValueError(f"parts: {double[0]!r} stands there twice; give each a `label`")
        if not any(part.weight for part in self.parts):
            raise ValueError("parts: all weights are 0")
        for part in self.parts:
            try:
                registry.options_of("evaluator", registry.find("evaluator", part.name), part.options)
            except PolarError as error:
                raise ValueError(f"parts.{part.title}: {error}") from error
        return self


class _Scored(NamedTuple):
    part: PartSpec
    score: Score
    reward: float


class Combine:
    Options: type[BaseModel] = CombineOptions

    def __init__(self, options: CombineOptions) -> None:
        self._options = options
        self._evaluators: dict[str, Evaluator] = {
            part.title: registry.make("evaluator", part.spec) for part in options.parts
        }

    @staticmethod
    def inner_specs(options: dict[str, Any]) -> list[Spec]:
        """As the task has them, because checking the options imports the parts. If one of them is not Polar's own,
        the whole runs in a thread of its own."""
        try:
            return [part.spec for part in PARTS.validate_python(options.get("parts"))]
        except ValidationError:  # then the options are refused before a part is imported
            return []

    def task_problems(self, task: TaskRequest) -> list[str]:
        found: list[str] = []
        for title, evaluator in self._evaluators.items():
            look: Callable[[TaskRequest], list[str]] | None = getattr(evaluator, "task_problems", None)
            found += [f"{title}: {problem}" for problem in (look(task) if look else [])]
        try:
            self._request(task)
        except ConfigError as error:
            found.append(str(error))
        return found

    def wants_runtime(self, task: TaskRequest) -> RuntimeRequest | None:
        found = self._request(task)
        return None if found is None else found[1]

    def _request(self, task: TaskRequest) -> tuple[str, RuntimeRequest] | None:
        """Which part asks for a runtime of its own. Two cannot share one: when the second judges, the agent's work
        has already run there."""
        wanting: list[tuple[str, RuntimeRequest]] = []
        for title, evaluator in self._evaluators.items():
            wants: Callable[[TaskRequest], RuntimeRequest | None] | None
            wants = getattr(evaluator, "wants_runtime", None)
            if wants is not None and (request := wants(task)) is not None:
                wanting.append((title, request))
        if len(wanting) > 1:
            titles = " and ".join(repr(title) for title, _ in wanting)
            raise ConfigError(
                f"{titles} each ask for a runtime of their own, and a session has one for its evaluator: let one"
                ' command judge both, or give `where = "session"` to all but one (docs/cheating.md)'
            )
        return wanting[0] if wanting else None

    async def evaluate(self, evidence: Evidence) -> Score:
        with_runtime = self._request(evidence.task)
        owner = None if with_runtime is None else with_runtime[0]
        scored: list[_Scored] = []
        missing: dict[str, str] = {}
        for part in self._options.parts:
            seen = await _evidence_for(part, evidence, keeps_runtime=part.title == owner)
            try:
                score = await self._judged(part, seen)
            except EvaluatorError as error:
                if self._options.on_missing == "fail" or part.gate is not None:
                    raise EvaluatorError(f"no verdict of {part.title}: {error}") from error
                missing[part.title] = str(error)
                continue
            assert score.reward is not None
            scored.append(_Scored(part, score, score.reward))
            if part.gate is not None and score.reward < part.gate:
                return _shut(scored, part, score.reward)
        return _whole(self._options, scored, missing)

    async def _judged(self, part: PartSpec, evidence: Evidence) -> Score:
        """Raises `EvaluatorError` if there is no verdict, and `WorkspaceUnusable`, which is the agent's doing."""
        evaluator = self._evaluators[part.title]
        try:
            # A plain `def` of the user's may run an event loop of its own, which no thread with one allows.
            ours = registry.is_ours("evaluator", part.spec)
            returned: Any = evaluator.evaluate(evidence) if ours else await in_thread(evaluator.evaluate, evidence)
            score = score_of(await returned if inspect.isawaitable(returned) else returned, part.title)
        except (EvaluatorError, WorkspaceUnusable, TimeoutError):
            raise
        except Exception as error:  # an evaluator of the user's may fail in any way
            raise EvaluatorError(f"{type(error).__name__}: {error}") from error
        if score.reward is None:
            raise EvaluatorError("; ".join(score.reasons) or "it returned a score without a reward")
        if score.trace_rewards is not None and len(score.trace_rewards) != len(evidence.trajectory.traces):
            raise EvaluatorError(
                f"{len(score.trace_rewards)} rewards for {len(evidence.trajectory.traces)} traces"
            )
        return score


async def _evidence_for(part: PartSpec, evidence: Evidence, *, keeps_runtime: bool) -> Evidence:
    logs = evidence.logs and evidence.logs / part.title
    if logs is not None:
        await in_thread(logs.mkdir, parents=True, exist_ok=True)
    # An evaluator may read its own options from the task.
    task = evidence.task.model_copy(update={"evaluator": part.spec})
    own = evidence.own_runtime if keeps_runtime else None
    return msgspec.structs.replace(evidence, task=task, own_runtime=own, logs=logs)


def _shut(scored: Sequence[_Scored], part: PartSpec, reward: float) -> Score:
    why = f"{part.title} gave {reward:g} and its gate asks for {part.gate:g}"
    return _shown(scored, reward=0.0, reasons=(why,))


def _whole(options: CombineOptions, scored: Sequence[_Scored], missing: dict[str, str]) -> Score:
    total, there = (sum(abs(part.weight) for part in parts) for parts in (options.parts, [s.part for s in scored]))
    if not there:
        raise EvaluatorError("no part has a verdict: " + "; ".join(f"{t}: {why}" for t, why in missing.items()))
    stretch = total / there
    weights = [each.part.weight * stretch for each in scored]
    reasons = tuple(f"{title} has no verdict and was skipped: {why}" for title, why in missing.items())
    return _shown(
        scored,
        reward=sum(weight * each.reward for weight, each in zip(weights, scored, strict=True)),
        reasons=reasons,
        metrics={"parts_skipped": len(missing)} if missing else {},
        **_finer_rewards(scored, weights),
    )


def _finer_rewards(scored: Sequence[_Scored], weights: Sequence[float]) -> dict[str, Any]:
    """By call or by trace, if a part has them. A part without gives its one reward to each."""
    calls = [each.score.call_rewards for each in scored]
    traces = [each.score.trace_rewards for each in scored]
    if any(each is not None for each in calls) and any(each is not None for each in traces):
        raise EvaluatorError("one part rewards calls and another traces, which cannot be added; use one of both")
    weighed = list(zip(weights, scored, strict=True))
    if named := dict.fromkeys(call_id for each in calls for call_id in each or ()):
        return {
            "call_rewards": {
                call_id: sum(w * (s.score.call_rewards or {}).get(call_id, s.reward) for w, s in weighed)
                for call_id in named
            }
        }
    count = next((len(each) for each in traces if each is not None), None)
    if count is None:
        return {}
    rows = [s.score.trace_rewards or (s.reward,) * count for s in scored]
    return {
        "trace_rewards": tuple(
            sum(w * value for w, value in zip(weights, column, strict=True)) for column in zip(*rows, strict=True)
        )
    }


def _shown(scored: Sequence[_Scored], **fields: Any) -> Score:
    """With every part, its metrics and its reasons."""
    metrics = {f"{each.part.title}.{name}": value for each in scored for name, value in each.score.metrics.items()}
    told = [f"{each.part.title}: {reason}" for each in scored for reason in each.score.reasons]
    given = cast("dict[str, float]", fields.pop("metrics", {}))
    return Score(
        parts={each.part.title: ScorePart.of(each.score, each.part.weight) for each in scored},
        metrics=metrics | given,
        reasons=(*fields.pop("reasons"), *told),
        **fields,
    )
