"""TRL's own `SFTTrainer` trains on an exported data set, on a CPU: its loss is over exactly the sampled tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import load_dataset
from tiny_policy import tiny_tokenizer, weights
from trl import SFTConfig, SFTTrainer

from exported_sessions import a_group, a_session, exported, traces_of, two_turns
from polar.data.export.plan import ExportedGroup, ExportPlan
from tiny_llama import tiny_llama

pytestmark = [
    pytest.mark.check,
    pytest.mark.filterwarnings("ignore"),  # of TRL and what it imports; ours are errors in all other tests
]


class Watched(SFTTrainer):
    """Keeps the batches that its loss is computed on."""

    def compute_loss(self, model: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        self.batches = [*getattr(self, "batches", []), {name: value.clone() for name, value in inputs.items()}]
        return super().compute_loss(model, inputs, *arguments, **options)


def a_trainer(folder: Path, data: Any, model: Any) -> Watched:
    args = SFTConfig(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        max_steps=1,
        learning_rate=0.1,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
        seed=0,
    )
    return Watched(model=model, args=args, train_dataset=data, processing_class=tiny_tokenizer())


def mean_loss(model: Any, group: ExportedGroup, *, everywhere: bool = False) -> float:
    """Over the sampled tokens, each after exactly the tokens before it; or over all tokens of the responses."""
    losses: list[float] = []
    for trace in traces_of(group):
        ids = [*trace.prompt_ids, *trace.response_ids]
        with torch.no_grad():
            found = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        for position, trained in enumerate(trace.loss_mask, start=len(trace.prompt_ids)):
            if trained or everywhere:
                losses.append(-found[position - 1, ids[position]].item())
    return sum(losses) / len(losses)


@pytest.mark.parametrize("file", ["jsonl", "parquet"])
def test_one_step_on_tokens(tmp_path: Path, file: Any) -> None:
    group = a_group(a_session("t-0", 1.0), a_session("t-1", 1.0, two_turns([21, 22])))
    exported(tmp_path / "set", ExportPlan("tokens", file=file), group)
    data = load_dataset(str(tmp_path / "set"), split="train", cache_dir=str(tmp_path / "cache"))
    model = tiny_llama()
    expected, before = mean_loss(model, group), weights(model)
    assert abs(expected - mean_loss(model, group, everywhere=True)) > 0.05, "the check below can fail"
    trainer = a_trainer(tmp_path / "out", data, model)
    trainer.train()
    (batch,) = trainer.batches
    trained = sorted([i for i in row.tolist() if i != -100] for row in batch["labels"])
    assert trained == [[10, 11, 12, 13, 14], [10, 11, 21, 22]]
    assert trainer.state.log_history[0]["loss"] == pytest.approx(expected, abs=1e-3)
    assert not torch.equal(weights(model), before)
