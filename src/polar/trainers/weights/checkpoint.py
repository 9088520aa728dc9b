"""Weights as a checkpoint on disk, from which a server loads them.

A tied model has one tensor for the embedding and the head. What is written always has a head of its own: vLLM
keeps the old head if the new checkpoint has none, and still answers with success. Names are compared with those of
the model's own checkpoint for the same reason.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import tempfile
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any, Protocol

from polar.errors import ConfigError
from polar.trainers.weights.base import DtypeName, WeightError, Weights

if TYPE_CHECKING:
    import torch

HEAD = "lm_head.weight"
EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")
FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"
NOT_COPIED = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth", ".gguf")
SHARED_MEMORY = Path("/dev/shm")
PREFIX = "polar-weights-"
LOCK = ".lock"
"""Held as long as the trainer lives, however it ends."""
ROOM = 2
"""The old file stays until the new one is complete."""


class ModelFolder:
    """The folder of the model that is trained: what its config and its checkpoint's names say."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.names = _names(path)
        self.tied = is_tied(path)

    def whole(self, weights: Weights) -> dict[str, torch.Tensor]:
        """The weights with a head of their own. Raises `WeightError` if one is missing or unknown."""
        tensors = dict(weights)
        if self.tied and HEAD not in tensors:
            tensors[HEAD] = tensors[self._embedding(tensors)]
        expected = self.names or frozenset({HEAD})
        if missing := expected - tensors.keys():
            raise WeightError(
                f"the weights lack {_listed(missing)}, which the model in {self.path} has: pass "
                "`model.state_dict()`"
            )
        if unknown := tensors.keys() - self.names - {HEAD} if self.names else ():
            raise WeightError(
                f"the weights have {_listed(unknown)}, which the checkpoint in {self.path} does not; use its names"
            )
        return tensors

    def _embedding(self, tensors: Weights) -> str:
        found = [name for name in tensors if name.endswith(EMBEDDINGS)]
        if len(found) != 1:
            raise WeightError(
                f"the config in {self.path} ties the head to the embedding, and the weights have "
                f"{_listed(found) or 'none'} that could be it; add `{HEAD}` to them"
            )
        return found[0]


class Checkpoint(Protocol):
    """A folder that servers load from."""

    def write(self, weights: Weights) -> Path: ...

    def close(self) -> None: ...


class CheckpointFolder:
    """A folder that a server loads from, rewritten at each update and deleted at `close`."""

    def __init__(self, model: ModelFolder, dtype: DtypeName | None, folder: Path | None) -> None:
        self._model = model
        self._dtype: DtypeName | None = dtype
        self._folder = folder
        self._made: Path | None = None
        self._lock: IO[bytes]

    def write(self, weights: Weights) -> Path:
        """Blocks until all is written. An earlier file stays valid until then."""
        tensors = to_send(self._model.whole(weights), self._dtype)
        size_bytes = sum(tensor.nbytes for tensor in tensors.values())
        parent = self._folder or _roomy(size_bytes)
        try:
            folder = self._made or self._make(parent)
            self._save({name: tensor.cpu() for name, tensor in tensors.items()}, folder)
        except (OSError, _safetensors_error()) as error:
            raise WeightError(
                f"the weights ({size_bytes / 2**20:,.0f} MiB) cannot be written to {self._made or parent}: "
                f"{error}; free space there, or choose another folder: `folder` of WeightOptions"
            ) from error
        return folder

    def _save(self, tensors: Weights, folder: Path) -> None:
        half = folder / f"{FILE}.part"
        try:
            _safetensors().save_file(tensors, half, {"format": "pt"})
            half.rename(folder / FILE)
        except BaseException:
            half.unlink(missing_ok=True)  # what there is of it takes the room that something else may need
            raise

    def _make(self, parent: Path) -> Path:
        parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(parent)
        self._made = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        self._lock = (self._made / LOCK).open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        copy_files(self._model.path, self._made)
        return self._made

    def close(self) -> None:
        if self._made is not None:
            self._lock.close()
            shutil.rmtree(self._made, ignore_errors=True)
            self._made = None


