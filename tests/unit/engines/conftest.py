from __future__ import annotations

import asyncio
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from polar.store.weights import WeightsError, default_weights
from polar.tokens.renderers.gguf_vocabulary import Vocabulary, load_vocabulary

pytest.register_assert_rewrite("contracts.engine_contract", "contracts.chat_contract")
# Not in a folder `torch`, which `find_spec` would take for the package.
collect_ignore_glob = [] if find_spec("torch") else ["test_torch_*.py"]


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    try:
        return load_vocabulary(asyncio.run(default_weights()))
    except WeightsError as error:
        pytest.skip(str(error))


@pytest.fixture
def one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
