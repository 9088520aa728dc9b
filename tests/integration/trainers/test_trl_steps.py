"""TRL's own `GRPOTrainer` makes steps on the rows of sessions, on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from stored_groups import StoredClient, a_group, a_session, a_trace
from tiny_policy import tiny_llama, tiny_tokenizer, weights
from training_service import training_service
from trl import GRPOConfig, GRPOTrainer

from polar.client import SyncPolarClient
from polar.credit.group import Group
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.trainers.bridges.config import BridgeConfig
from polar.trainers.bridges.trl import RolloutFunction, scored, session_reward

pytestmark = [
    pytest.mark.check,
    pytest.mark.filterwarnings("ignore"),  # of TRL and what it imports; ours are errors in all other tests
]


def a_trainer(
    folder: Path, source: StoredClient | BridgeConfig, model: Any, steps: int = 1, rewards: Sequence[Any] = ()
) -> GRPOTrainer:
    """`source`: stored groups, or where the rollout server is. `rewards`: functions beside the sessions'."""
    args = GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=4,
        num_generations=4,
        max_steps=steps,
        learning_rate=0.1,
        max_completion_length=8,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        loss_type="grpo",
        disable_tqdm=True,
    )
    return GRPOTrainer(
        model=model,
        args=args,
        reward_funcs=[session_reward, *rewards],
        train_dataset=Dataset.from_list([{"prompt": "Do it."}] * 8),
        processing_class=tiny_tokenizer(),
        rollout_func=(
            RolloutFunction(source)
            if isinstance(source, BridgeConfig)
            else RolloutFunction(BridgeConfig(task={"harness": "pi"}), connect=lambda: source)
        ),
    )


def logged(trainer: GRPOTrainer, name: str) -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def logprob(model: Any, prompt: list[int], tokens: list[int]) -> float:
    """Of the tokens after the prompt, summed."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + tokens])).logits[0].log_softmax(-1)
    return sum(logits[len(prompt) - 1 + i, token].item() for i, token in enumerate(tokens))


def test_steps_make_what_was_rewarded_more_likely(tmp_path: Path) -> None:
    def group(name: str) -> Group:
        good = [a_session(f"{name}-{i}", 1.0, a_trace(f"{name}-{i}", [5, 6, 7])) for i in (0, 1)]
        bad = [a_session(f"{name}-{i}", 0.0, a_trace(f"{name}-{i}", [8, 9, 10])) for i in (2, 3)]
        return Group(name, (*good, *bad))

    model = tiny_llama()
    before = [logprob(model, [1, 2], tokens) for tokens in ([5, 6, 7], [8, 9, 10])]
    client = StoredClient(*(group(name) for name in "abc"))
    trainer = a_trainer(tmp_path, client, model, steps=3)
    trainer.train()
    after = [logprob(model, [1, 2], tokens) for tokens in ([5, 6, 7], [8, 9, 10])]
    assert after[0] > before[0] and after[1] < before[1]
    assert logged(trainer, "reward") == [0.5] * 3
    assert [task.num_samples for task in client.submitted] == [4] * 3
    assert client.versions == ["0", "1", "2"]


def test_context_in_the_completion_is_not_trained_on(tmp_path: Path) -> None:
    """With all tokens masked there is no gradient at all, whatever the rewards."""
    silent = [a_trace(f"a-{i}", [5, 6]) for i in range(4)]
    rows = RolloutFunction(
        BridgeConfig(),
        connect=lambda: StoredClient(Group("a", tuple(a_session(t.session_id, 1.0, t) for t in silent))),
    )
    model = tiny_llama()
    trainer = a_trainer(tmp_path, StoredClient(), model)

    def masked(prompts: list[Any], _: Any) -> dict[str, list[Any]]:
        made = rows(prompts, trainer)
        return made | {"env_mask": [[0] * len(mask) for mask in made["env_mask"]]}

    trainer.rollout_func = masked
    before = weights(model)
    trainer.train()
    assert torch.equal(weights(model), before)


def test_a_lost_session_is_in_no_baseline(tmp_path: Path) -> None:
    """Two of four are lost. The rest has rewards 1 and 0: the baseline is 0.5, not 0.25."""
    trainer = a_trainer(tmp_path, StoredClient(a_group("a", 1.0, None, 0.0, None)), tiny_llama())
    trainer.train()
    assert logged(trainer, "reward") == [0.5]
    found = [round(value, 2) for value in trainer._logs["advantages"]]
    assert sorted(found) == [-0.71, 0.0, 0.0, 0.71], "TRL divides by the deviation of a sample"


def test_a_lost_session_is_in_no_baseline_beside_another_reward_function(tmp_path: Path) -> None:
    def nothing(completions: list[str], **_: Any) -> list[float]:
        return [0.0] * len(completions)

    client = StoredClient(a_group("a", 1.0, None, 1.0, None))
    trainer = a_trainer(tmp_path, client, tiny_llama(), rewards=[scored(nothing)])
    trainer.train()
    assert logged(trainer, "reward") == [1.0] and logged(trainer, "rewards/nothing/mean") == [0.0]
    assert [round(value, 2) for value in trainer._logs["advantages"]] == [0.0] * 4


def test_a_group_without_contrast_or_without_sessions_changes_nothing(tmp_path: Path) -> None:
    model = tiny_llama()
    before = weights(model)
    client = StoredClient(a_group("a", 1.0, 1.0, 1.0, 1.0), a_group("b", None, None, None, None))
    a_trainer(tmp_path, client, model, steps=2).train()
    assert torch.equal(weights(model), before)


def test_steps_on_sessions_of_a_real_server_and_node(smollm2: SmolLM2Renderer, tmp_path: Path) -> None:
    """From the prompt of the data set to the optimiser: a harness in a runtime, the gateway, an evaluator."""
    model = tiny_llama(vocabulary=49_152)
    before = weights(model)
    with training_service(smollm2, tmp_path) as fields:
        trainer = a_trainer(tmp_path / "out", BridgeConfig.model_validate(fields), model, steps=2)
        trainer.train()
        with SyncPolarClient(fields["url"], fields["token"]) as client:
            assert client.policy().version == "1"
            (first, second) = [client.upload(s.session_ids[0]) for s in map(client.task, task_ids(client))]
    assert logged(trainer, "reward") == [0.5, 0.5] and not torch.equal(weights(model), before)
    assert {call.policy_version for call in (*first.calls, *second.calls)} == {"0", "1"}


def task_ids(client: SyncPolarClient) -> list[str]:
    return [status.task_id for status in client.tasks()]