class SharedCheckpoint:
    """One folder for several servers. What is written after `renew` is written once."""

    def __init__(self, folder: CheckpointFolder) -> None:
        self._folder = folder
        self._written: Path | None = None
        self._writing = threading.Lock()

    def renew(self) -> None:
        self._written = None

    def write(self, weights: Weights) -> Path:
        with self._writing:
            if self._written is None:
                self._written = self._folder.write(weights)
            return self._written

    def close(self) -> None:
        self._folder.close()


def to_send(tensors: Weights, dtype: DtypeName | None) -> dict[str, torch.Tensor]:
    """Detached, converted and contiguous; each with memory of its own."""
    wanted: torch.dtype | None = None if dtype is None else getattr(_torch(), dtype)
    seen: set[int] = set()
    ready: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        converted = tensor.detach().to(wanted or tensor.dtype).contiguous()
        memory = converted.untyped_storage().data_ptr()
        ready[name] = converted.clone() if memory in seen else converted
        seen.add(memory)
    return ready


def untie(model: Path, folder: Path) -> None:
    """Writes a copy of a checkpoint with a head of its own, for servers that cannot update a tied one."""
    files = sorted(model.glob("*.safetensors"))
    if not files:
        raise ConfigError(f"{model} has no .safetensors files; save the model there with `save_pretrained`")
    weights = {name: tensor for file in files for name, tensor in _safetensors().load_file(file).items()}
    tensors = to_send(ModelFolder(model).whole(weights), None)
    folder.mkdir(parents=True, exist_ok=True)
    copy_files(model, folder)
    _safetensors().save_file(tensors, folder / FILE, {"format": "pt"})


def copy_files(model: Path, folder: Path) -> None:
    """Everything but the weights: config, with the head untied, and tokenizer."""
    for file in model.iterdir():
        if file.is_file() and not file.name.endswith(NOT_COPIED):
            shutil.copyfile(file, folder / file.name)
    config = _config(model)
    for part in (config, config.get("text_config")):
        if part is not None:
            part["tie_word_embeddings"] = False
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def is_tied(model: Path) -> bool:
    """Whether the head is the embedding. A config that does not say leaves it to the model's class; then the
    checkpoint decides, which has a head only if it is not tied."""
    config = _config(model)
    parts: list[dict[str, Any]] = [config, config.get("text_config") or {}]
    said = [part["tie_word_embeddings"] for part in parts if "tie_word_embeddings" in part]
    return bool(said[0]) if said else HEAD not in _names(model)


def _config(model: Path) -> dict[str, Any]:
    try:
        return json.loads((model / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{model} is not the folder of a model: its config.json cannot be read: {error}"
        ) from error


def _names(model: Path) -> frozenset[str]:
    """Of the tensors of a checkpoint; empty if it has no safetensors."""
    index = model / INDEX
    if index.exists():
        return frozenset(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
    return frozenset(name for file in model.glob("*.safetensors") for name in _header(file))


def _header(file: Path) -> set[str]:
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        return set(json.loads(opened.read(size))) - {"__metadata__"}


def _roomy(size_bytes: int) -> Path:
    """Shared memory, unless it is too small, as in a container with its default of 64 MB."""
    temporary = Path(tempfile.gettempdir())
    if not SHARED_MEMORY.is_dir():
        return temporary
    return SHARED_MEMORY if shutil.disk_usage(SHARED_MEMORY).free > ROOM * size_bytes else temporary


def _listed(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - 3} more" if len(ordered) > 3 else ""
    return ", ".join(ordered[:3]) + more


def _torch() -> ModuleType:
    try:
        import torch  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise _missing("torch") from error
    return torch


def _safetensors() -> Any:
    try:
        import safetensors.torch  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise _missing("safetensors") from error
    return safetensors.torch


def _safetensors_error() -> type[Exception]:
    """What it raises for a full disk: no OSError."""
    _safetensors()  # the error that names the package, if there is none
    from safetensors import SafetensorError  # noqa: PLC0415 - an optional dependency

    return SafetensorError


def _missing(package: str) -> ConfigError:
    return ConfigError(f"weight updates need {package}: pip install 'polar-rollout[train]'")


def _remove_leftovers(parent: Path) -> None:
    """The folders of trainers that were killed. In shared memory they take memory until the machine restarts."""
    for path in parent.glob(f"{PREFIX}*/{LOCK}"):
        with suppress(OSError), path.open("rb") as lock:  # another user's, or held by a trainer that lives
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.parent, ignore_errors=True)
