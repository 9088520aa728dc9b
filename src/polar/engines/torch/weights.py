# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""New weights in place, from a folder of safetensors as `save_pretrained` writes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor
from torch.nn import Parameter

from polar.errors import PolarError

HEAD = "lm_head.weight"
"""Left out of a folder if the model shares it with the embedding."""


class WeightsRefused(PolarError):
    """A folder does not hold the weights of the model that runs."""


def load_in_place(model: Any, folder: Path) -> None:
    """Replaces all weights of `model`. Names and shapes are checked before the first tensor changes. Raises
    `WeightsRefused`."""
    with ExitStack() as stack:
        files = {name: file for file in _opened(folder, stack) for name in file.keys()}
        _check(model, files, folder)
        if HEAD in files:
            _separate_head(model)
        targets: dict[str, Tensor] = model.state_dict()
        for name, file in files.items():
            targets[name].copy_(file.get_tensor(name))
        if HEAD not in files and HEAD in targets:
            targets[HEAD].copy_(model.get_input_embeddings().weight)


def _opened(folder: Path, stack: ExitStack) -> Iterator[Any]:
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise WeightsRefused(f"no safetensors in {folder}; name a folder that `save_pretrained` has written")
    for path in paths:
        try:
            yield stack.enter_context(safe_open(path, framework="pt"))
        except Exception as error:  # its error types are not public
            raise WeightsRefused(f"cannot read {path}: {error}; write it again") from error


def _check(model: Any, files: dict[str, Any], folder: Path) -> None:
    targets: dict[str, Tensor] = model.state_dict()
    missing = sorted(set(targets) - set(files))
    if missing == [HEAD] and (_is_shared(model) or _says_shared(folder)):
        missing = []
    if missing:
        raise WeightsRefused(f"{folder} lacks {', '.join(missing[:3])} ({len(missing)} tensors are missing)")
    if unknown := sorted(set(files) - set(targets)):
        raise WeightsRefused(
            f"{folder} has {', '.join(unknown[:3])}, which the model has not ({len(unknown)} such)"
        )
    for name, file in files.items():
        shape, expected = file.get_slice(name).get_shape(), list(targets[name].shape)
        if list(shape) != expected:
            raise WeightsRefused(f"{name} in {folder} has the shape {shape}, and the model's has {expected}")


def _is_shared(model: Any) -> bool:
    return model.get_output_embeddings().weight is model.get_input_embeddings().weight


def _says_shared(folder: Path) -> bool:
    """Whether the folder's own config explains why it has no head."""
    config = folder / "config.json"
    return config.is_file() and bool(json.loads(config.read_text()).get("tie_word_embeddings"))


def _separate_head(model: Any) -> None:
    """A folder with a head of its own needs one in the model: copied into a shared one, its values would also
    become the embedding."""
    if _is_shared(model):
        embedding = model.get_input_embeddings().weight
        model.get_output_embeddings().weight = Parameter(embedding.clone(), requires_grad=False)
        model.config.tie_word_embeddings = False
