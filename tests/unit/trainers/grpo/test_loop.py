"""The loop, with a service that answers at once: what is trained, pushed, evaluated, saved and resumed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from tests.waiting import until
from tiny_model import save_tiny_model

from polar.client import PolarClient, ServerError
from polar.credit.advantages import FinishedSession
from polar.credit.group import Group
from polar.errors import ConfigError, PolarError
from polar.trainers.grpo.checkpoints import Checkpoints, TrainState, read_state
from polar.trainers.grpo.config import RolloutConfig, TrainConfig
from polar.trainers.grpo.held_out import HeldOut
from polar.trainers.grpo.learner import Learner
from polar.trainers.grpo.loop import Training, TrainParts
from polar.trainers.grpo.model.policy_model import PolicyModel
from polar.trainers.grpo.records import Records, read_points
from polar.trainers.grpo.start import check_output, check_run, held_output
from polar.trainers.grpo.task_stream import TaskStream
from polar.trainers.weights import WeightUpdates
from polar.types import (
    Certificate,
    Drain,
    Failure,
    Policy,
    Score,
    SessionResult,
    Span,
    Spec,
    Stage,
    TaskRequest,
    TaskStatus,
    Trace,
    TrainingPoint,
    Trajectory,
    TrajectoryStatistics,
    logprobs,
    loss_mask,
    token_ids,
)

pytestmark = pytest.mark.check

TASKS = "\n".join(f'[[tasks]]\ntask_id = "t{n}"\ninstruction = "Do {n}."\n' for n in range(5))


class FakeService:
    """Every session samples two tokens under the version that is set when its task is submitted. Every second
    session is solved."""

    def __init__(self) -> None:
        self.version = ""
        self.submitted: list[TaskRequest] = []
        self.cancelled: list[str] = []
        self.pushed: list[str] = []
        self.reported: list[tuple[str, int]] = []
        self.second_push = asyncio.Event()
        self._versions: dict[str, str] = {}
        self.hang_after: int | None = None
        self.failing: set[int] = set()
        """Numbers of tasks whose sessions fail through infrastructure at their first try."""
        self.always_failing: set[int] = set()

    async def submit(self, task: TaskRequest) -> TaskStatus:
        if any(known.task_id == task.task_id for known in self.submitted):
            raise ServerError(f"a task {task.task_id!r} already exists", status=409)
        self.submitted.append(task)
        self._versions[str(task.task_id)] = self.version
        return cast("TaskStatus", task)

    async def groups(self, *, task_ids: Collection[str]) -> AsyncGenerator[Group]:
        [task_id] = task_ids
        if self.hang_after is not None and len(self.submitted) > self.hang_after:
            await asyncio.Event().wait()
        task = next(task for task in self.submitted if task.task_id == task_id)
        sessions = tuple(self._session(task, index) for index in range(task.num_samples))
        yield Group(task_id, sessions)

    async def tasks(self, *, limit: int) -> list[TaskStatus]:
        """Those of a killed start are not done."""
        return [
            TaskStatus(task_id=str(task.task_id), num_samples=2, submitted=0.0, stages={}, done=False)
            for task in self.submitted
        ]

    async def drain(self) -> Drain:
        return Drain(policy=Policy(), generating=3, unheard=())

    async def cancel_task(self, task_id: str) -> int:
        self.cancelled.append(task_id)
        return 1

    async def report_training(self, run_id: str, points: list[TrainingPoint]) -> None:
        self.reported += [(run_id, point.step) for point in points]

    async def push(self, weights: Mapping[str, torch.Tensor], version: str) -> None:
        self.version = version
        self.pushed.append(version)
        if version == "2":
            self.second_push.set()

    def _session(self, task: TaskRequest, index: int) -> FinishedSession:
        number, tried = number_of(task), "-try" in str(task.task_id)
        if number in self.always_failing or (number in self.failing and not tried):
            return FinishedSession(a_lost_result(task, index), None)
        name, reward = f"{task.task_id}-{index}", float(index % 2)
        version = self._versions[str(task.task_id)]
        trace = Trace(
            session_id=name,
            group_id=str(task.task_id),
            prompt_ids=token_ids([1, 2]),
            response_ids=token_ids([3 + index, 4]),
            loss_mask=loss_mask([1, 1]),
            logprobs=logprobs([-4.0, -4.0]),
            spans=(Span("c", 0, 2, version),),
            reward=reward,
        )
        counts = {"sampled_tokens": 2, "trainable_tokens": 2, "dropped_tokens": 0}
        certificate: dict[str, Any] = {"builder": "b", "calls": 1, "traces": 1, "exact": True, **counts}
        result = SessionResult(
            session_id=name,
            task_id=str(task.task_id),
            index=index,
            attempt=1,
            stage=Stage.COMPLETED,
            score=Score(reward=reward),
            statistics=TrajectoryStatistics(calls=1, traces=1, **counts),
            certificate=Certificate.model_validate(certificate | {"calls_digest": "0", "traces_digest": "0"}),
        )
        return FinishedSession(result, Trajectory(session_id=name, builder="b", traces=(trace,)))


def number_of(task: TaskRequest) -> int:
    return int(str(task.task_id).rsplit("-", 1)[1])


def a_lost_result(task: TaskRequest, index: int) -> SessionResult:
    return SessionResult(
        session_id=f"{task.task_id}-{index}",
        task_id=str(task.task_id),
        index=index,
        attempt=1,
        stage=Stage.FAILED,
        failure=Failure(where="runtime", type="Gone", message="the disk is full"),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.set_num_threads(1)
    (tmp_path / "tasks.toml").write_text(TASKS)
    save_tiny_model(tmp_path / "model")
    return tmp_path


def a_config(folder: Path, ahead: int = 1, **schedule: object) -> TrainConfig:
    return TrainConfig.model_validate(
        {
            "model": str(folder / "model"),
            "output": str(folder / "out"),
            "tasks": {"train": "tasks.toml", "groups": 2, "samples": 2},
            "rollout": {"ahead": ahead},
            "schedule": {"steps": 3, **schedule},
        }
    )


class FakeHeldOut:
    """Keeps how many tasks of the service were cancelled, and what was saved, when each evaluation began."""

    def __init__(self, service: FakeService, config: TrainConfig, *, breaks_at: str = "") -> None:
        self._service = service
        self._checkpoints = Checkpoints(config.output, config.schedule.keep)
        self._breaks_at = breaks_at
        self.evaluations: list[str] = []
        self.cancelled_before: list[int] = []
        self.saved_before: list[str] = []

    async def evaluate(self, name: str, run_id: str, on_progress: object) -> dict[str, float]:
        latest = self._checkpoints.latest()
        self.evaluations.append(name)
        self.cancelled_before.append(len(self._service.cancelled))
        self.saved_before.append(latest.name if latest else "")
        if name == self._breaks_at:
            raise ServerError("the evaluation broke off", status=500)
        return {"pass@1": 0.5}


def a_training(
    config: TrainConfig,
    folder: Path,
    service: FakeService,
    state: TrainState | None = None,
    held_out: FakeHeldOut | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Training:
    checkpoints = Checkpoints(config.output, config.schedule.keep)
    latest = checkpoints.latest()
    parts = TrainParts(
        client=cast("PolarClient", service),
        updates=cast("WeightUpdates", service),
        learner=Learner(config, PolicyModel(str(latest or config.model), "cpu")),
        tasks=TaskStream(config.tasks.train, folder),
        held_out=cast("HeldOut | None", held_out),
        records=Records(config.output),
        checkpoints=checkpoints,
        on_progress=on_progress,
    )
    state = state or (read_state(latest) if latest else TrainState(run_id="r"))
    return Training(config, parts, state)


async def test_every_step_trains_pushes_and_is_recorded(folder: Path) -> None:
    service, config = FakeService(), a_config(folder)
    state = await a_training(config, folder, service).run()
    assert state.step == 3
    assert service.pushed == ["0", "1", "2", "3"]
    points = read_points(config.output)
    assert [(point.phase, point.step) for point in points] == [("train", 1), ("train", 2), ("train", 3)]
    assert service.reported == [("r", 1), ("r", 2), ("r", 3)]
    assert points[0].metrics["reward"] == 0.5
    assert points[0].metrics["targets"] == 8  # two groups of two sessions of two tokens
    assert points[0].metrics["generating"] == 3.0
    assert points[2].metrics["age"] == 1.0  # sampled while the step before was trained


async def test_synchronous_training_samples_from_the_newest_weights(folder: Path) -> None:
    service, config = FakeService(), a_config(folder, ahead=0)
    await a_training(config, folder, service).run()
    assert [point.metrics["age"] for point in read_points(config.output)] == [0.0, 0.0, 0.0]


async def test_a_resumed_run_skips_no_task_and_repeats_none(folder: Path) -> None:
    first, second = FakeService(), FakeService()
    await a_training(a_config(folder, steps=2), folder, first).run()
    latest = Checkpoints(folder / "out", 1).latest()
    assert latest is not None
    trained = read_state(latest).all_trained
    assert len(trained) == 4
    state = await a_training(a_config(folder, steps=4), folder, second).run()
    assert second.pushed[0] == "2", "the engine gets the checkpoint first"
    assert state.all_trained[:8] == list(range(8))
    assert not set(map(number_of, second.submitted)) & set(trained)
    assert not {task.task_id for task in first.submitted} & {task.task_id for task in second.submitted}


async def test_no_session_is_started_that_no_step_trains_on(folder: Path) -> None:
    service, config = FakeService(), a_config(folder, ahead=2, steps=4)
    await a_training(config, folder, service).run()
    assert len(service.submitted) == 4 * config.tasks.groups
    assert not service.cancelled


async def test_the_last_evaluation_waits_for_no_training_session(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the time is up, sessions of further steps are under way. They are cancelled before it."""
    service = FakeService()
    config = a_config(folder, steps=50, minutes=2)
    held_out = FakeHeldOut(service, config)
    monkeypatch.setattr(Training, "_minutes", property(lambda _: len(service.pushed) - 1.0))  # one a step
    await a_training(config, folder, service, held_out=held_out).run()
    assert held_out.evaluations == ["step-00000", "step-00002"]
    assert held_out.cancelled_before == [0, 4]


