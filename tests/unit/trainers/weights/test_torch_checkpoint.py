"""Weights on disk: the head of tied models, names, types, and where the files are."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from polar.errors import ConfigError
from polar.trainers.weights import WeightError, checkpoint
from polar.trainers.weights.checkpoint import FILE, HEAD, CheckpointFolder, ModelFolder, is_tied, untie

pytestmark = pytest.mark.check
EMBEDDING = "model.embed_tokens.weight"
NORM = "model.norm.weight"
KILLED_TRAINER = f"""
import os, signal, sys, torch
from pathlib import Path
from polar.trainers.weights.checkpoint import CheckpointFolder, ModelFolder
folder = CheckpointFolder(ModelFolder(Path(sys.argv[1])), None, Path(sys.argv[2]))
folder.write({{"{EMBEDDING}": torch.zeros(1, 2), "{NORM}": torch.zeros(1, 1)}})
os.kill(os.getpid(), signal.SIGKILL)
"""


def tensor(*values: float) -> Any:
    import torch

    return torch.tensor([values])


def save(folder: Path, config: dict[str, Any], tensors: dict[str, Any]) -> Path:
    from safetensors.torch import save_file

    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "generation_config.json").write_text("{}")
    if tensors:
        save_file(tensors, folder / FILE)
    return folder


def read(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(folder / FILE)


def values(found: Any) -> list[float]:
    return found.flatten().tolist()


@pytest.fixture
def tied(tmp_path: Path) -> Path:
    return save(tmp_path / "tied", {"tie_word_embeddings": True}, {EMBEDDING: tensor(1, 2), NORM: tensor(3)})


@pytest.fixture
def untied(tmp_path: Path) -> Path:
    tensors = {EMBEDDING: tensor(1, 2), HEAD: tensor(5, 6), NORM: tensor(3)}
    return save(tmp_path / "untied", {"tie_word_embeddings": False}, tensors)


@contextmanager
def file_size_limit(size_bytes: int) -> Generator[None]:
    """Writing fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def written(model: Path, weights: dict[str, Any], tmp_path: Path, dtype: Any = None) -> Path:
    """A copy of the folder, which is gone when its trainer ends."""
    with closing(CheckpointFolder(ModelFolder(model), dtype, tmp_path / "out")) as target:
        shutil.copytree(target.write(weights), tmp_path / "written")
    return tmp_path / "written"


class TestTheHead:
    def test_a_tied_model_gets_its_embedding_as_a_head(self, tied: Path, tmp_path: Path) -> None:
        folder = written(tied, {EMBEDDING: tensor(7, 8), NORM: tensor(9)}, tmp_path)
        found = read(folder)
        assert values(found[HEAD]) == values(found[EMBEDDING]) == [7, 8]
        assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is False

    def test_a_state_dict_of_a_tied_model_has_one_tensor_twice(self, tied: Path, tmp_path: Path) -> None:
        shared = tensor(7, 8)
        found = read(written(tied, {EMBEDDING: shared, HEAD: shared, NORM: tensor(9)}, tmp_path))
        assert values(found[HEAD]) == values(found[EMBEDDING]) == [7, 8]

    def test_a_trained_head_beside_a_tied_config_is_kept(self, tied: Path, tmp_path: Path) -> None:
        folder = written(tied, {EMBEDDING: tensor(7, 8), HEAD: tensor(0, 1), NORM: tensor(9)}, tmp_path)
        assert values(read(folder)[HEAD]) == [0, 1]
        assert not is_tied(folder), "who loads it by its config takes the head too"

    def test_an_untied_model_without_its_head_is_refused(self, untied: Path, tmp_path: Path) -> None:
        with pytest.raises(WeightError, match=r"lack lm_head\.weight.*state_dict"):
            written(untied, {EMBEDDING: tensor(7, 8), NORM: tensor(9)}, tmp_path)

    def test_also_if_only_its_config_is_known(self, tmp_path: Path) -> None:
        model = save(tmp_path / "bare", {"tie_word_embeddings": False}, {})
        with pytest.raises(WeightError, match=r"lack lm_head\.weight"):
            written(model, {EMBEDDING: tensor(7, 8)}, tmp_path)

    def test_an_embedding_that_cannot_be_found_is_refused(self, tmp_path: Path) -> None:
        model = save(tmp_path / "odd", {"tie_word_embeddings": True}, {"vocabulary": tensor(1)})
        with pytest.raises(WeightError, match=r"ties the head.*add `lm_head\.weight`"):
            written(model, {"vocabulary": tensor(2)}, tmp_path)

    @pytest.mark.parametrize("config", [{}, {"text_config": {}}])
    def test_a_config_that_does_not_say_leaves_it_to_the_checkpoint(
        self, tied: Path, untied: Path, config: dict[str, Any]
    ) -> None:
        for folder, expected in ((tied, True), (untied, False)):
            (folder / "config.json").write_text(json.dumps(config))
            assert is_tied(folder) is expected

    def test_the_config_of_a_text_model_inside_another_counts(self, tmp_path: Path) -> None:
        config = {"text_config": {"tie_word_embeddings": True}}
        model = save(tmp_path / "images", config, {EMBEDDING: tensor(1)})
        assert is_tied(model)
        folder = written(model, {EMBEDDING: tensor(2)}, tmp_path)
        assert not is_tied(folder)

    def test_an_untied_copy_to_start_vllm_from(self, tied: Path, tmp_path: Path) -> None:
        untie(tied, tmp_path / "copy")
        found = read(tmp_path / "copy")
        assert values(found[HEAD]) == values(found[EMBEDDING]) == [1, 2]
        assert (tmp_path / "copy" / "tokenizer.json").exists() and not is_tied(tmp_path / "copy")

    def test_nothing_to_copy_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"no \.safetensors"):
            untie(save(tmp_path / "bare", {}, {}), tmp_path / "copy")


