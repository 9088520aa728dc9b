"""The server's own OpenAPI page, fuzzed over real HTTP: nothing a client sends makes the server fail."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from desk import CONTROL, NODE, config_of
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from node_abilities import able
from polar.dashboard.live.pages import dashboard
from polar.server.app import openapi_document
from polar.server.serve import RolloutServer
from polar.types.codec import MSGPACK
from polar.types.packed import PACKED
from waiting import HANG_S

CHECKS = [not_a_server_error, response_schema_conformance, status_code_conformance]
BOUNDED = settings(
    max_examples=30, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None
)


@pytest.fixture(scope="module")
def base_url(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """A server on an event loop of its own: the fuzzer is not asynchronous."""
    folder: Path = tmp_path_factory.mktemp("fuzz")
    config = config_of(f"sqlite:///{folder / 'server.db'}")
    server = RolloutServer(config, control_token=CONTROL, node_token=NODE, pages=dashboard())
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(HANG_S)
    yield server.base_url
    asyncio.run_coroutine_threadsafe(server.stop(), loop).result(HANG_S)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture(scope="module")
def node(base_url: str) -> dict[str, str]:
    """A task that runs, so that the fuzzer finds something, and the credentials of its node."""
    headers = {"Authorization": f"Bearer {CONTROL}"}
    task = {"task_id": "add", "instruction": "x", "num_samples": 3, "group_id": "g"}
    assert requests.post(f"{base_url}/v1/tasks", json=task, headers=headers, timeout=HANG_S).status_code == 201
    headers = {"Authorization": f"Bearer {NODE}"}
    registration = {"name": "one", "slots": 1, "abilities": able().model_dump(mode="json")}
    answer = requests.post(f"{base_url}/v1/nodes", json=registration, headers=headers, timeout=HANG_S)
    return answer.json()


# Without the event stream, which has no end.
schema = schemathesis.openapi.from_dict(openapi_document(dashboard())).exclude(path="/v1/events")


@schemathesis.serializer(MSGPACK, PACKED)
def noise(_: schemathesis.SerializationContext, value: Any) -> Any:
    """The fuzzer knows the body as bytes, and hands them over wrapped."""
    return value if isinstance(value, bytes) else bytes(getattr(value, "data", None) or str(value).encode())


def tamed(case: schemathesis.Case, node: dict[str, str]) -> None:
    """Long polls would take as long as they may, and a node route is interesting only for a node that is there."""
    if isinstance(case.query, dict) and "wait_s" in case.query:
        case.query["wait_s"] = 0
    if isinstance(case.body, dict) and "wait_s" in case.body:
        case.body["wait_s"] = 0
    if isinstance(case.body, dict) and "room" in case.body:
        case.body.setdefault("wait_s", 0)
    if isinstance(case.path_parameters, dict) and "node_id" in case.path_parameters and case.method != "DELETE":
        case.path_parameters["node_id"] = node["node_id"]


def token_for(case: schemathesis.Case, node: dict[str, str]) -> str:
    if "node_id" in str(case.operation.path):
        return node["key"]
    return NODE if (case.method, case.operation.path) == ("POST", "/v1/nodes") else CONTROL


@schema.parametrize()
@BOUNDED
def test_nothing_makes_the_server_fail(case: schemathesis.Case, base_url: str, node: dict[str, str]) -> None:
    tamed(case, node)
    headers = {"Authorization": f"Bearer {token_for(case, node)}"}
    case.call_and_validate(base_url=base_url, headers=headers, checks=CHECKS, timeout=HANG_S)
