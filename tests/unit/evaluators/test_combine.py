"""One reward from several evaluators."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from workplace import FolderRuntime, evidence

from polar import registry
from polar.errors import ConfigError, EvaluatorError, NoSuchFile, WorkspaceUnusable
from polar.evaluators.base import Evidence, RuntimeRequest
from polar.evaluators.combine import Combine
from polar.types import Score, Spec, Strict, TaskRequest, Trajectory


def gives(evidence: Evidence, reward: float = 1.0) -> float:
    return reward


async def gives_later(evidence: Evidence, reward: float = 1.0) -> Score:
    return Score(reward=reward, metrics={"seen": 1}, reasons=("looked",))


def no_verdict(evidence: Evidence) -> Score:
    return Score(reward=None, reasons=("the judge slept",))


def breaks(evidence: Evidence) -> float:
    raise RuntimeError("boom")


def finds_nothing(evidence: Evidence) -> float:
    raise NoSuchFile("answer.txt")


def by_call(evidence: Evidence, rewards: dict[str, float], reward: float = 0.0) -> Score:
    return Score(reward=reward, call_rewards=rewards)


def by_trace(evidence: Evidence, rewards: list[float], reward: float = 0.0) -> Score:
    return Score(reward=reward, trace_rewards=tuple(rewards))


def notes(evidence: Evidence) -> float:
    assert evidence.logs is not None
    (evidence.logs / "note.txt").write_text(f"{evidence.task.evaluator.name} {evidence.own_runtime is not None}")
    return 1.0


class Roomy:
    """Asks for a runtime of its own."""

    class Options(Strict):
        files: bool = True

    def __init__(self, options: Options) -> None:
        self._options = options

    def wants_runtime(self, task: TaskRequest) -> RuntimeRequest:
        return RuntimeRequest(with_files=self._options.files)

    def evaluate(self, evidence: Evidence) -> float:
        return 1.0 if evidence.own_runtime is not None else 0.0


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """This module's evaluators, by a name that tasks can use."""
    monkeypatch.setitem(sys.modules, "parts", SimpleNamespace(**globals()))  # type: ignore[arg-type]


def spec(*parts: dict[str, Any], **options: Any) -> Spec:
    return Spec(name="combine", options={"parts": list(parts), **options})


def part(
    name: str, label: str = "", weight: float = 1.0, gate: float | None = None, **given: Any
) -> dict[str, Any]:
    extra = {} if gate is None else {"gate": gate}
    return {"name": f"parts:{name}", "label": label, "weight": weight, "options": given, **extra}


async def combined(folder: Path, *parts: dict[str, Any], traces: int = 0, **options: Any) -> Score:
    combine: Combine = registry.make("evaluator", spec(*parts, **options))
    (folder / "logs").mkdir(exist_ok=True)
    trajectory = Trajectory(session_id="s1", builder="b", traces=(None,) * traces)  # type: ignore[arg-type]
    seen = evidence(FolderRuntime(folder), own_runtime=FolderRuntime(folder))
    return await combine.evaluate(msgspec.structs.replace(seen, logs=folder / "logs", trajectory=trajectory))


async def test_the_reward_is_the_weighted_sum_with_each_part_shown(tmp_path: Path) -> None:
    score = await combined(tmp_path, part("gives", "tests", 0.75), part("gives_later", "style", 0.25, reward=0.5))
    assert score.reward == 0.875
    assert {name: (each.reward, each.weight) for name, each in score.parts.items()} == {
        "tests": (1.0, 0.75),
        "style": (0.5, 0.25),
    }
    assert score.metrics == {"style.seen": 1} and score.reasons == ("style: looked",)


async def test_a_penalty_is_a_negative_weight(tmp_path: Path) -> None:
    score = await combined(tmp_path, part("gives"), part("gives", "loops", -0.5))
    assert score.reward == 0.5 and list(score.parts) == ["parts-gives", "loops"]


