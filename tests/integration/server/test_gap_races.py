"""Retention removes something between two looks of one request: the client is told, and skips nothing."""

from __future__ import annotations

from typing import Any

import pytest
from desk import Api, Clock, OpenServer
from sqlalchemy import Connection

from polar.config import RetentionConfig
from polar.server.retention import gaps
from polar.server.retention.removal import DAY_S, remove_groups
from polar.server.state import Change


@pytest.fixture
async def api(open_server: OpenServer, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Api:
    """Three groups are done; the second goes as soon as a request has been checked."""
    api = await open_server()
    node = await api.register()
    for name in ("a", "b"):
        await api.submit(name)
        await node.report(await node.lease_one())
    await api.results()
    clock.advance(3 * DAY_S)
    await api.submit("c")
    await node.report(await node.lease_one())
    state, check, checked = api.server.state, gaps.check_cursor, list[int]()

    def then_remove(connection: Connection, after: int, **options: Any) -> None:
        check(connection, after, **options)
        if not checked:
            checked.append(after)
            remove_groups(Change(connection, clock(), state.config), RetentionConfig(results_days=1))

    monkeypatch.setattr(gaps, "check_cursor", then_remove)
    return api


async def test_a_page_of_results_has_no_hidden_gap(api: Api) -> None:
    answer = await api.ask("GET", "/v1/results?after=1")
    assert answer.status == 410 and "up to cursor 2" in answer.detail


async def test_nor_has_a_selection(api: Api) -> None:
    answer = await api.ask("POST", "/v1/results/query", json={"after": 1})
    assert answer.status == 410 and "up to cursor 2" in answer.detail


async def test_nor_have_groups(api: Api) -> None:
    answer = await api.ask("POST", "/v1/groups/query", json={"after": 1})
    assert answer.status == 410 and "up to cursor 2" in answer.detail


async def test_who_bears_gaps_reads_on(api: Api) -> None:
    answer = await api.ask("GET", "/v1/results?after=1&allow_gap=true")
    assert [entry["result"]["task_id"] for entry in answer.body["results"]] == ["c"]