async def test_every_step_is_evaluated_once(folder: Path) -> None:
    service = FakeService()
    config = a_config(folder, steps=4, evaluate_every=2)
    held_out = FakeHeldOut(service, config)
    await a_training(config, folder, service, held_out=held_out).run()
    assert held_out.evaluations == ["step-00000", "step-00002", "step-00004"]
    await a_training(config, folder, service, held_out=held_out).run()
    assert len(held_out.evaluations) == 3, "a finished run that is resumed has nothing to evaluate"


@pytest.mark.parametrize(("save_every", "breaks_at"), [(100, "step-00004"), (2, "step-00002")])
async def test_an_evaluation_that_broke_off_is_made_after_a_resume(
    folder: Path, save_every: int, breaks_at: str
) -> None:
    """However it ended: the step was saved before the evaluation began."""
    service = FakeService()
    config = a_config(folder, steps=4, save_every=save_every, evaluate_every=2, evaluate_first=False)
    broken = FakeHeldOut(service, config, breaks_at=breaks_at)
    with pytest.raises(ServerError, match="broke off"):
        await a_training(config, folder, service, held_out=broken).run()
    assert broken.saved_before[-1] == breaks_at
    resumed = FakeHeldOut(service, config)
    state = await a_training(config, folder, service, held_out=resumed).run()
    assert resumed.evaluations[0] == breaks_at
    assert (state.step, state.evaluated) == (4, 4)