@pytest.mark.parametrize(("name", "why"), [("no_verdict", "the judge slept"), ("breaks", "RuntimeError: boom")])
async def test_a_part_without_a_verdict_leaves_the_whole_without_one(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(EvaluatorError, match=f"no verdict of style: {why}"):
        await combined(tmp_path, part("gives"), part(name, "style"))


@pytest.mark.parametrize("name", ["no_verdict", "breaks"])
async def test_a_part_without_a_verdict_can_be_skipped(tmp_path: Path, name: str) -> None:
    parts = (part("gives", "a", 0.25, reward=0.5), part("gives", "b", 0.25), part(name, "style", 0.5))
    score = await combined(tmp_path, *parts, on_missing="skip")
    assert score.reward == 0.75, "the others have its weight"
    assert list(score.parts) == ["a", "b"] and score.metrics == {"parts_skipped": 1}
    assert "style has no verdict and was skipped" in score.reasons[0]
    with pytest.raises(EvaluatorError, match="no part has a verdict"):
        await combined(tmp_path, part(name, "style"), on_missing="skip")
    with pytest.raises(EvaluatorError, match="no verdict of style"):
        await combined(tmp_path, part("gives"), part(name, "style", gate=1.0), on_missing="skip")


@pytest.mark.parametrize("on_missing", ["fail", "skip"])
async def test_what_the_agent_left_unusable_is_its_own_failure(tmp_path: Path, on_missing: str) -> None:
    with pytest.raises(WorkspaceUnusable):
        await combined(tmp_path, part("gives"), part("finds_nothing"), on_missing=on_missing)


async def test_a_gate_that_is_not_passed_scores_zero_and_ends_it(tmp_path: Path) -> None:
    tests, style = part("gives", "tests", 0, gate=1.0, reward=0.5), part("breaks", "style")
    score = await combined(tmp_path, tests, style)
    assert score.reward == 0.0 and list(score.parts) == ["tests"]
    assert score.reasons == ("tests gave 0.5 and its gate asks for 1",)


async def test_a_gate_that_is_passed_leaves_the_sum(tmp_path: Path) -> None:
    tests, style = part("gives", "tests", 0, gate=1.0), part("gives", "style", reward=0.5)
    assert (await combined(tmp_path, tests, style)).reward == 0.5


async def test_call_rewards_are_added_and_a_part_without_gives_its_own(tmp_path: Path) -> None:
    score = await combined(
        tmp_path, part("gives", "tests", 0.5), part("by_call", "steps", 0.5, rewards={"c1": 1.0, "c2": 0.0})
    )
    assert score.call_rewards == {"c1": 1.0, "c2": 0.5} and score.reward == 0.5


async def test_trace_rewards_are_added_too(tmp_path: Path) -> None:
    traced = part("by_trace", "t", rewards=[0.0, 2.0])
    score = await combined(tmp_path, part("gives"), traced, traces=2)
    assert score.trace_rewards == (1.0, 3.0) and score.call_rewards is None
    with pytest.raises(EvaluatorError, match="no verdict of t: 2 rewards for 3 traces"):
        await combined(tmp_path, traced, traces=3)
    with pytest.raises(EvaluatorError, match="cannot be added"):
        await combined(tmp_path, traced, part("by_call", rewards={"c1": 1.0}), traces=2)


async def test_only_the_part_that_asked_has_the_own_runtime_and_each_has_its_folder(tmp_path: Path) -> None:
    score = await combined(tmp_path, part("notes", "n"), part("Roomy", "r"))
    assert score.reward == 2.0
    assert (tmp_path / "logs/n/note.txt").read_text() == "parts:notes False"


def problems(*parts: dict[str, Any], **options: Any) -> list[str]:
    task = TaskRequest(instruction="x", evaluator=spec(*parts, **options))
    return registry.plugin_problems(task)


def test_two_runtimes_of_their_own_are_refused_at_submit() -> None:
    (problem,) = problems(part("Roomy", "a"), part("Roomy", "b", files=False))
    assert "'a' and 'b' each ask for a runtime of their own" in problem
    assert problems(part("Roomy", "a"), part("gives", "b")) == []


def test_the_request_of_one_part_is_that_of_the_whole() -> None:
    combine: Combine = registry.make("evaluator", spec(part("gives"), part("Roomy", files=False)))
    assert combine.wants_runtime(TaskRequest(instruction="x")) == RuntimeRequest(with_files=False)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((), "parts"),
        ((part("gives"), part("gives")), "give each a `label`"),
        ((part("gives", weight=0),), "all weights are 0"),
        ((part("gives", wrong=1),), "parts.parts-gives: .*wrong"),
        (({"name": "no_such"},), "parts.no_such: unknown evaluator 'no_such'"),
        ((part("gives", "../../etc"),), "label"),
    ],
)
def test_wrong_parts_are_refused_at_submit(parts: tuple[dict[str, Any], ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        registry.make("evaluator", spec(*parts))


def test_problems_of_a_part_with_its_task_are_found_at_submit() -> None:
    options = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "rubric": "r", "sees": ["patch"]}
    assert problems({"name": "judge", "options": options}) == [
        "evaluator: judge: the judge is to see the patch: set keep.patch = true"
    ]


def test_code_of_the_users_makes_the_whole_foreign() -> None:
    """It may block: so the whole runs in a thread, not in the event loop of the node."""
    assert registry.is_ours("evaluator", spec({"name": "session_completion"}))
    assert not registry.is_ours("evaluator", spec({"name": "session_completion"}, part("gives")))
    nested = spec({"name": "combine", "options": {"parts": [part("gives")]}})
    assert not registry.is_ours("evaluator", nested)
