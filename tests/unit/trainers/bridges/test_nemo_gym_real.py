"""NeMo Gym's own types and server on the runs of the bridge. Collected where it is installed."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest
from fastapi.testclient import TestClient
from nemo_gym.openai_utils import NeMoGymResponse
from stored_calls import LAST, REPLY
from stored_groups import StoredClient, a_group
from test_nemo_gym_bridge import CONFIG, TOKENS, a_body, a_client

from polar.errors import PolarError
from polar.trainers.bridges.config import BridgeConfig
from polar.trainers.bridges.nemo_gym import agent_class, run_request

pytestmark = [pytest.mark.check, pytest.mark.filterwarnings("ignore")]


def served(monkeypatch: pytest.MonkeyPatch, client: StoredClient) -> TestClient:
    """The agent's own web application."""
    monkeypatch.setattr(BridgeConfig, "client", lambda _: client)
    made = agent_class()
    config_type = made.model_fields["config"].annotation
    config = config_type(
        name="polar", host="127.0.0.1", port=1, entrypoint="app.py", polar={"task": {"harness": "pi"}}
    )
    agent = made.model_construct(config=config, server_client=MagicMock(global_config_dict={}))
    return TestClient(agent.setup_webserver())


async def test_gym_reads_the_answer_with_token_ids_on_its_items() -> None:
    answer = await run_request(a_client(), CONFIG, a_body())
    response = NeMoGymResponse.model_validate(answer["response"])
    trained = [item for item in response.output if hasattr(item, "generation_token_ids")]
    assert [item.generation_token_ids for item in trained] == [REPLY, LAST]


def test_the_agent_server_answers_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    client = a_client()
    with served(monkeypatch, client) as http:
        reply = http.post("/run", json=a_body(_ng_rollout_id="3-1", polar={"files": {"a": "b"}}))
    assert reply.status_code == 200, reply.text
    answer = reply.json()
    assert answer["reward"] == 0.5
    assert (client.submitted[0].group_id, client.submitted[0].files) == ("3-1", {"a": "b"})
    trained = [item for item in answer["response"]["output"] if item.get(TOKENS[1])]
    assert [item["generation_token_ids"] for item in trained] == [REPLY, LAST]


def test_a_failed_run_is_an_answer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(monkeypatch, StoredClient(a_group("t", None))) as http:
        lost = http.post("/run", json=a_body())
    assert (lost.status_code, lost.json()["_ng_failure_class"]) == (200, "polar_infrastructure")

    class Away(StoredClient):
        async def submit_many(self, tasks: Any) -> Any:
            raise PolarError("no server")

    with served(monkeypatch, Away()) as http:
        away = http.post("/run", json=a_body())
    assert (away.status_code, away.json()["_ng_failure_class"]) == (200, "polar_server")