async def test_starts_that_ended_before_a_checkpoint_keep_out_of_the_way_of_the_next(folder: Path) -> None:
    """Their tasks are at the server. The next ones have other ids, and what is left is cancelled."""
    service, config = FakeService(), a_config(folder, steps=1)
    service.hang_after = 0
    for _ in range(2):
        running = asyncio.create_task(a_training(config, folder, service).run())
        before = len(service.submitted)
        await until(lambda: len(service.submitted) == before + 2)  # noqa: B023 - it is awaited here
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    service.cancelled.clear()
    service.hang_after = None
    left = {str(task.task_id) for task in service.submitted}
    state = await a_training(config, folder, service).run()
    assert state.step == 1
    assert set(service.cancelled) == left


async def test_a_task_that_loses_all_of_its_sessions_is_tried_again(folder: Path) -> None:
    service, config = FakeService(), a_config(folder, steps=2)
    service.failing = {1}
    state = await a_training(config, folder, service).run()
    assert state.all_trained == [0, 1, 2, 3]
    assert [number_of(task) for task in service.submitted].count(1) == 2
    assert [point.metrics["left_out"] for point in read_points(config.output)] == [0.0, 0.0]


async def test_a_task_that_is_always_lost_is_left_out_and_another_takes_its_place(folder: Path) -> None:
    service, config = FakeService(), a_config(folder, steps=2)
    service.always_failing = {1}
    state = await a_training(config, folder, service).run()
    assert state.all_trained == [0, 1, 2, 3, 4]
    assert [number_of(task) for task in service.submitted].count(1) == 3
    assert [point.metrics["sessions"] for point in read_points(config.output)] == [4.0, 4.0]


