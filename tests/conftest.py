"""Fixtures of all suites: the default model's own vocabulary and a PostgreSQL, each made once; signals as a
terminal gives them."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from memory import Memory
from pg_cluster import Postgres
from polar.store.weights import WeightsError
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from skips import Skips

TESTS = Path(__file__).parent
# The same examples each time, so that a run says something about the change and not about luck. To look for new
# ones: HYPOTHESIS_PROFILE=explore make test. Neither has a clock: the machine may be busy.
UNHURRIED: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("repeat", derandomize=True, database=None, **UNHURRIED)
settings.register_profile("explore", print_blob=True, **UNHURRIED)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeat"))

LONGEST_FIRST = ("e2e", "integration/service", "unit/tokens", "integration", "unit/test_benchmarks.py")
"""What is long begins first, so that no worker is left alone with it at the end."""


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Skips(config))
    config.pluginmanager.register(Memory())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        places = (number for number, name in enumerate(LONGEST_FIRST) if item.path.is_relative_to(TESTS / name))
        return next(places, len(LONGEST_FIRST))

    items.sort(key=place)


@pytest.fixture(scope="session")
def smollm2() -> SmolLM2Renderer:
    renderer = SmolLM2Renderer(SmolLM2Renderer.Options())
    try:
        asyncio.run(renderer.load())
    except WeightsError as error:
        pytest.skip(str(error))
    return renderer


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    on_path = shutil.which("initdb")
    if not found and not on_path:
        pytest.skip("PostgreSQL's initdb is missing: apt-get install postgresql")
    cluster = Postgres(found[-1].parent if found else Path(str(on_path)).parent)
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture(scope="session", autouse=True)
def wide_terminal() -> Iterator[None]:
    """What the commands print is not folded at the width of whatever terminal the tests run in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "200")
        yield


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_is_heard() -> None:
    """A job that a shell starts in the background ignores Ctrl-C, and so would every process started by a test."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
