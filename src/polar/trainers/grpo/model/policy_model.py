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
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from polar.errors import ConfigError
from polar.trainers.grpo.config import ComputeDtype
from polar.trainers.grpo.model.pack_attention import query_blocks, use_pack_attention
from polar.trainers.grpo.model.packing import Pack, TrainingSequence, packs
from polar.trainers.weights.checkpoint import NOT_COPIED

HUB_FILES = ["*.json", "*.safetensors", "*token*", "*.jinja", "*.txt", "*.model"]
"""What a model is loaded and served from. Chat templates, vocabularies and merges have files of their own."""
COPIED_BYTES = 100 * 2**20
"""Of a file beside the weights that is part of each checkpoint; the largest tokenizers have a third of it."""
WORKS = "models with full attention in every layer work, such as Llama, Qwen 2 and 3, or SmolLM"


class PolicyModel:
    """Weights are float32, whatever a forward pass computes in."""

    def __init__(self, folder: str, device: str = "auto", dtype: ComputeDtype = "auto") -> None:
        self.device = torch.device(compute_device(device))
        self._on_gpu = self.device.type == "cuda"
        self._bfloat16 = self._on_gpu if dtype == "auto" else dtype == "bfloat16"
        self.folder = local_folder(folder)
        self._copied = {path.name: path.read_bytes() for path in self.folder.iterdir() if _is_copied(path)}
        """Part of every checkpoint, so that it can be served: tokenizer, chat template. In memory, because the
        checkpoint that a run was resumed from is deleted in time."""
        disable_progress_bar()  # a line for each step is the progress
        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                self.folder, dtype=torch.float32, attn_implementation="sdpa"
            )
        except (OSError, ValueError) as error:
            raise ConfigError(f"model {folder!r} cannot be loaded: {error}") from error
        check_attention(loaded.config, stateful=getattr(loaded, "_is_stateful", False))
        self._window = attention_window(loaded.config)
        self._in_blocks = not self._on_gpu and use_pack_attention(loaded)
        self.module: torch.nn.Module = loaded.to(self.device)
        self.vocabulary_size = int(loaded.config.vocab_size)

    def logprobs(self, pack: Pack) -> Tensor:
        """Of the pack's targets, as float32."""
        return self._logprobs(pack, bfloat16=self._bfloat16)

    def _logprobs(self, pack: Pack, *, bfloat16: bool) -> Tensor:
        self._check(pack)
        size = len(pack.ids)
        place = torch.arange(size, device=self.device)
        end = torch.from_numpy(pack.end).to(self.device)
        visible = (place[None, :] <= place[:, None]) & (place[:, None] < end[None, :])
        blocks = {"query_blocks": query_blocks(visible)} if self._in_blocks else {}
        with torch.autocast(self.device.type, torch.bfloat16, enabled=bfloat16):
            output = self.module(
                input_ids=torch.from_numpy(pack.ids).to(self.device)[None],
                position_ids=torch.from_numpy(pack.positions).to(self.device)[None],
                attention_mask=visible[None, None],
                logits_to_keep=torch.from_numpy(pack.predictors).to(self.device),
                use_cache=False,
                **blocks,
            )
        targets = torch.from_numpy(pack.target_ids).to(self.device)
        return -cross_entropy(output.logits[0].float(), targets, reduction="none")

    def _check(self, pack: Pack) -> None:
        if int(pack.ids.max()) >= self.vocabulary_size:
            raise ConfigError(
                f"token id {int(pack.ids.max())} is not in the vocabulary of {self.folder} "
                f"({self.vocabulary_size} tokens): is it the model that the engine serves?"
            )
        if self._window is not None and int(pack.positions.max()) >= self._window:
            raise _outside_window(self._window)  # the mask of a pack replaces that of the window

    def score(self, ids: Sequence[int]) -> list[float]:
        """The logprob of each of `ids[1:]`. On a CPU always in float32, in which engines there compute: then
        weights in an engine are proven to the last digits."""
        sequence, size = np.asarray(ids, np.int64), len(ids) - 1
        nothing = np.zeros(size, np.float32)
        [pack] = packs([TrainingSequence(sequence, np.arange(1, size + 1), nothing, nothing, nothing)], size + 1)
        with torch.no_grad():
            return self._logprobs(pack, bfloat16=self._bfloat16 and self._on_gpu).cpu().numpy().tolist()

    def weights(self) -> Mapping[str, Tensor]:
        """By the names of the model's checkpoint. Not copies: they change with the next update."""
        return {name: tensor.detach() for name, tensor in self.module.state_dict().items()}

    def save(self, folder: Path) -> None:
        """As a checkpoint that an engine or `from_pretrained` loads."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self._copied.items():
            (folder / name).write_bytes(content)
        module: Any = self.module
        module.save_pretrained(folder)


def local_folder(model: str) -> Path:
    """The folder of a model; one that is named by its id on the hub is downloaded once."""
    if Path(model).is_dir():
        return Path(model)
    try:
        return Path(snapshot_download(model, allow_patterns=HUB_FILES))
    except (OSError, ValueError) as error:
        raise ConfigError(f"model {model!r} is no folder here, and not to be had from the hub: {error}") from error


def compute_device(wanted: str) -> str:
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError("compute.device is cuda, but torch finds no GPU here; use auto or cpu")
    return wanted


def check_policy(model: str, max_tokens: int) -> None:
    """Raises `ConfigError` for a model whose packed traces of up to `max_tokens` would be computed wrongly. Asked
    before anything is started; the weights are not loaded."""
    folder = local_folder(model)
    try:
        config: Any = AutoConfig.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise ConfigError(f"model {model!r} cannot be loaded: {error}") from error
    check_attention(config)
    window = attention_window(config)
    if window is not None and max_tokens > window:
        raise _outside_window(window)


def check_attention(config: Any, *, stateful: bool = False) -> None:
    """A pack keeps its traces apart by an attention mask alone. Layers that carry a state from token to token, or
    that compute more than the mask says, would mix them up without an error."""
    text = config.get_text_config()
    wrong = set(getattr(text, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    wrong |= {name for name in ("attn_logit_softcapping", "alibi") if getattr(text, name, None)}
    if stateful and not wrong:
        wrong = {"layers with a recurrent state"}
    if wrong:
        raise ConfigError(
            f"the trainer would compute this model ({text.model_type}) wrongly, because it has "
            f"{', '.join(sorted(wrong))}; {WORKS}"
        )


def attention_window(config: Any) -> int | None:
    """Tokens that the layers with a sliding window see; None: all layers see everything."""
    text = config.get_text_config()
    kinds = getattr(text, "layer_types", None)
    if kinds is not None and "sliding_attention" not in kinds:
        return None  # some configs name a window that no layer uses
    return getattr(text, "sliding_window", None)


def _outside_window(window: int) -> ConfigError:
    return ConfigError(
        f"layers of this model see {window} tokens (sliding_window), and the trainer computes full attention, "
        f"which is the same only up to there: set compute.max_tokens to {window} at most, or train another model; "
        f"{WORKS}"
    )


def _is_copied(path: Path) -> bool:
    """Everything that is small and no weights."""
    return path.is_file() and not path.name.endswith(NOT_COPIED) and path.stat().st_size <= COPIED_BYTES