async def test_all_tries_of_one_task_in_a_row_do_not_end_the_run(folder: Path) -> None:
    class OthersAreSlower(FakeService):
        async def groups(self, *, task_ids: Collection[str]) -> AsyncGenerator[Group]:
            [task_id] = task_ids
            if not task_id.endswith("-1"):
                await until(lambda: [number_of(task) for task in self.submitted].count(1) == 3)
                await asyncio.sleep(0)  # the third try ends first
            async for group in super().groups(task_ids=task_ids):
                yield group

    service = OthersAreSlower()
    service.always_failing = {1}
    state = await a_training(a_config(folder, steps=1), folder, service).run()
    assert state.all_trained == [0, 1, 2]


async def test_a_run_whose_sessions_are_all_lost_ends_with_the_reason(folder: Path) -> None:
    service = FakeService()
    service.always_failing = set(range(100))
    with pytest.raises(PolarError, match=r"3 tasks in a row .* runtime: the disk is full"):
        await a_training(a_config(folder), folder, service).run()
    assert not Checkpoints(folder / "out", 1).latest(), "no task counts as trained"


async def test_a_step_is_in_the_records_whatever_became_of_its_push(folder: Path) -> None:
    class Refusing(FakeService):
        async def push(self, weights: Mapping[str, torch.Tensor], version: str) -> None:
            if version == "2":
                raise PolarError("the engine is gone")
            await super().push(weights, version)

    config = a_config(folder)
    with pytest.raises(PolarError, match="the engine is gone"):
        await a_training(config, folder, Refusing()).run()
    latest = Checkpoints(config.output, 1).latest()
    assert latest is not None and read_state(latest).step == 2
    assert [point.step for point in read_points(config.output)] == [1, 2]


async def test_a_step_that_breaks_off_in_its_middle_is_not_saved(folder: Path) -> None:
    """Its first update has changed the weights already. The checkpoint before it stands."""
    config = a_config(folder, steps=5, save_every=1)
    training = a_training(config, folder, FakeService())
    learner = training._parts.learner
    learn = learner.learn

    def failing(step: int, batch: Any) -> Any:
        learned = learn(step, batch)
        if step == 2:
            raise RuntimeError("CUDA out of memory")
        return learned

    learner.learn = failing
    with pytest.raises(RuntimeError, match="out of memory"):
        await training.run()
    latest = Checkpoints(config.output, 1).latest()
    assert latest is not None and read_state(latest).step == 2
    saved = PolicyModel(str(latest), "cpu").weights()
    assert any(not torch.equal(saved[name], now) for name, now in learner.model.weights().items())


async def test_a_run_says_what_it_does(folder: Path) -> None:
    lines: list[str] = []
    config = a_config(folder, steps=1, ahead=0)
    training = a_training(config, folder, FakeService(), on_progress=lines.append)
    await training.run()
    assert lines[0] == "step 1: 0 of 2 groups sampled"
    assert lines[-3:] == [
        f"step 1: {what}" for what in ("learning", "updating the engine's weights", "saving a checkpoint")
    ]


async def test_an_interrupted_run_saves_its_last_step(folder: Path) -> None:
    service, config = FakeService(), a_config(folder, steps=50, save_every=100)
    service.hang_after = 6
    running = asyncio.create_task(a_training(config, folder, service).run())
    async with asyncio.timeout(60):
        await service.second_push.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    latest = Checkpoints(config.output, 1).latest()
    assert latest is not None
    assert read_state(latest).step == 2


async def test_a_run_stops_when_its_time_is_up(folder: Path) -> None:
    state = await a_training(a_config(folder, steps=50, minutes=1e-9), folder, FakeService()).run()
    assert state.step == 0


