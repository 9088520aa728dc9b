"""slime's side: prompts from its data source in, samples and rewards out."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from silent_sessions import a_silent_session
from stored_groups import StoredClient, a_group, a_session, a_trace
from trainer_types import provide_slime

from polar.credit.group import Group
from polar.errors import ConfigError, PolarError
from polar.trainers.bridges import slime, slime_async
from polar.trainers.bridges.config import BridgeConfig
from polar.trainers.bridges.packages import load

SAMPLES = 4


@pytest.fixture(autouse=True)
def slime_package(monkeypatch: pytest.MonkeyPatch) -> None:
    provide_slime(monkeypatch)


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stands for the rollout server: slime's functions have no argument for a client."""

    def serve(*groups: Group, **fields: Any) -> StoredClient:
        client = StoredClient(*groups, **fields)
        monkeypatch.setattr(BridgeConfig, "client", lambda _: client)
        return client

    return serve


class DataSource:
    """slime's: each prompt as `n_samples_per_prompt` samples, numbered."""

    def __init__(self, samples: int = SAMPLES) -> None:
        self._samples = samples
        self.given = 0

    def get_samples(self, count: int) -> list[list[Any]]:
        sample_type = load("slime.utils.types", "slime").Sample
        groups = []
        for _ in range(count):
            first = self.given * self._samples
            metadata = {"polar": {"files": {"n.txt": str(self.given)}}}
            groups.append(
                [
                    sample_type(
                        group_index=self.given, index=first + i, prompt=f"Task {self.given}.", metadata=metadata
                    )
                    for i in range(self._samples)
                ]
            )
            self.given += 1
        return groups


def args(batch: int = 1, **fields: Any) -> Any:
    return SimpleNamespace(rollout_batch_size=batch, polar={"task": {"harness": "pi"}}, **fields)


def split_group(name: str) -> Group:
    """The facts' table: rewards 1, 0, 0, 0 with 10, 1, 1 and 1 traces."""
    many = [a_trace(f"{name}-0", [5] * (n + 1)) for n in range(10)]
    return Group(
        name, (a_session(f"{name}-0", 1.0, *many), *(a_session(f"{name}-{i}", 0.0) for i in range(1, SAMPLES)))
    )


def flat(samples: Any) -> list[Any]:
    return [each for item in samples for each in flat(item)] if isinstance(samples, list) else [samples]


def test_the_samples_of_a_session_share_its_rollout_id(serve: Any) -> None:
    client = serve(split_group("a"))
    output = slime.generate_rollout(args(), 0, DataSource())
    (group,) = output.samples
    assert [len(session) for session in group] == [10, 1, 1, 1]
    assert [{sample.rollout_id for sample in session} for session in group] == [{0}, {1}, {2}, {3}]
    last = group[0][-1]
    assert (last.tokens, last.response_length) == ([1, 2, *[5] * 10, 3], 11)
    assert last.loss_mask == [1] * 10 + [0] and last.rollout_log_probs == [-0.5] * 10 + [0.0]
    assert (last.status.value, last.weight_versions, last.session_id) == ("completed", ["0"], "a-0")
    (task,) = client.submitted
    assert (task.instruction, task.num_samples, task.files) == ("Task 0.", SAMPLES, {"n.txt": "0"})
    assert output.metrics["polar/reward"] == 0.25 and output.metrics["polar/traces"] == 13


def test_rewards_are_compared_over_sessions_whatever_their_number_of_samples(serve: Any) -> None:
    serve(split_group("a"), a_group("b", 1.0, 1.0, 0.0, 0.0))
    samples = flat(slime.generate_rollout(args(2), 0, DataSource()).samples)
    raw, rewards = slime.post_process_rewards(args(2), samples)
    assert raw == [1.0] * 10 + [0.0] * 3 + [1.0, 1.0, 0.0, 0.0]
    assert [round(reward, 2) for reward in rewards] == [1.73] * 10 + [-0.58] * 3 + [1.0, 1.0, -1.0, -1.0]


def test_a_lost_session_leaves_a_placeholder_so_that_rollouts_can_be_counted(serve: Any) -> None:
    serve(a_group("a", 1.0, None, 0.0, None))
    (group,) = slime.generate_rollout(args(), 0, DataSource()).samples
    samples = flat(group)
    assert len({sample.rollout_id for sample in samples}) == SAMPLES
    lost = samples[1]
    assert (lost.tokens, lost.response_length, lost.loss_mask, lost.rollout_log_probs) == ([0, 0], 1, [0], [0.0])
    assert lost.remove_sample and lost.status.value == "aborted" and lost.reward == 0.0
    assert lost.metadata["polar_left_out"] == "infrastructure"
    assert slime.post_process_rewards(None, samples)[1] == [1.0, 0.0, -1.0, 0.0]