class TestNames:
    def test_a_missing_tensor_is_named(self, tied: Path, tmp_path: Path) -> None:
        with pytest.raises(WeightError, match=r"lack model\.norm\.weight"):
            written(tied, {EMBEDDING: tensor(7, 8)}, tmp_path)

    def test_an_unknown_tensor_is_named(self, tied: Path, tmp_path: Path) -> None:
        weights = {EMBEDDING: tensor(7, 8), NORM: tensor(9), "module.norm.weight": tensor(9)}
        with pytest.raises(WeightError, match=r"have module\.norm\.weight.*use its names"):
            written(tied, weights, tmp_path)

    def test_of_many_only_some_are_named(self, tied: Path, tmp_path: Path) -> None:
        weights = {f"module.{n}": tensor(1) for n in range(8)} | {EMBEDDING: tensor(7, 8), NORM: tensor(9)}
        with pytest.raises(WeightError, match=r"module\.0, module\.1, module\.2 and 5 more"):
            written(tied, weights, tmp_path)

    def test_a_checkpoint_in_parts_has_an_index(self, tied: Path, tmp_path: Path) -> None:
        (tied / FILE).unlink()
        (tied / checkpoint.INDEX).write_text(json.dumps({"weight_map": {EMBEDDING: "1", NORM: "2"}}))
        with pytest.raises(WeightError, match=r"lack model\.norm\.weight"):
            written(tied, {EMBEDDING: tensor(7, 8)}, tmp_path)


class TestTheFolder:
    def test_it_is_complete_for_a_server(self, tied: Path, tmp_path: Path) -> None:
        folder = written(tied, {EMBEDDING: tensor(7, 8), NORM: tensor(9)}, tmp_path)
        assert sorted(path.name for path in folder.iterdir()) == [
            checkpoint.LOCK,
            "config.json",
            "generation_config.json",
            FILE,
            "tokenizer.json",
        ]

    def test_the_next_update_replaces_the_file_and_close_deletes_all(self, tied: Path, tmp_path: Path) -> None:
        target = CheckpointFolder(ModelFolder(tied), None, tmp_path / "out")
        first = target.write({EMBEDDING: tensor(7, 8), NORM: tensor(9)})
        with (first / FILE).open("rb") as opened:
            before = opened.read()
            assert target.write({EMBEDDING: tensor(0, 1), NORM: tensor(9)}) == first
            opened.seek(0)
            assert opened.read() == before, "a server that still reads the old file reads the old weights"
        assert values(read(first)[EMBEDDING]) == [0, 1]
        target.close()
        assert list((tmp_path / "out").iterdir()) == []

    def test_a_full_disk_is_named_with_the_folder_and_what_to_do(self, tied: Path, tmp_path: Path) -> None:
        with closing(CheckpointFolder(ModelFolder(tied), None, tmp_path / "out")) as target:
            folder = target.write({EMBEDDING: tensor(7, 8), NORM: tensor(9)})
            weights = {EMBEDDING: tensor(0, 1), NORM: tensor(9)}
            with (
                file_size_limit(16),
                pytest.raises(WeightError, match=r"\(0 MiB\) cannot be written to .*polar-weights-.*free space"),
            ):
                target.write(weights)
            assert values(read(folder)[EMBEDDING]) == [7, 8]
            assert values(read(target.write(weights))[EMBEDDING]) == [0, 1]

    def test_a_folder_that_cannot_be_made_is_named(self, tied: Path, tmp_path: Path) -> None:
        (tmp_path / "afile").touch()
        target = CheckpointFolder(ModelFolder(tied), None, tmp_path / "afile" / "x")
        with pytest.raises(WeightError, match=r"cannot be written to .*afile/x.*choose another folder"):
            target.write({EMBEDDING: tensor(7, 8), NORM: tensor(9)})

    def test_gradients_views_and_types(self, tied: Path, tmp_path: Path) -> None:
        import torch

        whole = torch.arange(6.0, requires_grad=True).reshape(3, 2)
        weights = {EMBEDDING: whole.T, NORM: whole[0]}
        found = read(written(tied, weights, tmp_path, "bfloat16"))
        assert {value.dtype for value in found.values()} == {torch.bfloat16}
        assert values(found[EMBEDDING]) == [0, 2, 4, 1, 3, 5] and values(found[NORM]) == [0, 1]

    def test_shared_memory_that_is_too_small_is_not_used(
        self, tied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(checkpoint, "SHARED_MEMORY", tmp_path)
        weights = {EMBEDDING: tensor(7, 8), NORM: tensor(9)}
        target = CheckpointFolder(ModelFolder(tied), None, None)
        assert target.write(weights).parent == tmp_path
        target.close()
        monkeypatch.setattr(checkpoint, "ROOM", 10**15)
        target = CheckpointFolder(ModelFolder(tied), None, None)
        assert target.write(weights).parent != tmp_path
        target.close()

    def test_what_a_killed_trainer_left_is_deleted_by_the_next(self, tied: Path, tmp_path: Path) -> None:
        out = tmp_path / "out"
        with closing(CheckpointFolder(ModelFolder(tied), None, out)) as living:
            kept = living.write({EMBEDDING: tensor(7, 8), NORM: tensor(9)})
            killed = subprocess.run([sys.executable, "-c", KILLED_TRAINER, str(tied), str(out)], check=False)
            assert killed.returncode == -signal.SIGKILL
            assert len(list(out.iterdir())) == 2
            with closing(CheckpointFolder(ModelFolder(tied), None, out)) as following:
                written = following.write({EMBEDDING: tensor(7, 8), NORM: tensor(9)})
                assert set(out.iterdir()) == {kept, written}
