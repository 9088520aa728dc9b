"""NeMo Gym's own types and server on the runs of the bridge. Collected where it is installed."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any
from unittest.mock import MagicMock

import aiohttp
import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient
from nemo_gym.global_config import GlobalConfigDictParser, GlobalConfigDictParserConfig
from nemo_gym.openai_utils import NeMoGymResponse
from omegaconf import DictConfig, OmegaConf
from pydantic import ValidationError
from stored_calls import LAST, REPLY
from stored_groups import StoredClient, a_group
from test_environment_examples import AGENT, GYM, gym_rows
from test_nemo_gym_bridge import CONFIG, TOKENS, a_body, a_client, an_untaught_client

from polar.errors import PolarError
from polar.trainers.bridges.config import BridgeConfig
from polar.trainers.bridges.nemo_gym import agent_class, run_request
from waiting import until

pytestmark = [pytest.mark.check, pytest.mark.filterwarnings("ignore")]
PARTS = [
    {"role": "developer", "content": "Be brief.", "type": "message"},
    {"role": "user", "content": [{"type": "input_text", "text": "Do it."}], "type": "message"},
]


def application(
    monkeypatch: pytest.MonkeyPatch, client: StoredClient, gym: dict[str, Any] | None = None, **fields: Any
) -> FastAPI:
    """The agent's own web application. `gym`: Gym's global configuration. `fields`: of the agent's."""
    monkeypatch.setattr(BridgeConfig, "client", lambda _: client)
    made = agent_class()
    config_type = made.model_fields["config"].annotation
    values = {"host": "127.0.0.1", "port": 1, "entrypoint": "app.py", "polar": {"task": {"harness": "pi"}}}
    config = config_type(name="polar", **(values | fields))
    return made.model_construct(
        config=config, server_client=MagicMock(global_config_dict=gym or {})
    ).setup_webserver()


def served(
    monkeypatch: pytest.MonkeyPatch, client: StoredClient, gym: dict[str, Any] | None = None, **fields: Any
) -> TestClient:
    return TestClient(application(monkeypatch, client, gym, **fields))


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


def test_a_prompt_of_parts_after_a_developers_message_is_the_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    client = a_client()
    body = a_body()
    body["responses_create_params"]["input"] = PARTS
    with served(monkeypatch, client) as http:
        assert http.post("/run", json=body).status_code == 200
    assert client.submitted[0].instruction == "Be brief.\n\nDo it."


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


def test_a_wrong_row_does_not_end_the_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gym's `raise_for_status` ends the collection of all rows at any other status."""
    with served(monkeypatch, a_client()) as http:
        reply = http.post("/run", json=a_body(polar={"file": {"a": "b"}}))
    assert reply.status_code == 200, reply.text
    answer = reply.json()
    assert (answer["_ng_failure_class"], answer["_ng_failure_terminal"]) == ("polar_row", True)
    assert "polar.file" in answer["error"]


def test_a_masked_answer_passes_gyms_types(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(monkeypatch, an_untaught_client()) as http:
        answer = http.post("/run", json=a_body()).json()
    assert answer["reward"] == 0.0 and "_ng_failure_class" not in answer
    assert answer["mask_sample"] and answer["instance_config"] == {"mask_sample": True}


def test_a_wrong_configuration_is_an_error_when_the_server_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationError, match="ulr"):
        served(monkeypatch, a_client(), polar={"ulr": "http://127.0.0.1:8700"})


@asynccontextmanager
async def listening(app: FastAPI) -> AsyncGenerator[str]:
    """The application in a real web server, as Gym runs it."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=1))
    serving = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(20):
            await until(lambda: server.started)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


async def test_a_collection_that_stops_cancels_its_sessions_at_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    under_way = asyncio.Event()
    cancelled = asyncio.Event()

    class Long(StoredClient):
        async def groups(self, **_: Any) -> AsyncGenerator[Any]:  # type: ignore[override]
            under_way.set()
            await asyncio.Event().wait()
            yield

        async def cancel_task(self, task_id: str) -> int:
            cancelled.set()
            return await super().cancel_task(task_id)

    client = Long(a_group("t", 1.0))
    async with listening(application(monkeypatch, client)) as url, aiohttp.ClientSession() as http:
        asking = asyncio.create_task(http.post(f"{url}/run", json=a_body()))
        async with asyncio.timeout(20):
            await under_way.wait()
            asking.cancel()
            with suppress(asyncio.CancelledError):
                await asking
            await cancelled.wait()
    assert client.cancelled == ["t"]


def test_gym_reads_the_example_and_serves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `gym env start` does it from the example's folder."""
    monkeypatch.chdir(GYM)
    monkeypatch.syspath_prepend(AGENT)
    path = str((AGENT / "configs/polar_agent.yaml").relative_to(GYM))
    start = GlobalConfigDictParserConfig(
        initial_global_config_dict=DictConfig({"config_paths": [path]}), skip_load_from_cli=True
    )
    parsed = GlobalConfigDictParser().parse(start)
    made = importlib.import_module("app").PolarAgent
    server: Any = OmegaConf.to_container(parsed.polar_agent.responses_api_agents.polar_agent, resolve=True)
    config = made.model_fields["config"].annotation.model_validate({**server, "name": "polar_agent"})
    client = a_client()
    monkeypatch.setattr(BridgeConfig, "client", lambda _: client)
    agent = made.model_construct(config=config, server_client=MagicMock(global_config_dict=parsed))
    with TestClient(agent.setup_webserver()) as http:
        answer = http.post("/run", json=gym_rows()[1]).json()
    assert answer["reward"] == 0.5
    (task,) = client.submitted
    assert task.files == {"x.txt": "kept\n"} and task.budgets.max_calls == 6 and task.harness.name == "pi"
