"""The training loop: sample, credit, learn, push the weights, evaluate, save."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from polar.client import PolarClient
from polar.credit.group import Group
from polar.errors import PolarError
from polar.session.pipeline import to_the_end
from polar.trainers.grpo.batch import batch_figures, credited_batch
from polar.trainers.grpo.checkpoints import Checkpoints, TrainState
from polar.trainers.grpo.config import TrainConfig
from polar.trainers.grpo.held_out import HeldOut
from polar.trainers.grpo.learner import Learner, LearnStats
from polar.trainers.grpo.records import Records
from polar.trainers.grpo.rollouts import GenerationWatch, Rollouts, cancel_earlier
from polar.trainers.grpo.task_stream import TaskStream
from polar.trainers.weights.update import WeightUpdates
from polar.types import TaskRequest, TrainingPoint


@dataclass(frozen=True)
class TrainParts:
    """What a run is made of."""

    client: PolarClient
    updates: WeightUpdates
    learner: Learner
    tasks: TaskStream
    held_out: HeldOut | None
    records: Records
    checkpoints: Checkpoints
    on_progress: Callable[[str], None] = lambda _: None
    """Gets a line on what the run is doing, again and again."""


class Training:
    def __init__(self, config: TrainConfig, parts: TrainParts, state: TrainState) -> None:
        self._config = config
        self._parts = parts
        self._state = state.model_copy(update={"starts": state.starts + 1})
        self._start_id = f"{state.run_id}-{state.starts + 1}{secrets.token_hex(2)}"
        """Beginning of the ids of this start's tasks. Random, because an earlier start may have been killed before
        it saved that there was one."""
        self._learned = LearnStats()
        self._half_updated = False
        """A step is being learned, or broke off in its middle: the weights are those of no step."""
        self._watch = GenerationWatch(parts.client)
        self._minutes_before = state.minutes
        self._began = time.monotonic()

    async def run(self) -> TrainState:
        """Until the last step, or until the time is up. Then, also after an error or Ctrl-C, it saves the state of
        the last finished step, and evaluates that: what is evaluated is safe, however long it takes."""
        schedule, rollout = self._config.schedule, self._config.rollout
        await cancel_earlier(self._parts.client, self._state.run_id)
        await self._push()
        if self._evaluation_is_due:
            await self._evaluate()
        rollouts = Rollouts(
            self._parts.client,
            self._task,
            per_step=self._config.tasks.groups,
            ahead=rollout.ahead,
            steps=schedule.steps - self._state.step,
            trained=self._state.all_trained,
        )
        saved = self._state.step
        async with self._watch, rollouts:
            try:
                while not self._is_over:
                    await self._step(rollouts)
                    if self._state.step % schedule.save_every == 0:
                        saved = self._save()
                    if self._evaluation_is_due and not self._is_over:
                        await self._evaluate()
            finally:  # before what is under way is cancelled: the server may be gone
                if saved != self._state.step and not self._half_updated:
                    self._save()
        # Not beside sessions that no step will train on: by now they are cancelled.
        if self._state.step and self._state.evaluated != self._state.step:
            await self._evaluate()
        return self._state

    async def _step(self, rollouts: Rollouts) -> None:
        started, step = time.monotonic(), self._state.step + 1
        numbered = await rollouts.batch(self._show_sampling)
        sampled = time.monotonic()
        groups = [each.group for each in numbered]
        self._show("learning")
        # To its end, also when the run is interrupted: half an update must not be saved.
        interrupted = await to_the_end(self._learn(groups))
        learned = time.monotonic()
        version = self._state.step
        self._state = self._state.with_trained(rollouts.trained).model_copy(
            update={"step": version + 1, "minutes": self._minutes_before + self._minutes}
        )
        figures = batch_figures(groups, version) | self._learned.means()
        figures |= {"wait_s": sampled - started, "learn_s": learned - sampled, "minutes": self._state.minutes}
        try:
            if interrupted:
                raise asyncio.CancelledError
            self._show("updating the engine's weights", step)
            await self._push()
            rollouts.refill()
        finally:  # the step is trained, whatever became of the push
            figures |= self._watch.figures() | {"push_s": time.monotonic() - learned}
            point = self._parts.records.add("train", self._state.step, figures)
        await self._report(point)

    async def _learn(self, groups: list[Group]) -> None:
        step = self._state.step
        batch = credited_batch(groups, self._config, step)
        self._half_updated = True
        self._learned = await asyncio.to_thread(self._parts.learner.learn, step, batch)
        self._half_updated = False

    async def _push(self) -> None:
        await self._parts.updates.push(self._parts.learner.model.weights(), str(self._state.step))

    async def _evaluate(self) -> None:
        """Training waits, so all of its sessions are sampled from the same weights."""
        if self._parts.held_out is None:
            return
        name = f"step-{self._state.step:05}"
        figures = await self._parts.held_out.evaluate(name, self._start_id, self._show_evaluation)
        await self._report(self._parts.records.add("eval", self._state.step, figures))
        self._state = self._state.model_copy(update={"evaluated": self._state.step})
        self._parts.checkpoints.note(self._state)

    async def _report(self, point: TrainingPoint) -> None:
        with suppress(PolarError):  # the files have it; a server that is away stops sampling, not the record
            await self._parts.client.report_training(self._state.run_id, [point])

    def _save(self) -> int:
        self._show("saving a checkpoint", self._state.step)
        self._parts.checkpoints.save(self._parts.learner, self._state)
        return self._state.step

    def _task(self, number: int, tried: int) -> TaskRequest:
        task_id = f"{self._start_id}-{f'try{tried + 1}-' if tried else ''}{number}"
        return self._parts.tasks.task(number, task_id, self._config.tasks.samples)

    def _show(self, what: str, step: int | None = None) -> None:
        """`step`: None is the one that is being made."""
        self._parts.on_progress(f"step {step or self._state.step + 1}: {what}")

    def _show_sampling(self, finished: int) -> None:
        self._show(f"{finished} of {self._config.tasks.groups} groups sampled")

    def _show_evaluation(self, ended: int, sessions: int) -> None:
        self._parts.on_progress(f"evaluation of step {self._state.step}: {ended} of {sessions} sessions")

    @property
    def _evaluation_is_due(self) -> bool:
        """Not a second time, after a resume."""
        schedule, step = self._config.schedule, self._state.step
        wanted = step % schedule.evaluate_every == 0 if step else schedule.evaluate_first
        return wanted and self._state.evaluated != step

    @property
    def _minutes(self) -> float:
        """Since this start."""
        return (time.monotonic() - self._began) / 60

    @property
    def _is_over(self) -> bool:
        """After the last step, or when the time is up."""
        schedule = self._config.schedule
        time_is_up = schedule.minutes is not None and self._minutes >= schedule.minutes
        return self._state.step >= schedule.steps or time_is_up
