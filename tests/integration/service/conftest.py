from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from service_bench import ServiceBench


@pytest.fixture
def bench(smollm2: SmolLM2Renderer, tmp_path: Path) -> Iterator[ServiceBench]:
    """`smollm2` skips where there are no weights: the processes read their vocabulary too."""
    made = ServiceBench(tmp_path)
    yield made
    made.close()
