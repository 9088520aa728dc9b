from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from replica_servers import ReplicaServers

from polar.tokens.renderers.gguf_vocabulary import Vocabulary


@pytest.fixture
async def servers(vocabulary: Vocabulary) -> AsyncIterator[ReplicaServers]:
    async with AsyncExitStack() as stack:
        yield ReplicaServers(vocabulary, stack)
