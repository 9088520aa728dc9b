"""A list of sessions looks at a bounded number of those that have ended, and says so; on SQLite and PostgreSQL."""

from __future__ import annotations

from typing import Any

import pytest
from desk import Desk

from polar.server.overview import ended_sessions, session_list
from polar.types import Score, SessionFilter, SessionListPage


@pytest.fixture
def looks_at_three(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ended_sessions, "LOOKED", 3)


async def listed(desk: Desk, before: int | None = None, limit: int = 100, **wanted: Any) -> SessionListPage:
    return await desk.state.read(session_list.page, SessionFilter.model_validate(wanted), before, limit)


async def all_pages(desk: Desk, **wanted: Any) -> list[SessionListPage]:
    pages = [await listed(desk, **wanted)]
    while (before := pages[-1].before) is not None:
        pages.append(await listed(desk, before, **wanted))
    return pages


async def add_ended(desk: Desk, *task_ids: str, reward: float = 1.0, **fields: Any) -> None:
    node = await desk.register()
    for task_id in task_ids:
        await desk.submit(task_id, **fields)
        await desk.report(node, await desk.lease_one(node), score=Score(reward=reward))


@pytest.mark.usefixtures("looks_at_three")
@pytest.mark.parametrize("wanted", [{"text": "odd"}, {"reward_at_most": 0.5}])
async def test_what_has_no_index_is_looked_for_page_by_page(desk: Desk, wanted: dict[str, Any]) -> None:
    await add_ended(desk, "odd-1", reward=0.0)
    await add_ended(desk, "a", "b", "c")
    await add_ended(desk, "odd-2", reward=0.0)
    await add_ended(desk, "d", "e", "f")
    pages = await all_pages(desk, **wanted)
    found = [[row.task_id for row in page.sessions] for page in pages]
    assert found == [[], ["odd-2"], ["odd-1"]]
    assert [page.looked for page in pages] == [3, 3, None]


@pytest.mark.usefixtures("looks_at_three")
async def test_open_sessions_keep_their_place_among_those_that_were_looked_at(desk: Desk) -> None:
    await desk.submit("odd-old", priority=-1)
    await add_ended(desk, "a", "b", "c", "odd-new")
    await desk.submit("odd-open")
    found = [[row.task_id for row in page.sessions] for page in await all_pages(desk, text="odd")]
    assert found == [["odd-open", "odd-new"], ["odd-old"]]


@pytest.mark.usefixtures("looks_at_three")
async def test_a_full_page_is_just_full(desk: Desk) -> None:
    await add_ended(desk, "odd-1", "odd-2", "a", "b", "odd-3", "odd-4", "odd-5")
    page = await listed(desk, limit=2, text="odd")
    assert ([row.task_id for row in page.sessions], page.looked) == (["odd-5", "odd-4"], None)


@pytest.mark.usefixtures("looks_at_three")
async def test_of_several_filters_the_rarest_is_followed(desk: Desk) -> None:
    await add_ended(desk, "rare", harness="other")
    await add_ended(desk, "a", "b", "c", "d", "e", harness="shell")
    both: list[dict[str, Any]] = [{"stage": "COMPLETED", "harness": "other"}, {"harness": "other", "text": "r"}]
    for wanted in both:
        page = await listed(desk, **wanted)
        assert ([row.task_id for row in page.sessions], page.before, page.looked) == (["rare"], None, None)


@pytest.mark.usefixtures("looks_at_three")
async def test_a_single_filter_finds_everything(desk: Desk) -> None:
    await add_ended(desk, "a", "b", "c", "d", "e", harness="shell")
    single: list[dict[str, Any]] = [{}, {"stage": "COMPLETED"}, {"harness": "shell"}]
    for wanted in single:
        page = await listed(desk, **wanted)
        assert (len(page.sessions), page.looked) == (5, None)
