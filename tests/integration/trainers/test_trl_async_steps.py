"""TRL's own `AsyncGRPOTrainer` with the rollout worker, on a CPU.

What is replaced of TRL: the attention kernel, which needs a GPU, by the same in plain PyTorch; the speed of the
GPU by a number; its weight transfer over NCCL by Polar's or by none. The vLLM server is not asked for its context
length (`token_budget=0`)."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
import toy_world
from datasets import Dataset
from sampler_program import blocking_sampler
from stored_groups import StoredClient, a_group, a_session, a_trace
from tiny_policy import saved, tiny_llama, tiny_tokenizer, weights
from training_service import training_service
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_grpo_trainer, packing
from trl_async import plain_attention

from polar.client import SyncPolarClient
from polar.credit.group import Group
from polar.engines.torch.engine import TorchEngine, TorchOptions
from polar.errors import ConfigError, PolarError
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.trainers.bridges import trl_async as trl_async_bridge
from polar.trainers.bridges.config import BridgeConfig
from polar.trainers.bridges.sessions import sessions_of
from polar.trainers.bridges.trl import check_temperature
from polar.trainers.bridges.trl_async import DrainedTransfer, RolloutWorker, samples_of
from polar.trainers.bridges.trl_weights import EngineTransfer
from polar.types import Spec, Stage, TaskRequest
from waiting import HANG_S, blocked_until, until

pytestmark = [pytest.mark.check, pytest.mark.filterwarnings("ignore")]

VOCABULARY = 49_152
CONFIG = BridgeConfig(task={"harness": "pi"})


def tasks(count: int, samples: int) -> Iterator[TaskRequest]:
    return (CONFIG.task_for("Do it.", samples=samples) for _ in range(count))


def split_group(name: str) -> Group:
    """A session of two traces that succeeded, and one of a single trace that did not."""
    split = a_session(
        f"{name}-0",
        1.0,
        a_trace(f"{name}-0", [5, 6, 7], version="2"),
        a_trace(f"{name}-0", [5], version="1", kind="subagent"),
    )
    return Group(name, (split, a_session(f"{name}-1", 0.0, a_trace(f"{name}-1", [8, 9, 10], version="2"))))


def test_a_row_for_each_trace_with_the_advantage_of_its_session() -> None:
    rows = samples_of(sessions_of(split_group("a"), CONFIG), 7)
    assert [row.advantage for row in rows] == [1.0, 1.0, -1.0]
    assert [row.model_version for row in rows] == [1, 2, 2] and {row.group_id for row in rows} == {7}
    main = rows[1]
    assert main.input_ids.tolist() == [1, 2, 5, 6, 7, 3] and main.input_ids.dtype == numpy.int64
    assert main.completion_mask.tolist() == [0, 0, 1, 1, 1, 0]
    assert main.old_log_probs.tolist() == [0.0, 0.0, -0.5, -0.5, -0.5, 0.0]
    assert main.metrics == {"reward": 1.0}


def test_the_worker_keeps_to_the_size_of_the_buffer_and_stops() -> None:
    client = StoredClient(*(a_group(f"g{n}", 1.0, 0.0) for n in range(50)))
    worker = RolloutWorker(CONFIG, tasks(50, 2), groups_at_once=2, queue_size=4, connect=lambda: client)
    worker.update_model_version(1)
    worker.start()
    blocked_until(worker.rollout_buffer.full)
    worker.check_health(1000.0)
    worker.stop()
    assert len(client.submitted) <= 4 and client.versions == ["1", "resumed"]
    assert worker.metrics_queue.get_nowait() == {"rollout/sessions_total": 2.0, "rollout/left_out_total": 0.0}


def test_a_new_version_reaches_the_server_while_the_worker_runs() -> None:
    client = StoredClient(*(a_group(f"g{n}", 1.0, 0.0) for n in range(9)))
    worker = RolloutWorker(CONFIG, tasks(9, 2), groups_at_once=1, queue_size=1, connect=lambda: client)
    worker.start()
    blocked_until(worker.rollout_buffer.full)
    worker.update_model_version(2)
    worker.stop()
    assert client.versions == ["0", "resumed", "2", "resumed"]


def test_a_version_ends_a_pause_also_while_no_worker_runs() -> None:
    client = StoredClient()
    worker = RolloutWorker(CONFIG, tasks(0, 2), groups_at_once=1, connect=lambda: client)
    worker.update_model_version(1)
    assert client.versions == ["1", "resumed"]
    worker.start()
    blocked_until(lambda: not _alive(worker))
    worker.update_model_version(2)
    assert client.versions == ["1", "resumed", "2", "resumed"]
    worker.stop()


def test_a_worker_that_has_failed_or_has_no_more_tasks_says_so() -> None:
    class Broken(StoredClient):
        async def submit_many(self, tasks: Any) -> Any:
            raise PolarError("no server at all")

    broken = RolloutWorker(CONFIG, tasks(1, 2), groups_at_once=1, connect=Broken)
    empty = RolloutWorker(CONFIG, tasks(0, 2), groups_at_once=1, connect=StoredClient)
    for worker, why in ((broken, "no server at all"), (empty, "no more tasks")):
        worker.start()
        blocked_until(lambda worker=worker: not _alive(worker))
        with pytest.raises(PolarError, match=why):
            worker.check_health(1000.0)
        worker.stop()


class Unending(StoredClient):
    """Sessions that run for as long as the test."""

    def __init__(self, *groups: Group) -> None:
        super().__init__(*groups)
        self.looks = 0
        self.waits = threading.Event()

    async def policy(self) -> Any:
        self.looks += 1
        return await super().policy()

    async def groups(self, **_: Any) -> AsyncGenerator[Group]:
        self.waits.set()
        await asyncio.Event().wait()
        yield Group("never", ())


def test_a_worker_whose_sessions_take_long_is_healthy_while_the_server_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trl_async_bridge, "LOOK_S", 0.01)
    client = Unending(a_group("g0", 1.0, 0.0))
    worker = RolloutWorker(CONFIG, tasks(1, 2), groups_at_once=1, connect=lambda: client)
    worker.start()
    began = time.monotonic()
    blocked_until(lambda: client.looks > 2)
    before = client.looks
    blocked_until(lambda: client.looks > before)
    worker.check_health(time.monotonic() - began)
    worker.stop()


def test_a_worker_whose_server_does_not_answer_is_unhealthy(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(Unending):
        async def policy(self) -> Any:
            if self.submitted:
                self.looks += 1
                raise PolarError("no connection")
            return await super().policy()

    monkeypatch.setattr(trl_async_bridge, "LOOK_S", 0.01)
    client = Silent(a_group("g0", 1.0, 0.0))
    worker = RolloutWorker(CONFIG, tasks(1, 2), groups_at_once=1, connect=lambda: client)
    worker.start()
    began = time.monotonic()
    blocked_until(lambda: client.looks > 2)
    with pytest.raises(PolarError, match="the rollout server has not answered for"):
        worker.check_health(time.monotonic() - began)
    worker.stop()


def test_a_worker_that_stops_cancels_its_sessions(caplog: pytest.LogCaptureFixture) -> None:
    client = Unending(a_group("g0", 1.0, 0.0))
    worker = RolloutWorker(CONFIG, tasks(1, 2), groups_at_once=1, connect=lambda: client)
    worker.start()
    blocked_until(client.waits.is_set)
    worker.stop()
    assert client.cancelled == ["g0"]
    worker.check_health(1000.0)
    assert caplog.records == []


def test_a_worker_that_is_between_two_groups_when_it_stops_does_not_miss_tasks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trl_async_bridge, "FULL_PAUSE_S", HANG_S)

    class Stopping(StoredClient):
        async def submit_many(self, tasks: Any) -> Any:
            threading.Thread(target=worker.stop).start()
            await until(worker._stopping.is_set)  # pyright: ignore[reportPrivateUsage]
            return await super().submit_many(tasks)

    worker = RolloutWorker(
        CONFIG, tasks(9, 2), groups_at_once=1, connect=lambda: Stopping(a_group("g0", 1.0, 0.0))
    )
    worker.start()
    worker.stop()
    worker.check_health(1000.0)
    assert caplog.records == []


def test_a_worker_that_loses_every_session_says_why() -> None:
    client = StoredClient(*(a_group(f"g{n}", None, None) for n in range(50)))
    worker = RolloutWorker(CONFIG, tasks(50, 2), groups_at_once=2, connect=lambda: client)
    worker.start()
    blocked_until(lambda: not _alive(worker))
    lost = r"the last 6 groups have lost all of their sessions \(infrastructure: the engine is gone\).*task g5"
    with pytest.raises(PolarError, match=lost):
        worker.check_health(1000.0)
    worker.stop()
    assert len(client.submitted) <= 8, "those under way when it gave up, and no more"


def test_groups_that_are_lost_now_and_then_end_nothing() -> None:
    client = StoredClient(*(a_group(f"g{n:02}", *([None] * 2 if n % 3 else [1.0, 0.0])) for n in range(30)))
    worker = RolloutWorker(CONFIG, tasks(30, 2), groups_at_once=1, connect=lambda: client)
    worker.start()
    blocked_until(lambda: not _alive(worker))
    with pytest.raises(PolarError, match="no more tasks"):
        worker.check_health(1000.0)
    assert worker.rollout_buffer.qsize() == 20


def _alive(worker: RolloutWorker) -> bool:
    thread = worker._thread  # pyright: ignore[reportPrivateUsage]
    return isinstance(thread, threading.Thread) and thread.is_alive()


class NoTransfer:
    """The engine of this test does not learn."""

    def init_weight_transfer(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def destroy(self) -> None: ...
    def send_weights(self, iterator: Any) -> None:
        for _ in iterator:
            pass


@pytest.fixture
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_flash_attn", lambda: SimpleNamespace(flash_attn_varlen_func=plain_attention))
    monkeypatch.setattr(async_grpo_trainer, "get_peak_flops_per_device", lambda *_: 1e12)


def a_trainer(
    model: Path, worker: RolloutWorker, transfer: Any, rows: int, generations: int, steps: int = 3
) -> Any:
    return AsyncGRPOTrainer(
        model=str(model),
        args=AsyncGRPOConfig(
            output_dir=str(model.with_name("out")),
            per_device_train_batch_size=rows,
            num_generations=generations,
            gradient_accumulation_steps=1,
            max_steps=steps,
            learning_rate=0.01,
            weight_sync_steps=1,
            token_budget=0,
            max_staleness=100,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
            use_cpu=True,
            bf16=False,
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list([{"prompt": "not read by the worker"}]),
        rollout_worker=worker,
        weight_transfer=transfer,
    )


@pytest.mark.usefixtures("on_a_cpu")
def test_trls_asynchronous_trainer_makes_steps(tmp_path: Path) -> None:
    client = StoredClient(*(split_group(f"g{n}") for n in range(40)))
    worker = RolloutWorker(CONFIG, tasks(40, 2), groups_at_once=1, queue_size=8, connect=lambda: client)
    trainer = a_trainer(Path(saved(tmp_path / "model")), worker, NoTransfer(), rows=3, generations=2)
    trainer.weight_transfer = DrainedTransfer(trainer.weight_transfer, CONFIG, lambda: client)
    check_temperature(trainer, CONFIG)
    before = weights(trainer.model)
    trainer.train()
    assert not torch.equal(weights(trainer.model), before)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 3 and all(numpy.isfinite(losses))
    # Once before the worker starts, then after each step.
    assert client.versions == [each for n in "1234" for each in ("paused", n, "resumed")]
    with pytest.raises(queue.Empty):
        worker.metrics_queue.get_nowait()
        worker.metrics_queue.get_nowait()
    trainer.args.temperature = 0.7
    with pytest.raises(ConfigError, match=r"the trainer's temperature is 0\.7, but Polar samples at 1"):
        check_temperature(trainer, CONFIG)


class FailsSecond(NoTransfer):
    """The first update is before training."""

    sent = 0

    def send_weights(self, iterator: Any) -> None:
        self.sent += 1
        if self.sent == 2:
            raise RuntimeError("NCCL timed out")
        super().send_weights(iterator)


@pytest.mark.usefixtures("on_a_cpu")
def test_a_failed_update_of_trl_leaves_no_pause(tmp_path: Path) -> None:
    client = StoredClient(*(split_group(f"g{n}") for n in range(40)))
    worker = RolloutWorker(CONFIG, tasks(40, 2), groups_at_once=1, queue_size=8, connect=lambda: client)
    transfer = DrainedTransfer(FailsSecond(), CONFIG, lambda: client)
    trainer = a_trainer(Path(saved(tmp_path / "model")), worker, transfer, rows=3, generations=2)
    with pytest.raises(RuntimeError, match="NCCL timed out"):
        trainer.train()
    assert client.versions == ["paused", "1", "resumed", "paused", "resumed"]


def test_an_update_that_trl_breaks_off_leaves_no_pause() -> None:
    """As when another rank fails while this one waits for it."""
    client = StoredClient()
    transfer = DrainedTransfer(NoTransfer(), CONFIG, lambda: client)
    transfer.pause()
    transfer.destroy()
    transfer.destroy()
    assert client.versions == ["paused", "resumed"]


def test_a_pause_that_cannot_be_lifted_is_named_and_hides_no_error(caplog: pytest.LogCaptureFixture) -> None:
    class Gone(StoredClient):
        async def resume(self) -> Any:
            raise PolarError("the server is gone")

    transfer = DrainedTransfer(FailsSecond(), CONFIG, Gone)
    transfer.send_weights(iter(()))
    transfer.pause()
    with pytest.raises(RuntimeError, match="NCCL timed out"):
        transfer.send_weights(iter(()))
    assert "still paused, because the server is gone; `polar resume`" in caplog.text


def test_an_update_over_a_real_server_leaves_no_reply_of_two_policies(
    smollm2: SmolLM2Renderer, tmp_path: Path
) -> None:
    with training_service(smollm2, tmp_path) as fields:
        config = BridgeConfig.model_validate(fields)
        endless = iter(lambda: config.task_for("Write.", samples=2), None)
        worker = RolloutWorker(config, endless, groups_at_once=2, queue_size=64)
        transfer = DrainedTransfer(NoTransfer(), config)
        transfer.pause()  # TRL synchronises once before it starts the worker
        transfer.resume()
        worker.update_model_version(1)
        worker.start()
        rows = [worker.rollout_buffer.get(timeout=HANG_S)]
        transfer.pause()
        transfer.resume()
        worker.update_model_version(2)
        while rows[-1].model_version < 2:
            rows.append(worker.rollout_buffer.get(timeout=HANG_S))
        worker.check_health(HANG_S)
        worker.stop()
        with SyncPolarClient(fields["url"], fields["token"]) as client:
            results = [status.result for status in map(client.session, sessions(client)) if status.result]
    assert {row.model_version for row in rows} == {1, 2}
    assert len(rows[0].input_ids) == len(rows[0].completion_mask) == len(rows[0].old_log_probs)
    assert results
    assert [result.statistics.dropped for result in results if result.statistics.dropped] == []


def sessions(client: SyncPolarClient) -> list[str]:
    return [status.session_id for status in client.sessions(stage=Stage.COMPLETED)]


@pytest.mark.usefixtures("on_a_cpu")
def test_trls_weights_reach_the_engine_of_a_running_service(smollm2: SmolLM2Renderer, tmp_path: Path) -> None:
    """Everything is real but the attention kernel: TRL samples from what it has learned."""
    model = tmp_path / "model"
    tiny_llama(VOCABULARY).save_pretrained(model)
    tiny_tokenizer().save_pretrained(model)
    with (
        blocking_sampler(model) as url,
        training_service(smollm2, tmp_path, TorchEngine(TorchOptions(url=url)), toy_world.task(0)) as fields,
    ):
        config = BridgeConfig.model_validate(fields)
        endless = iter(lambda: config.task_for("Say something.", samples=4), None)
        worker = RolloutWorker(config, endless, groups_at_once=1, queue_size=4)
        transfer = EngineTransfer(worker, config, Spec(name="torch", options={"url": url}), model)
        trainer = a_trainer(model, worker, transfer, rows=4, generations=4, steps=6)
        transfer.prove(trainer.model)
        before = weights(trainer.model)
        trainer.train()
        with SyncPolarClient(fields["url"], fields["token"]) as client:
            policy = client.policy()
            traces = [trace for session in sessions(client) for trace in client.trajectory(session).traces]
    assert not torch.equal(weights(trainer.model), before)
    assert len(transfer.proofs) == 6, "one for each step"
    assert all(proof.noise < 1e-4 for proof in transfer.proofs)
    assert transfer.proofs[-1].clear and transfer.proofs[-1].share > 0.99, "the engine has the last step's weights"
    assert policy.version == "7" and not policy.paused
    versions = {version for trace in traces for version in trace.policy_versions}
    # A batch under way, one fetched and one queued may be older; six batches cannot all be of the first weights.
    assert len(versions) > 1, "sessions were sampled from more than one step's weights"