def test_a_session_without_a_trainable_token_counts_in_the_mean_reward(serve: Any) -> None:
    silent = a_silent_session("a-1", 0.25)
    serve(Group("a", (a_session("a-0", 1.0), silent, a_session("a-2", 1.0), a_session("a-3", None))))
    output = slime.generate_rollout(args(), 0, DataSource())
    placeholder = flat(output.samples)[1]
    assert placeholder.remove_sample and placeholder.metadata["polar_left_out"] == "no_trainable_tokens"
    assert placeholder.reward == 0.25 and output.metrics["polar/reward"] == 0.75


def test_a_session_that_a_limit_ended_is_truncated_and_trained_on(serve: Any) -> None:
    sessions = [a_session(f"a-{i}", 0.0, ended_by="max_calls") for i in range(SAMPLES)]
    serve(Group("a", tuple(sessions)))
    samples = flat(slime.generate_rollout(args(), 0, DataSource()).samples)
    assert {sample.status.value for sample in samples} == {"truncated"} and not samples[0].remove_sample


def test_top_p_is_refused() -> None:
    with pytest.raises(ConfigError, match="--rollout-top-p must be 1"):
        slime.generate_rollout(args(rollout_top_p=0.9), 0, DataSource())


def test_a_temperature_that_is_not_that_of_the_sessions_is_refused(serve: Any) -> None:
    with pytest.raises(ConfigError, match="--rollout-temperature must be 1"):
        slime.generate_rollout(args(rollout_temperature=0.7), 0, DataSource())
    serve(a_group("a", 1.0, 0.0, 0.0, 0.0))
    assert slime.generate_rollout(args(rollout_temperature=1.0), 0, DataSource()).samples


def test_evaluation_has_a_reward_for_each_session_that_was_judged(serve: Any, tmp_path: Path) -> None:
    rows = [{"text": "One."}, {"text": "Two.", "meta": {"polar": {"files": {"a": "b"}}}}]
    (tmp_path / "eval.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data_set = SimpleNamespace(
        name="held-out",
        path=str(tmp_path / "eval.jsonl"),
        input_key="text",
        metadata_key="meta",
        n_samples_per_eval_prompt=2,
    )
    client = serve(a_group("a", 1.0, 0.0), a_group("b", 1.0, None))
    output = slime.generate_rollout(args(eval_datasets=[data_set]), 0, DataSource(), evaluation=True)
    found = output.data["held-out"]
    assert found["rewards"] == [1.0, 0.0, 1.0] and found["truncated"] == [False] * 3
    assert len(found["samples"]) == 3
    assert [task.files for task in client.submitted] == [{}, {"a": "b"}]


def test_async_leaves_the_next_batch_under_way_and_hands_out_what_finished_first(serve: Any) -> None:
    """The stored server finishes the newest first."""
    client = serve(*(a_group(f"g{n}", 1.0, 0.0, 0.0, 0.0) for n in range(9)))
    source = DataSource()
    first = slime_async.generate_rollout(args(2), 0, source)
    assert [group[0][0].group_index for group in first.samples] == [2, 3]
    assert source.given == len(client.submitted) == 4, "two more are under way"
    second = slime_async.generate_rollout(args(2), 1, source)
    assert [group[0][0].group_index for group in second.samples] == [4, 5]
    assert source.given == 6


def test_async_runs_a_group_again_that_lost_all_of_its_sessions(serve: Any) -> None:
    lost, whole = a_group("g0", *[None] * SAMPLES), a_group("g1", 1.0, 0.0, 0.0, 0.0)
    client = serve(lost, whole)
    source = DataSource()
    output = slime_async.generate_rollout(args(polar_batches_ahead=0), 0, source)
    assert [sample.group_index for sample in flat(output.samples)] == [0] * SAMPLES
    assert [task.instruction for task in client.submitted] == ["Task 0.", "Task 0."] and source.given == 1


def test_async_gives_up_on_a_group_that_is_always_lost(serve: Any) -> None:
    serve(*(a_group(f"g{n}", *[None] * SAMPLES) for n in range(5)))
    with pytest.raises(PolarError, match=r"prompt 0 has lost all of its sessions 3 times \(infrastructure\)"):
        slime_async.generate_rollout(args(polar_batches_ahead=0), 0, DataSource())


def test_async_does_not_train_on_tokens_that_became_too_old_in_the_queue(serve: Any) -> None:
    old = Group("g0", tuple(a_session(f"g0-{i}", 0.0, a_trace(f"g0-{i}", version="1")) for i in range(SAMPLES)))
    new = [a_session(f"g1-{i}", 1.0, a_trace(f"g1-{i}", version="3")) for i in range(SAMPLES)]
    client = serve(old, Group("g1", tuple(new)), version="3")
    settings = args(polar_batches_ahead=0)
    settings.polar["max_age"] = 1
    output = slime_async.generate_rollout(settings, 0, DataSource())
    assert {tuple(sample.weight_versions) for sample in flat(output.samples)} == {("3",)}
    assert len(client.submitted) == 2
