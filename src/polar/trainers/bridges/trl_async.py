"""TRL's `AsyncGRPOTrainer`: a rollout worker that keeps a number of groups under way while the trainer trains.

The worker computes the advantages, over sessions, and gives one row for each trace. TRL's loss is a mean over
tokens, so a session weighs the same however many rows it has. TRL drops single rows by `model_version`; it is the
oldest version that sampled a token of the row.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

from polar.credit.advantages import CreditedTrace
from polar.credit.group import Group
from polar.errors import PolarError
from polar.runs.event_loop import run_apart
from polar.trainers.bridges.config import BridgeConfig
from polar.trainers.bridges.packages import load
from polar.trainers.bridges.sessions import GroupClient, SessionTraces, advantage_of, run_groups, sessions_of
from polar.types import TaskRequest

LOGGER = logging.getLogger("polar.trainers")
FULL_PAUSE_S = 0.05
LOOK_S = 1.0
"""How often the server is asked for a sign of life: sessions may run for longer than TRL waits for one."""
MOST_LOSSES = 3
"""Groups in a row that each place under way may lose; more is no accident."""


class RolloutWorker:
    """Pass it as `AsyncGRPOTrainer(rollout_worker=...)`.

    tasks: endless, or as long as training shall go on; each with as many samples as a group has. groups_at_once:
    groups under way. queue_size: rows that wait for the trainer. Both bound how old a row can get. If the trainer
    is slower than sampling, a queue of one or two batches is enough."""

    def __init__(
        self,
        config: BridgeConfig,
        tasks: Iterable[TaskRequest],
        *,
        groups_at_once: int = 8,
        queue_size: int = 1024,
        connect: Callable[[], AbstractAsyncContextManager[GroupClient]] | None = None,
    ) -> None:
        self.rollout_buffer: queue.Queue[Any] = queue.Queue(queue_size)
        self.metrics_queue: queue.Queue[dict[str, Any]] = queue.Queue()
        self._config = config
        self._tasks = iter(tasks)
        self._groups_at_once = groups_at_once
        self._connect = connect or config.client
        self._version = 0
        self._announced = False
        self._group_number = 0
        self._lost_in_a_row = 0
        """Groups without a row to train on."""
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._last_sign = time.monotonic()
        """Of the server: when it last answered."""

    def start(self) -> None:
        """Called by TRL after its first weight sync."""
        sample_type()  # a missing package fails here and not in the thread
        self._last_sign = time.monotonic()
        self._thread = threading.Thread(target=self._serve, name="polar-rollouts", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends what is under way: its sessions are cancelled at the server."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def update_model_version(self, model_version: int) -> None:
        """From now on calls are recorded under this version, and generation goes on if `DrainedTransfer` has
        paused it: also before `start`, and after the worker has ended, because others may use the server. Without
        a pause, calls that begin between the new weights and this carry the older version, so no token looks newer
        than it is."""
        self._version = model_version
        run_apart(self._announce())

    @property
    def version(self) -> int:
        """Of the policy that samples now."""
        return self._version

    def check_health(self, stale_after_s: float) -> None:
        if self._error is not None:
            raise PolarError(f"the rollout worker has ended: {self._error}") from self._error
        silent_s = time.monotonic() - self._last_sign
        if silent_s > stale_after_s:
            raise PolarError(f"the rollout server has not answered for {silent_s:.0f} s; is it running?")

    async def _announce(self) -> None:
        async with self._connect() as client:
            await self._go_on(client)

    async def _go_on(self, client: GroupClient) -> None:
        await client.set_policy_version(self._version)
        await client.resume()
        self._announced = True

    def _serve(self) -> None:
        try:
            asyncio.run(self._until_stopped())
        except Exception as error:  # for `check_health`, in the trainer's thread
            LOGGER.exception("the rollout worker has ended")
            self._error = error

    async def _until_stopped(self) -> None:
        serving = asyncio.create_task(self._run())
        while not serving.done() and not self._stopping.is_set():
            await asyncio.wait([serving], timeout=FULL_PAUSE_S)
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving
            if not self._stopping.is_set():
                raise PolarError("it has no more tasks")

    async def _run(self) -> None:
        async with self._connect() as client:
            if not self._announced:
                await self._go_on(client)
            try:
                async with asyncio.TaskGroup() as running:
                    places = [
                        running.create_task(self._one_after_another(client, self._tasks))
                        for _ in range(self._groups_at_once)
                    ]
                    running.create_task(self._look(client, places))
            except ExceptionGroup as errors:  # the first says what happened
                raise errors.exceptions[0] from None

    async def _look(self, client: GroupClient, places: Sequence[asyncio.Task[None]]) -> None:
        """Sees whether the server answers, until all places have ended."""
        while (await asyncio.wait(places, timeout=LOOK_S))[1]:
            with suppress(PolarError):  # what the places ask says what is wrong
                await client.policy()
                self._last_sign = time.monotonic()

    async def _one_after_another(self, client: GroupClient, tasks: Iterator[TaskRequest]) -> None:
        for task in tasks:
            if self._stopping.is_set():
                return
            for group in await run_groups(client, [task]):
                await self._deliver(group)

    async def _deliver(self, group: Group) -> None:
        sessions = sessions_of(group, self._config, str(self._version))
        self._group_number += 1
        left_out = sum(not session.traces for session in sessions)
        self.metrics_queue.put(
            {"rollout/sessions_total": float(len(sessions)), "rollout/left_out_total": float(left_out)}
        )
        self._count_loss(sessions)
        for sample in samples_of(sessions, self._group_number):
            while not self._stopping.is_set():
                try:
                    sample.enqueued_at = time.time()
                    self.rollout_buffer.put_nowait(sample)
                    break
                except queue.Full:  # the trainer is slower: no further group is started until it has caught up
                    await asyncio.sleep(FULL_PAUSE_S)

    def _count_loss(self, sessions: Sequence[SessionTraces]) -> None:
        """TRL would wait for ever for rows of a service that loses every session."""
        if any(session.traces for session in sessions):
            self._lost_in_a_row = 0
            return
        self._lost_in_a_row += 1
        if self._lost_in_a_row >= MOST_LOSSES * self._groups_at_once:
            reasons = "; ".join(sorted({_loss(session) for session in sessions}))
            raise PolarError(
                f"the last {self._lost_in_a_row} groups have lost all of their sessions ({reasons}); "
                f"see the results of task {sessions[0].result.task_id}"
            )


class DrainedTransfer:
    """TRL's weight transfer, with generation paused and drained before new weights come: no reply has tokens of
    two policies. Without it Polar drops such replies, unless the engine reports which version sampled which token.

        trainer.weight_transfer = DrainedTransfer(trainer.weight_transfer, config)

    After `resume` generation goes on with `RolloutWorker.update_model_version`, which names the new version. An
    update that does not come so far leaves no pause behind."""

    def __init__(
        self,
        transfer: Any,
        config: BridgeConfig,
        connect: Callable[[], AbstractAsyncContextManager[GroupClient]] | None = None,
    ) -> None:
        self._transfer = transfer
        self._connect = connect or config.client
        self._paused = False
        """An update is under way, or has failed and its pause could not be lifted."""

    def pause(self) -> None:
        self._paused = True
        run_apart(self._drain())
        self._transfer.pause()

    def send_weights(self, iterator: Any) -> None:
        try:
            self._transfer.send_weights(iterator)
        except BaseException:
            self._lift()
            raise

    def resume(self) -> None:
        self._transfer.resume()
        self._paused = False

    def destroy(self) -> None:
        """Called by TRL when training ends, also by an error."""
        try:
            self._lift()
        finally:
            self._transfer.destroy()

    def __getattr__(self, name: str) -> Any:
        """The rest is TRL's."""
        return getattr(self._transfer, name)

    def _lift(self) -> None:
        """Ends the pause of an update that failed. It raises nothing: the error of the update is what counts."""
        if not self._paused:
            return
        try:
            run_apart(self._go_on())
            self._paused = False
        except PolarError as error:
            LOGGER.error("generation is still paused, because %s; `polar resume` ends the pause", error)

    async def _go_on(self) -> None:
        async with self._connect() as client:
            await client.resume()

    async def _drain(self) -> None:
        async with self._connect() as client:
            await client.pause(wait=True)


