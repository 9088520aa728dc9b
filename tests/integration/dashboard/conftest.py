"""A browser, a rollout server with its dashboard, and a person who looks at it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from live_browser import Visitor, dashboard_service

from chromium import Chromium, started_chromium
from fake_node import Service


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    with started_chromium() as browser:
        yield browser


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = dashboard_service(tmp_path)
    yield made
    made.close()


@pytest.fixture
def visitor(chromium: Chromium, service: Service) -> Visitor:
    chromium.look(width=1300)
    return Visitor(chromium, service)
