"""One step: the loss is what its definition says, however traces are packed, and it moves the policy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_model import a_credited, save_tiny_model

from polar.credit.advantages import CreditedTrace
from polar.trainers.grpo.checkpoints import Checkpoints, TrainState, load_learner_state
from polar.trainers.grpo.config import TrainConfig
from polar.trainers.grpo.learner import Learner
from polar.trainers.grpo.model.packing import packs, training_sequence
from polar.trainers.grpo.model.policy_model import PolicyModel

pytestmark = pytest.mark.check


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


def a_learner(folder: Path, **tables: dict[str, object]) -> Learner:
    config = TrainConfig.model_validate({"tasks": {"train": "t.toml"}, **tables})
    return Learner(config, PolicyModel(str(folder), "cpu"))


def batch() -> list[CreditedTrace]:
    """Two groups; the second has an auxiliary mask and a longer history."""
    return [
        a_credited([1, 2, 3], [4, 5], advantage=1.0, session_id="a", group_id="g"),
        a_credited([1, 2, 3], [4, 6, 7], advantage=-1.0, session_id="b", group_id="g"),
        a_credited([8, 9], [10, 11, 12, 13], mask=[1, 0, 0, 1], advantage=0.5, session_id="c", group_id="h"),
        a_credited([8, 9], [14], advantage=-0.5, session_id="d", group_id="h"),
    ]


def logprob(learner: Learner, item: CreditedTrace) -> float:
    [pack] = packs([training_sequence(item, 1.0)], 100)
    with torch.no_grad():
        return float(learner.model.logprobs(pack).sum())


def test_a_step_makes_good_tokens_more_likely_and_bad_ones_less(folder: Path) -> None:
    learner = a_learner(folder, optimizer={"learning_rate": 1e-3, "warmup_steps": 0})
    good, bad = batch()[0], batch()[3]
    before = logprob(learner, good), logprob(learner, bad)
    for step in range(5):
        learner.learn(step, batch())
    assert logprob(learner, good) > before[0]
    assert logprob(learner, bad) < before[1]


def test_the_learning_rate_rises_and_then_falls_to_its_share(folder: Path) -> None:
    chosen = {"learning_rate": 1.0, "warmup_steps": 2, "decay_to": 0.2}
    learner = a_learner(folder, optimizer=chosen, schedule={"steps": 5})
    rates = [learner.learn(step, []).learning_rate for step in range(6)]
    assert rates == pytest.approx([0.5, 0.8, 0.6, 0.4, 0.2, 0.2])


@pytest.mark.parametrize("pack_tokens", [6, 1000])
@pytest.mark.parametrize("share", [True, False])
def test_the_gradient_does_not_depend_on_packing(folder: Path, pack_tokens: int, share: bool) -> None:
    def gradients(**compute: object) -> list[torch.Tensor]:
        learner = a_learner(folder, compute=dict(compute), optimizer={"max_grad_norm": 1e9})
        learner.learn(0, batch())
        return [p.grad for p in learner.model.module.parameters() if p.grad is not None]

    plain = gradients(pack_tokens=2, share_prefixes=False)
    packed = gradients(pack_tokens=pack_tokens, share_prefixes=share)
    for one, other in zip(plain, packed, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def test_masked_tokens_and_traces_without_advantage_are_not_trained_on(folder: Path) -> None:
    learner = a_learner(folder)
    stats = learner.learn(0, [*batch(), a_credited([1], [2, 3], advantage=0.0)])
    assert stats.targets == 2 + 3 + 2 + 1
    assert stats.traces == 4


def test_a_trace_without_an_advantage_counts_in_the_mean(folder: Path) -> None:
    """The middle one of three rewards has an advantage of exactly 0 or, where the mean is rounded, nearly so."""

    def norm(middle: float) -> float:
        learner = a_learner(folder, optimizer={"max_grad_norm": 1e9})
        ends = [
            a_credited([1, 2], [3, 4 + place], advantage=sign, session_id=str(sign), group_id="g")
            for place, sign in enumerate((1.0, -1.0))
        ]
        between = a_credited([1, 2], [5, 6], advantage=middle, session_id="m", group_id="g")
        return learner.learn(0, [*ends, between]).grad_norm

    assert norm(0.0) == pytest.approx(norm(1e-9), rel=1e-4)


def test_the_gap_is_that_before_the_first_update(folder: Path) -> None:
    """Captured by the model itself, it is rounding, however much the first update changes for the second."""
    exact = a_learner(folder)
    recorded = [
        a_credited([1, 2, 3], [token], old=[logprob(exact, a_credited([1, 2, 3], [token]))], group_id=str(token))
        for token in (4, 5)
    ]
    learner = a_learner(folder, optimizer={"updates": 2, "learning_rate": 0.1, "warmup_steps": 0})
    stats = learner.learn(0, recorded)
    assert stats.updates == 2
    assert stats.means()["gap"] == pytest.approx(0.0, abs=1e-5)


def test_a_clipped_token_has_no_gradient(folder: Path) -> None:
    """Its ratio has left the bounds on the side that its advantage asks for."""
    learner = a_learner(folder)
    likely = a_credited([1, 2, 3], [4], old=[-20.0], advantage=1.0)
    stats = learner.learn(0, [likely])
    assert stats.clipped == 1
    assert stats.grad_norm == 0.0


def test_several_updates_take_whole_groups(folder: Path) -> None:
    learner = a_learner(folder, optimizer={"updates": 2})
    stats = learner.learn(0, batch())
    assert stats.updates == 2
    assert stats.targets == 8


def test_an_update_may_take_a_number_of_traces(folder: Path) -> None:
    learner = a_learner(folder, optimizer={"traces_per_update": 3})
    stats = learner.learn(0, batch())
    assert (stats.updates, stats.traces) == (2, 4)


def test_a_resumed_learner_makes_the_same_step(folder: Path, tmp_path: Path) -> None:
    straight = a_learner(folder)
    straight.learn(0, batch())
    saved = Checkpoints(tmp_path, keep=1).save(straight, TrainState(run_id="r", step=1))
    resumed = a_learner(saved)
    load_learner_state(resumed, saved)
    straight.learn(1, batch())
    resumed.learn(1, batch())
    for one, other in zip(straight.model.module.parameters(), resumed.model.module.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=0, rtol=0)


def test_the_config_decides_about_the_optimizer_after_a_resume_too(folder: Path, tmp_path: Path) -> None:
    first = a_learner(folder)
    first.learn(0, batch())
    saved = Checkpoints(tmp_path, keep=1).save(first, TrainState(run_id="r", step=1))
    resumed = a_learner(saved, optimizer={"weight_decay": 0.3, "betas": [0.5, 0.6]})
    load_learner_state(resumed, saved)
    [group] = resumed.state()["optimizer"]["param_groups"]
    assert (group["weight_decay"], tuple(group["betas"])) == (0.3, (0.5, 0.6))
