"""One training step: credited traces in, new weights out."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from polar.credit.advantages import CreditedTrace, token_weights
from polar.trainers.grpo.config import TrainConfig
from polar.trainers.grpo.model.packing import Pack, packs, training_sequence
from polar.trainers.grpo.model.policy_model import PolicyModel


@dataclass
class LearnStats:
    """Sums over the targets of a step, until `means` divides them."""

    targets: int = 0
    traces: int = 0
    computed_tokens: int = 0
    """Tokens of the forward passes, shared ones once."""
    trace_tokens: int = 0
    updates: int = 0
    skipped_updates: int = 0
    """Left out because the gradient was not finite."""
    gap: float = 0.0
    """|captured − recomputed logprob| of the first update's traces, so before the step has changed the weights:
    what engine and trainer differ in, and what off-policy sampling adds."""
    gap_targets: int = 0
    entropy: float = 0.0
    """−logprob of the sampled tokens, an estimate of the policy's entropy."""
    clipped: float = 0.0
    loss: float = 0.0
    grad_norm: float = 0.0
    learning_rate: float = 0.0

    def means(self) -> dict[str, float]:
        values = {f.name: float(getattr(self, f.name)) for f in fields(self)}
        values["gap"] /= max(1.0, values.pop("gap_targets"))
        for name in ("entropy", "clipped"):
            values[name] /= max(1, self.targets)
        return values


class Learner:
    def __init__(self, config: TrainConfig, model: PolicyModel) -> None:
        self._config = config
        self.model = model
        chosen = config.optimizer
        self._optimizer = torch.optim.AdamW(
            model.module.parameters(),
            lr=chosen.learning_rate,
            betas=chosen.betas,
            weight_decay=chosen.weight_decay,
        )
        self._random = random.Random(config.seed)

    def learn(self, step: int, batch: Sequence[CreditedTrace]) -> LearnStats:
        """One optimizer update for each part of the batch. Traces without an advantage have no gradient and are
        not computed; they count in the mean."""
        stats = LearnStats(learning_rate=self._learning_rate(step))
        for group in self._optimizer.param_groups:
            group["lr"] = stats.learning_rate
        for part in self._parts(list(batch)):
            self._update(part, stats)
        return stats

    def _learning_rate(self, step: int) -> float:
        chosen, last = self._config.optimizer, self._config.schedule.steps - 1
        warmup = min(1.0, (step + 1) / max(1, chosen.warmup_steps))
        decay = 1.0 - (1.0 - chosen.decay_to) * min(1.0, step / max(1, last))
        return chosen.learning_rate * warmup * decay

    def _parts(self, batch: list[CreditedTrace]) -> list[list[CreditedTrace]]:
        """One for each optimizer update, in a random order."""
        chosen = self._config.optimizer
        if chosen.traces_per_update is not None:
            self._random.shuffle(batch)
            size = chosen.traces_per_update
            return [batch[start : start + size] for start in range(0, len(batch), size)]
        groups: dict[str, list[CreditedTrace]] = {}
        for item in batch:
            groups.setdefault(item.trace.group_id, []).append(item)
        names = sorted(groups)
        self._random.shuffle(names)
        count = min(chosen.updates, len(names))
        return [[item for name in names[part::count] for item in groups[name]] for part in range(count)]

    def _update(self, batch: list[CreditedTrace], stats: LearnStats) -> None:
        compute, weights = self._config.compute, token_weights(batch, self._config.loss.mean)
        sequences = [
            training_sequence(item, weight)
            for item, weight in zip(batch, weights, strict=True)
            if any(item.advantages)
        ]
        self._optimizer.zero_grad(set_to_none=True)
        for pack in packs(sequences, compute.pack_tokens, share=compute.share_prefixes):
            self._backward(pack, stats)
        norm = torch.nn.utils.clip_grad_norm_(self.model.module.parameters(), self._config.optimizer.max_grad_norm)
        stats.grad_norm = float(norm)
        if not math.isfinite(stats.grad_norm):  # it would ruin the weights
            stats.skipped_updates += 1
            stats.grad_norm = 0.0
            return
        self._optimizer.step()
        stats.updates += 1

    def _backward(self, pack: Pack, stats: LearnStats) -> None:
        new = self.model.logprobs(pack)
        old, advantage, weight = (
            torch.from_numpy(values).to(new.device)
            for values in (pack.old_logprobs, pack.advantages, pack.weights)
        )
        loss, clipped = self._loss(new, old, advantage, weight)
        loss.backward()
        stats.loss += float(loss.detach())
        stats.clipped += float(clipped)
        if stats.updates + stats.skipped_updates == 0:
            stats.gap += float((new.detach() - old).abs().sum())
            stats.gap_targets += len(pack.target_ids)
        stats.entropy -= float(new.detach().sum())
        stats.targets += len(pack.target_ids)
        stats.traces += pack.traces
        stats.computed_tokens += len(pack.ids)
        stats.trace_tokens += pack.trace_tokens

    def _loss(self, new: Tensor, old: Tensor, advantage: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """PPO's clipped objective. The ratio is to the captured logprobs, so it corrects for stale weights and for
        the engine's arithmetic alike. Second value: how many targets were clipped."""
        chosen = self._config.loss
        ratio = (new - old).exp().clamp(max=chosen.max_ratio)
        bounded = ratio.clamp(1 - chosen.clip_low, 1 + chosen.clip_high)
        gain = torch.minimum(ratio * advantage, bounded * advantage)
        return -(weight * gain).sum(), (bounded * advantage < ratio * advantage).sum()

    @property
    def _groups(self) -> list[dict[str, Any]]:
        return self._optimizer.param_groups

    def state(self) -> dict[str, Any]:
        return {"optimizer": self._optimizer.state_dict(), "random": self._random.getstate()}

    def load_state(self, state: dict[str, Any]) -> None:
        """What the config says of the optimizer stays."""
        configured = [{name: value for name, value in group.items() if name != "params"} for group in self._groups]
        self._optimizer.load_state_dict(state["optimizer"])
        for group, values in zip(self._groups, configured, strict=True):
            group.update(values)
        self._random.setstate(state["random"])
