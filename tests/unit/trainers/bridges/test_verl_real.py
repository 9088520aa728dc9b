"""verl's own trainer on the outputs of the bridge. Collected where verl is installed (`make trainers`)."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # verl and what it imports use what its own dependencies deprecate
    import hydra
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, DictConfigWrap
    from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn
    from verl_trainer import Queue, StoredLoop, a_config, a_step, a_trainer, a_validation

from stored_groups import StoredClient, a_session, a_trace
from test_trainer_examples import EXAMPLES, loaded
from test_verl_bridge import ROW, SAMPLING, lost, without_trainable_tokens

from polar.credit.advantages import FinishedSession
from polar.credit.group import Group

pytestmark = [pytest.mark.check, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def queue(monkeypatch: pytest.MonkeyPatch) -> None:
    Queue().install(monkeypatch)


def given(patch: pytest.MonkeyPatch, *sessions: FinishedSession) -> int:
    patch.setattr(StoredLoop, "sessions", list(sessions))
    return len(sessions)


def first_of(advantages: dict[str, list[float]]) -> list[float]:
    return [round(row[0], 2) for row in advantages.values()]


def test_a_step_of_verl_compares_sessions_and_not_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    two_traces = a_session("a-0", 1.0, a_trace("a-0"), a_trace("a-0", [8], kind="subagent"))
    size = given(monkeypatch, two_traces, a_session("b-0", 0.0), a_session("c-0", 0.5))
    advantages, metrics = a_step(a_trainer(size))
    assert first_of(advantages) == [1.0, 1.0, -1.0, 0.0]
    assert metrics["critic/score/max"] == 1.0
    assert [row[-1] for row in advantages.values()] == [0.0] * 4, "the last token is context"


def test_without_policy_versions_its_metrics_count_from_the_weights_of_the_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sessions = [a_session(f"{name}-0", 1.0, a_trace(f"{name}-0", version="")) for name in "ab"]
    _, metrics = a_step(a_trainer(given(monkeypatch, *sessions)))
    assert metrics["training/off_policy/trajectory_staleness/max"] == 0
    assert metrics["training/off_policy/trajectory_spans/max"] == 1


def test_a_session_that_is_left_alone_has_no_advantage(monkeypatch: pytest.MonkeyPatch) -> None:
    size = given(monkeypatch, lost("a-0"), a_session("b-0", 1.0), lost("c-0"))
    advantages, metrics = a_step(a_trainer(size))
    ((key, row),) = advantages.items()
    assert key.endswith("_1_0") and row == [0.0] * 4
    assert metrics["critic/score/mean"] == 1.0


def test_a_session_without_trainable_tokens_is_in_its_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    size = given(monkeypatch, without_trainable_tokens("a-0", 0.0), a_session("b-0", 1.0))
    advantages, metrics = a_step(a_trainer(size))
    assert first_of(advantages) == [0.0, 0.71], "the first has no token to train on"
    assert metrics["critic/score/mean"] == 0.5


def test_a_prompt_that_lost_all_of_its_sessions_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With verl's filter of groups too, which ends with an error on one that is finished and has no rows."""
    for filters in ((), ("algorithm.filter_groups.enable=true", "algorithm.filter_groups.metric=reward")):
        trainer = a_trainer(given(monkeypatch, lost("a-0"), lost("b-0")), *filters)
        with pytest.raises(RuntimeError, match="sync_refill_failed_groups"):
            a_step(trainer)
        assert len(trainer.replay_buffer.failure_keys["train"]) == 1


def test_its_validation_with_its_defaults_has_the_reward_of_each_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """At temperature 0, where no token is trainable. A lost session is not a 0 in the mean."""
    size = given(monkeypatch, without_trainable_tokens("a-0", 1.0), lost("b-0"))
    for sessions in (1, size):
        metrics = a_validation(a_trainer(4, f"actor_rollout_ref.rollout.val_kwargs.n={sessions}"))
        core = {name: value for name, value in metrics.items() if name.startswith("val-core/")}
        assert core == {"val-core/tasks/reward/mean@1": 1.0}


async def test_verl_makes_the_loop_from_its_yaml_file(tmp_path: Path) -> None:
    """As its worker does, with what it gives to all agent loops."""
    (tmp_path / "loops.yaml").write_text(
        "- name: polar\n"
        "  _target_: polar.trainers.bridges.verl.AgentLoop\n"
        "  polar: {url: 'http://127.0.0.1:1', task: {harness: {name: pi, options: {tools: [bash]}}}}\n"
    )
    (entry,) = OmegaConf.load(tmp_path / "loops.yaml")
    client = StoredClient(Group("a", (a_session("a-0", 1.0),)))
    loop = hydra.utils.instantiate(
        config=entry,
        trainer_config=DictConfigWrap(config=OmegaConf.create({})),
        server_manager=None,
        tokenizer=None,
        processor=None,
        hf_model_type="llama",
        dataset_cls=None,
        data_config=DictConfigWrap(config=OmegaConf.create({})),
        connect=lambda: client,
    )
    (output,) = await loop.run(SAMPLING, **ROW)
    assert isinstance(output, AgentLoopOutput) and output.reward_score == 1.0
    assert client.submitted[0].harness.options == {"tools": ["bash"]}


def test_the_example_is_a_configuration_and_a_data_set_of_verl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (EXAMPLES / "verl/train.sh").read_text().replace("$here", str(EXAMPLES / "verl"))
    script = script.replace("$folder", str(tmp_path)).replace("$model", "a-model")
    settings = re.findall(r"^    ([\w.]+=.+?) \\$", script, re.MULTILINE)
    config = a_config(*(setting.replace('"', "").replace("'", "") for setting in settings))
    (entry,) = OmegaConf.load(config.actor_rollout_ref.rollout.agent.agent_loop_config_path)
    assert entry.name == "polar" and config.trainer.use_v1 and config.algorithm.adv_estimator == "grpo"
    loaded(EXAMPLES / "rows.py").write(tmp_path)
    whole = {**config.data, "filter_overlong_prompts": False, "cache_dir": str(tmp_path / "cache")}
    data = RLHFDataset(config.data.train_files, None, OmegaConf.create(whole))
    given(monkeypatch, a_session("a-0", 1.0), a_session("b-0", 0.0))
    advantages, _ = a_step(a_trainer(2), collate_fn([data[0]]))
    assert first_of(advantages) == [0.71, -0.71]
