"""A run as pages: the list, a session, search over all of them; only for this machine."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import httpx
import pytest

from polar.dashboard.site import ViewerSite
from polar.dashboard.source import RunSource
from polar.store.paths import RunPaths
from viewed_session import Conversation, forked, store


def browser_of(run: RunPaths) -> httpx.AsyncClient:
    app = ViewerSite(RunSource(run), lambda ids: "".join(map(chr, ids))).app()
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:1")


@pytest.fixture
async def browser(tmp_path: Path) -> httpx.AsyncClient:
    other = Conversation("add-1")
    other.say("<find the Needle here>", "no")
    run = await store(tmp_path, forked(), other)
    return browser_of(run)


async def test_the_list_has_every_session(browser: httpx.AsyncClient) -> None:
    page = await browser.get("/")
    assert page.status_code == 200
    assert '"session_id":"add-0"' in page.text and '"session_id":"add-1"' in page.text


async def test_a_session_has_its_page(browser: httpx.AsyncClient) -> None:
    page = await browser.get("/sessions/add-0")
    assert page.status_code == 200 and "<title>session add-0" in page.text
    assert page.headers["content-security-policy"] == "frame-ancestors 'none'"


async def test_two_sessions_are_compared(browser: httpx.AsyncClient) -> None:
    page = await browser.get(
        "/compare", params={"left": "add-0", "right": "add-1", "right_builder": "per_request"}
    )
    assert page.status_code == 200 and "<title>add-0 and add-1 compared" in page.text
    assert '"builders":["per_request","prefix_merging","tree"]' in page.text


@pytest.mark.parametrize(
    "sides",
    [
        {"left": "add-0", "right": "other-9"},
        {"left": "add-0"},
        {"left": "add-0", "right": "add-1", "left_builder": "os:system"},
    ],
)
async def test_what_cannot_be_compared_is_not_found(browser: httpx.AsyncClient, sides: dict[str, str]) -> None:
    """An address names no module to import."""
    assert (await browser.get("/compare", params=sides)).status_code == 404


async def test_an_unknown_session_is_not_found(browser: httpx.AsyncClient) -> None:
    assert (await browser.get("/sessions/other-9")).status_code == 404


async def test_a_session_that_cannot_be_read_is_refused_with_the_reason(tmp_path: Path) -> None:
    run = await store(tmp_path, forked())
    with contextlib.closing(sqlite3.connect(run.journal)) as journal:
        journal.execute("update sessions set lease = '{}'")
        journal.commit()
    async with browser_of(run) as browser:
        refused = await browser.get("/sessions/add-0")
    assert refused.status_code == 500 and "polar audit" in refused.text


async def test_search_goes_over_all_sessions(browser: httpx.AsyncClient) -> None:
    answer = (await browser.get("/search", params={"q": "needle"})).json()
    assert answer == {
        "hits": [{"session_id": "add-1", "call": 1, "text": ["<find the ", "Needle", " here>"]}],
        "more": False,
    }
    assert (await browser.get("/search")).json()["hits"] == []


async def test_a_name_of_another_site_is_refused(browser: httpx.AsyncClient) -> None:
    refused = await browser.get("/", headers={"host": "evil.example"})
    assert refused.status_code == 400
