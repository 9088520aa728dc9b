"""`/metrics`, `/healthz` and `/readyz` of the server: who may read them, and what they answer."""

from __future__ import annotations

import pytest
from desk import CONTROL, NODE, Api, OpenServer
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import Connection

from polar.config import ServerConfig
from polar.server.access.tokens import ServiceTokens
from polar.server.serve import RolloutServer
from waiting import until


async def test_metrics_want_a_token(api: Api) -> None:
    node = await api.register()
    for wrong in (None, "", "wrong", NODE, node.credentials.key):
        answer = await api.ask("GET", "/metrics", wrong)
        assert answer.status == 401, wrong
    answer = await api.ask("GET", "/metrics", CONTROL)
    assert answer.status == 200 and answer.headers["Content-Type"].startswith("text/plain; version=")
    names = {family.name for family in text_string_to_metric_families(answer.body.decode())}
    assert {
        "polar_queue_sessions",
        "polar_event_loop_lag_seconds",
        "process_open_fds",
        "polar_build_info",
    } <= names
    assert not [name for name in names if name.endswith("_created")]


async def test_the_metrics_token_opens_the_metrics_and_nothing_else() -> None:
    config = ServerConfig(port=0, database="sqlite://")
    server = RolloutServer(config, control_token=CONTROL, node_token=NODE, metrics_token="metrics-secret")
    async with server, Api(server) as api:
        assert (await api.ask("GET", "/metrics", "metrics-secret")).status == 200
        assert (await api.ask("GET", "/metrics", CONTROL)).status == 200
        for path in ("/v1/overview", "/v1/tasks", "/v1/nodes"):
            assert (await api.ask("GET", path, "metrics-secret")).status == 401


def test_tokens_differ() -> None:
    for metrics in ("control", "node"):
        with pytest.raises(ValueError, match="must differ"):
            ServiceTokens("control", "node", metrics)


async def test_an_operator_opens_the_metrics_or_turns_them_off(open_server: OpenServer) -> None:
    opened = await open_server(metrics="open")
    assert (await opened.ask("GET", "/metrics", None)).status == 200
    off = await open_server(metrics="off")
    assert (await off.ask("GET", "/metrics", CONTROL)).status == 404
    assert (await off.ask("GET", "/readyz", None)).status == 200


async def test_the_page_of_the_api_names_them(api: Api) -> None:
    paths = (await api.get("/openapi.json"))["paths"]
    assert {"/metrics", "/healthz", "/readyz"} <= paths.keys()
    assert "503" in paths["/readyz"]["get"]["responses"]


async def test_a_server_that_cannot_write_lives_and_is_not_ready(api: Api) -> None:
    well = {"ready": True, "checks": {"blobs": "ok", "database": "ok"}}
    assert (await api.ask("GET", "/readyz", None)).body == well

    def read_only(connection: Connection, value: int) -> None:
        connection.exec_driver_sql(f"PRAGMA query_only = {value}")

    await api.server.state.read(read_only, 1)

    async def answer_is(status: int) -> bool:
        return (await api.ask("GET", "/readyz", None)).status == status

    await until(lambda: answer_is(503))
    body = (await api.ask("GET", "/readyz", None)).body
    assert body["ready"] is False and "readonly database" in body["checks"]["database"]
    assert (await api.ask("GET", "/healthz", None)).status == 200
    assert (await api.ask("GET", "/metrics")).status == 200, "reading still works"
    await api.server.state.read(read_only, 0)
    await until(lambda: answer_is(200))
