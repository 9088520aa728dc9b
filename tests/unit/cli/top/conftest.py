"""A fake service, clocks in UTC, and `polar top` before it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator

import pytest

from polar.client import PolarClient, Retry

from .fake_service import TOKEN, FakeService
from .top_screen import TopScreen


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        patch.setenv("POLAR_CONTROL_TOKEN", TOKEN)
        patch.delenv("NO_COLOR", raising=False)
        time.tzset()
        yield
    time.tzset()


@pytest.fixture
async def service() -> AsyncIterator[FakeService]:
    fake = FakeService()
    yield fake
    await fake.stop()


@pytest.fixture
async def client(service: FakeService) -> AsyncIterator[PolarClient]:
    async with PolarClient(await service.start(), TOKEN, retry=Retry(total_s=0)) as client:
        yield client


@pytest.fixture
async def screen(service: FakeService) -> AsyncIterator[TopScreen]:
    """80 columns and 24 lines, when the first values are shown."""
    async with TopScreen(await service.start()).open() as opened:
        yield opened
