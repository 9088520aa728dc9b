from __future__ import annotations

import asyncio

import pytest

from polar.store.weights import WeightsError, default_weights
from polar.tokens.renderers.gguf_vocabulary import Vocabulary, load_vocabulary

pytest.register_assert_rewrite("contracts.engine_contract", "contracts.chat_contract")


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    try:
        return load_vocabulary(asyncio.run(default_weights()))
    except WeightsError as error:
        pytest.skip(str(error))