async def test_the_time_of_earlier_starts_does_not_count(folder: Path) -> None:
    await a_training(a_config(folder, steps=1), folder, FakeService()).run()
    latest = Checkpoints(folder / "out", 1).latest()
    assert latest is not None
    hours_before = read_state(latest).model_copy(update={"minutes": 500.0})
    training = a_training(a_config(folder, steps=2, minutes=400.0), folder, FakeService(), hours_before)
    state = await training.run()
    assert state.step == 2
    assert state.minutes > 500.0


async def test_every_checkpoint_has_the_tokenizer_also_after_a_resume(folder: Path) -> None:
    """The one that was resumed from is deleted when newer ones are saved."""
    (folder / "model" / "tokenizer.json").write_text("{}")
    await a_training(a_config(folder, steps=1, keep=1), folder, FakeService()).run()
    await a_training(a_config(folder, steps=3, save_every=1, keep=1), folder, FakeService()).run()
    latest = Checkpoints(folder / "out", 1).latest()
    assert latest is not None and read_state(latest).step == 3
    assert (latest / "tokenizer.json").read_text() == "{}"


def test_what_is_wrong_is_found_before_anything_starts(folder: Path) -> None:
    config = a_config(folder)
    check_run(config, Spec(name="torch"), folder, resume=False)
    with pytest.raises(ConfigError, match=r"'embedded' does not take new weights.*sglang, torch, vllm"):
        check_run(config, Spec(name="embedded"), folder, resume=False)
    shared = config.model_copy(update={"rollout": RolloutConfig(transfer="ipc")})
    check_run(shared, Spec(name="vllm"), folder, resume=False)
    with pytest.raises(ConfigError, match="'torch' does not take new weights by ipc; these do: vllm"):
        check_run(shared, Spec(name="torch"), folder, resume=False)
    wrong = config.model_copy(update={"tasks": config.tasks.model_copy(update={"train": "nowhere:tasks"})})
    with pytest.raises(ConfigError, match="'nowhere:tasks' cannot be loaded"):
        check_run(wrong, Spec(name="torch"), folder, resume=False)


def test_evaluation_tasks_are_the_same_for_all_seeds(folder: Path) -> None:
    (folder / "one_held_out.py").write_text("def task(n):\n    return [{'instruction': 'only'}][n]\n")
    config = a_config(folder)
    tasks = config.tasks.model_copy(update={"evaluate": "one_held_out:task"})
    check_run(config.model_copy(update={"tasks": tasks, "seed": 3}), Spec(name="torch"), folder, resume=False)


def test_a_folder_with_a_run_is_not_overwritten(folder: Path) -> None:
    config = a_config(folder)
    with pytest.raises(ConfigError, match="no checkpoint to resume"):
        check_output(config, resume=True)
    learner = Learner(config, PolicyModel(config.model, "cpu"))
    Checkpoints(config.output, 1).save(learner, TrainState(run_id="r", step=7))
    with pytest.raises(ConfigError, match="step-00007: continue it with --resume"):
        check_output(config, resume=False)


def test_a_run_is_not_resumed_with_other_tasks(folder: Path) -> None:
    """Its numbers would be other tasks: some would be skipped, others trained on twice."""
    config = a_config(folder)
    identity = TaskStream("tasks.toml", folder).identity
    state = TrainState(run_id="r", step=7, tasks=identity)
    Checkpoints(config.output, 1).save(Learner(config, PolicyModel(config.model, "cpu")), state)
    check_run(config, Spec(name="torch"), folder, resume=True)
    with pytest.raises(ConfigError, match=r"now it would be .*seed 3: .*skipped or.*--model .*step-00007"):
        check_run(config.model_copy(update={"seed": 3}), Spec(name="torch"), folder, resume=True)
    (folder / "tasks.toml").write_text(TASKS.replace("Do 4.", "Do it."))
    with pytest.raises(ConfigError, match="Resume with the same tasks and seed"):
        check_run(config, Spec(name="torch"), folder, resume=True)


def test_two_trainers_do_not_share_a_folder(tmp_path: Path) -> None:
    with held_output(tmp_path / "out"):
        with pytest.raises(ConfigError, match="another `polar train` works in"), held_output(tmp_path / "out"):
            pass
    with held_output(tmp_path / "out"):
        pass


@pytest.mark.parametrize("output", ["file/out", "/proc/nowhere"])
def test_an_output_that_cannot_be_written_is_refused(output: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(ConfigError, match=r"cannot be written to: .*; name another with --output"),
        held_output(tmp_path / output),
    ):
        pass
