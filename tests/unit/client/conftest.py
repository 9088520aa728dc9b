"""A fake rollout server, and a client that does not wait long between its tries."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from fake_rollout import TOKEN, FakeRollout

from polar.client import PolarClient, Retry

QUICK = Retry(first_s=0.001, longest_s=0.01)


@pytest.fixture
async def rollout() -> AsyncIterator[FakeRollout]:
    fake = FakeRollout()
    yield fake
    await fake.stop()


@pytest.fixture
async def url(rollout: FakeRollout) -> str:
    return await rollout.start()


@pytest.fixture
async def client(url: str) -> AsyncIterator[PolarClient]:
    async with PolarClient(url, TOKEN, retry=QUICK) as client:
        yield client
