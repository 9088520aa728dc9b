"""The policy as the trainer holds it: a causal language model of transformers, and its logprobs of a pack."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub import snapshot_download
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from polar.errors import ConfigError
from polar.trainers.grpo.packing import Pack, TrainingSequence, packs


class PolicyModel:
    """Weights are float32; on a GPU the forward pass computes in bfloat16."""

    def __init__(self, folder: str, device: str = "auto") -> None:
        self.device = torch.device(_device(device))
        self.folder = local_folder(folder)
        self._tokenizer = {path.name: path.read_bytes() for path in self.folder.glob("*token*") if path.is_file()}
        """Part of every checkpoint, so that it can be served. In memory, because the checkpoint that a run was
        resumed from is deleted in time."""
        disable_progress_bar()  # a line for each step is the progress
        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                self.folder, dtype=torch.float32, attn_implementation="sdpa"
            )
        except (OSError, ValueError) as error:
            raise ConfigError(f"model {folder!r} cannot be loaded: {error}") from error
        self.module: torch.nn.Module = loaded.to(self.device)
        self.vocabulary_size = int(loaded.config.vocab_size)

    def logprobs(self, pack: Pack) -> Tensor:
        """Of the pack's targets, in float32."""
        if int(pack.ids.max()) >= self.vocabulary_size:
            raise ConfigError(
                f"token id {int(pack.ids.max())} is not in the vocabulary of {self.folder} "
                f"({self.vocabulary_size} tokens): is it the model that the engine serves?"
            )
        size = len(pack.ids)
        place = torch.arange(size, device=self.device)
        end = torch.from_numpy(pack.end).to(self.device)
        visible = (place[None, :] <= place[:, None]) & (place[:, None] < end[None, :])
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            output = self.module(
                input_ids=torch.from_numpy(pack.ids).to(self.device)[None],
                position_ids=torch.from_numpy(pack.positions).to(self.device)[None],
                attention_mask=visible[None, None],
                logits_to_keep=torch.from_numpy(pack.predictors).to(self.device),
                use_cache=False,
            )
        targets = torch.from_numpy(pack.target_ids).to(self.device)
        return -cross_entropy(output.logits[0].float(), targets, reduction="none")

    def score(self, ids: Sequence[int]) -> list[float]:
        """The logprob of each of `ids[1:]`."""
        sequence, size = np.asarray(ids, np.int64), len(ids) - 1
        nothing = np.zeros(size, np.float32)
        [pack] = packs([TrainingSequence(sequence, np.arange(1, size + 1), nothing, nothing, nothing)], size + 1)
        with torch.no_grad():
            return self.logprobs(pack).cpu().numpy().tolist()

    def weights(self) -> Mapping[str, Tensor]:
        """By the names of the model's checkpoint. Not copies: they change with the next update."""
        return {name: tensor.detach() for name, tensor in self.module.state_dict().items()}

    def save(self, folder: Path) -> None:
        """As a checkpoint that an engine or `from_pretrained` loads."""
        folder.mkdir(parents=True, exist_ok=True)
        module: Any = self.module
        module.save_pretrained(folder)
        for name, content in self._tokenizer.items():
            (folder / name).write_bytes(content)


def local_folder(model: str) -> Path:
    """The folder of a model; one that is named by its id on the hub is downloaded once."""
    if Path(model).is_dir():
        return Path(model)
    try:
        return Path(snapshot_download(model, allow_patterns=["*.json", "*.safetensors", "*token*"]))
    except (OSError, ValueError) as error:
        raise ConfigError(f"model {model!r} is no folder here, and not to be had from the hub: {error}") from error


def _device(wanted: str) -> str:
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError("compute.device is cuda, but torch finds no GPU here; use auto or cpu")
    return wanted
