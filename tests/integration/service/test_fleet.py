"""Two servers on one PostgreSQL, three nodes, two replicas of the engine. `tests/e2e/heavy` has the long one."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.chaos import assert_nothing_is_lost
from fleet.fleet import Fleet
from pg_cluster import Postgres
from polar.tokens.renderers.smollm2 import SmolLM2Renderer


@pytest.mark.check
async def test_a_fleet_loses_nothing(postgres: Postgres, smollm2: SmolLM2Renderer, tmp_path: Path) -> None:
    await assert_nothing_is_lost(Fleet(tmp_path, postgres.new_database()), sessions=60, faults=16)