def sample_type() -> Any:
    return load("trl.experimental.async_grpo.async_rollout_worker", "'polar-rollout[trl]'").RolloutSample


def _loss(session: SessionTraces) -> str:
    failure = session.result.failure
    return f"{session.left_out}: {failure.message}" if failure else session.left_out


def samples_of(sessions: Iterable[SessionTraces], group_number: int) -> list[Any]:
    """TRL's `RolloutSample`s of a group: one for each trace."""
    return [_sample(session, item, group_number) for session in sessions for item in session.traces]


def _sample(session: SessionTraces, item: CreditedTrace, group_number: int) -> Any:
    import numpy  # noqa: PLC0415 - TRL brings it

    trace = item.trace
    arrays = trace.to_numpy()
    prompt = arrays["prompt_ids"]
    unmasked = numpy.zeros(len(prompt), numpy.int64)
    return sample_type()(
        prompt=[],
        completion=[],
        input_ids=numpy.concatenate([prompt, arrays["completion_ids"]]).astype(numpy.int64),
        completion_mask=numpy.concatenate([unmasked, arrays["mask"]]).astype(numpy.int64),
        old_log_probs=numpy.concatenate([unmasked, arrays["logprobs"]]).astype(numpy.float32),
        advantage=advantage_of(item),
        model_version=_oldest(trace.policy_versions),
        group_id=group_number,
        metrics={"reward": session.reward},
    )


def _oldest(versions: Iterable[str]) -> int:
    """TRL counts versions in whole numbers; a version set by something else is older than all of them."""
    return min((int(version) if version.isdecimal() else -1 for version in versions), default=-1)
