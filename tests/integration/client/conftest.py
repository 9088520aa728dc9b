"""The real rollout server, a node that is played, and the tokens where a user has them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from fake_node import CONTROL, FakeNode, Service
from polar.client import PolarClient, Retry


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In the user's config folder, as `polar server` leaves it."""
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "control-token").write_text(CONTROL)
    monkeypatch.setenv("POLAR_CONFIG_DIR", str(folder))
    for name in ("POLAR_CONTROL_TOKEN", "POLAR_SERVER"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path)
    try:
        yield made.start()
    finally:
        made.close()


@pytest.fixture
def node(service: Service) -> FakeNode:
    return FakeNode(service.url)


@pytest.fixture
async def client(service: Service) -> AsyncIterator[PolarClient]:
    async with PolarClient(service.url, retry=Retry(first_s=0.01)) as client:
        yield client
