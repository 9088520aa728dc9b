"""slime's own check of nested samples. Collected where slime is on Python's path."""

from __future__ import annotations

from typing import Any

import pytest
from slime.observability.rollout_data_utils import validate_rollout_id_annotated
from stored_groups import StoredClient, a_group
from test_slime_bridge import DataSource, args, split_group

from polar.trainers.bridges import slime
from polar.trainers.bridges.config import BridgeConfig

pytestmark = [pytest.mark.check, pytest.mark.filterwarnings("ignore")]


def test_slime_accepts_the_nesting_and_the_rollout_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    client = StoredClient(split_group("a"), a_group("b", 1.0, None, 0.0, 0.0))
    monkeypatch.setattr(BridgeConfig, "client", lambda _: client)
    output: Any = slime.generate_rollout(args(2), 0, DataSource())
    validate_rollout_id_annotated(output.samples)
    for group in output.samples:
        for session in group:
            for sample in session:
                sample._validate_response_metadata_lengths()
                assert type(sample).from_dict(sample.to_dict()).tokens == sample.tokens
