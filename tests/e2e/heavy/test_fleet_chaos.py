"""300 sessions through a fleet, with 60 kills, stops, freezes and cuts of any part of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.chaos import assert_nothing_is_lost
from fleet.fleet import Fleet
from pg_cluster import Postgres
from polar.tokens.renderers.smollm2 import SmolLM2Renderer


@pytest.mark.timeout(3600)
async def test_nothing_is_lost_doubled_stuck_or_left_behind(
    postgres: Postgres, smollm2: SmolLM2Renderer, tmp_path: Path
) -> None:
    await assert_nothing_is_lost(Fleet(tmp_path, postgres.new_database()), sessions=300, faults=60, seed=1)
