"""New weights from TRL's `AsyncGRPOTrainer`, sent by Polar instead of NCCL.

NCCL cannot connect two processes on one GPU, and TRL uses it for vLLM only. Polar's update (docs/weights.md) goes
through shared memory or CUDA IPC to any engine that takes weights, and can be proven.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from polar.trainers.bridges.config import BridgeConfig
from polar.trainers.bridges.trl_async import RolloutWorker
from polar.trainers.weights import (
    ProbeReport,
    WeightOptions,
    WeightProbe,
    Weights,
    WeightUpdates,
    check_takes_weights,
    weight_target,
)
from polar.trainers.weights.probe import probe_ids
from polar.trainers.weights.update import UpdateMode
from polar.types import Spec

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
PLAIN_ATTENTION = "sdpa"


class EngineTransfer:
    """Pass it as `AsyncGRPOTrainer(weight_transfer=...)`.

    engine: as `polar.toml` names it. model: the folder that the trainer loads. mode: `drain` lets replies end
    under the weights that began them, `in_flight` continues them under the new ones."""

    def __init__(
        self,
        worker: RolloutWorker,
        config: BridgeConfig,
        engine: Spec,
        model: Path,
        options: WeightOptions | None = None,
        mode: UpdateMode = "drain",
    ) -> None:
        check_takes_weights(engine, options)
        self._worker = worker
        self._config = config
        self._engine = engine
        self._model = model
        self._options = options
        self._mode: UpdateMode = mode
        self._policy: Any = None
        self._probe: WeightProbe | None = None
        self._updates: WeightUpdates | None = None
        self._begun = False
        self.proofs: list[ProbeReport] = []
        """Of each update after the first, which changes nothing; empty without `prove`."""
        self._open = AsyncExitStack()
        # TRL calls from a thread that may have a loop of its own; connections belong to the loop that made them.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="polar-weights")
        self._runner = asyncio.Runner()

    def prove(self, policy: Any) -> None:
        """Every update is proven with the logprobs of `policy`, which is `trainer.model`. To be called before
        training; not for a model that is spread over several GPUs."""
        self._policy = policy

    def init_weight_transfer(self) -> None:
        self._run(self._connect())

    def pause(self) -> None:
        """Nothing: an update pauses generation for itself, and resumes it also if it fails."""

    def send_weights(self, iterator: Iterable[tuple[str, torch.Tensor]]) -> None:
        """All of them are in memory at once, unlike with TRL's own transfer."""
        self._run(self._send(dict(iterator)))

    def resume(self) -> None:
        """Nothing, as `pause`."""

    def destroy(self) -> None:
        self._run(self._open.aclose())
        self._thread.submit(self._runner.close).result()
        self._thread.shutdown()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.submit(self._runner.run, work).result()

    async def _connect(self) -> None:
        client = await self._open.enter_async_context(self._config.client())
        target = weight_target(self._engine, self._model, self._options)
        self._open.push_async_callback(target.close)
        if self._policy is not None:
            ids = probe_ids(self._policy.config.vocab_size)
            self._probe = WeightProbe(target, ids, scorer(self._policy))
        self._updates = WeightUpdates(client, target, self._mode, self._probe)

    async def _send(self, weights: Weights) -> None:
        """The first weights come before any session runs. Later ones get the version that TRL will name next, so
        that no call is recorded under the old one."""
        assert self._updates is not None, "TRL calls init_weight_transfer first"
        if self._begun:
            await self._updates.push(weights, str(self._worker.version + 1))
            if self._probe is not None and self._probe.last is not None:
                self.proofs.append(self._probe.last)
        else:
            await self._updates.begin(weights)
            self._begun = True


def scorer(policy: Any) -> Callable[[Sequence[int]], list[float]]:
    """The logprobs of `ids[1:]` by a model of transformers. TRL's own attention takes packed rows only."""

    def score(ids: Sequence[int]) -> list[float]:
        import torch  # noqa: PLC0415 - an extra

        usual, training = policy.config._attn_implementation, policy.training
        policy.set_attn_implementation(PLAIN_ATTENTION)
        policy.eval()
        try:
            with torch.no_grad():
                given = torch.tensor([list(ids)], device=policy.device)
                logprobs = policy(input_ids=given, use_cache=False).logits[0, :-1].float().log_softmax(-1)
            return logprobs.gather(-1, given[0, 1:, None])[:, 0].cpu().tolist()
        finally:
            policy.set_attn_implementation(usual)
            policy.train(training)

    return score
