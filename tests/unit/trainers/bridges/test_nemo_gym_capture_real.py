"""NeMo Gym's own chain builder on the token source. Collected where Gym is newer than 0.4.0, which lacks it."""

from __future__ import annotations

import pytest
from nemo_gym.token_id_capture import TokenSource as GymTokenSource
from nemo_gym.token_id_capture import assert_prefix_contiguity, project_main_chain_response, run_builder
from stored_calls import LAST, REPLY
from test_nemo_gym_bridge import CONFIG, TOKENS, a_body, a_client

from polar.trainers.bridges.nemo_gym import TokenSource, run_request

pytestmark = [pytest.mark.check, pytest.mark.filterwarnings("ignore")]


async def test_gyms_check_of_a_chain_accepts_the_answer() -> None:
    answer = await run_request(a_client(), CONFIG, a_body())
    assert_prefix_contiguity(answer["response"])


async def test_gym_builds_the_chain_from_the_token_source() -> None:
    client = a_client()
    await run_request(client, CONFIG, a_body(_ng_rollout_id="t"))
    source = TokenSource(CONFIG, lambda: client)
    assert isinstance(source, GymTokenSource)
    snapshot = await source.freeze("t")
    assert not snapshot.incomplete and len(snapshot.entries) == 2
    built = project_main_chain_response("t", run_builder(list(snapshot.entries)))
    assert_prefix_contiguity(built)
    assert [item[TOKENS[1]] for item in built["output"] if item.get(TOKENS[1])] == [REPLY, LAST]
    assert await source.drop("t", snapshot_id=snapshot.snapshot_id, version=snapshot.version)
