"""The dashboard's routes: who is let in, which headers a page has, and that it names no other host."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator

import httpx
import pytest

from polar.config import ServerConfig
from polar.dashboard.live.pages import PAGES, dashboard, own_path
from polar.dashboard.live.transcript import fits
from polar.server.access.tokens import ServiceTokens
from polar.server.app import make_app, openapi_document
from polar.server.records import tasks
from polar.server.state import State
from polar.types import TaskRequest
from viewed_session import HOSTILE, forked

OWN = {"x-polar-page": "1", "origin": "http://127.0.0.1:8700", "sec-fetch-site": "same-origin"}


@pytest.fixture
async def stranger() -> AsyncIterator[httpx.AsyncClient]:
    """A browser that has not logged in, at a server with one task."""
    state = await State.open(ServerConfig(database="sqlite://"), time.time)
    await state.change(tasks.submit, TaskRequest(task_id="add", instruction=HOSTILE))
    app = make_app(state, ServiceTokens("control-secret", "node-secret"), dashboard())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8700") as browser:
        yield browser
    await state.close()


@pytest.fixture
async def browser(stranger: httpx.AsyncClient) -> httpx.AsyncClient:
    await stranger.post("/login", json={"token": "control-secret"}, headers=OWN)
    return stranger


async def test_a_stranger_is_led_to_the_login_and_back(stranger: httpx.AsyncClient) -> None:
    for path in (*PAGES, "/sessions/add-0", "/sessions/none"):
        answer = await stranger.get(path, params={"a": "b c"})
        assert answer.status_code == 303
        assert answer.headers["location"].startswith("/login?next=%2F") and "a%3Db" in answer.headers["location"]


async def test_every_page_has_a_strict_policy_and_is_not_kept(browser: httpx.AsyncClient) -> None:
    for path in (*PAGES, "/sessions/add-0", "/compare?left=add-0&right=add-0"):
        page = await browser.get(path)
        assert page.status_code == 200, path
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy and "http" not in policy
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["cache-control"] == "no-store"
        assert page.headers["referrer-policy"] == "no-referrer"


async def test_no_page_names_another_host_or_writes_markup(browser: httpx.AsyncClient) -> None:
    for path in (*PAGES, "/sessions/add-0"):
        page = (await browser.get(path)).text
        assert set(re.findall(r"https?://[\w.]+", page)) <= {"http://www.w3.org"}, path
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", page)
        assert not re.search(r"<[^>]* on\w+=", page)
        assert HOSTILE not in page


async def test_the_token_is_in_no_page(browser: httpx.AsyncClient) -> None:
    for path in PAGES:
        assert "control-secret" not in (await browser.get(path)).text


async def test_a_foreign_name_is_refused_with_the_setting_that_allows_it(browser: httpx.AsyncClient) -> None:
    for path in ("/", "/login"):
        refused = await browser.get(path, headers={"host": "evil.example"})
        assert refused.status_code == 421 and "server.names" in refused.text


async def test_an_unknown_session_is_not_found(browser: httpx.AsyncClient) -> None:
    assert (await browser.get("/sessions/none")).status_code == 404


@pytest.mark.parametrize(
    ("wanted", "path"),
    [
        ("/", "/"),
        ("/sessions?stage=QUEUED&text=a", "/sessions?stage=QUEUED&text=a"),
        ("/?x=1", "/?x=1"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example", "/"),
        ("/a\r\nSet-Cookie: x=1", "/"),
        ("", "/"),
    ],
)
def test_a_login_leads_only_to_pages_of_this_server(wanted: str, path: str) -> None:
    assert own_path(wanted) == path


def test_pages_and_login_are_part_of_the_api() -> None:
    paths = openapi_document(dashboard())["paths"]
    assert {*PAGES, "/login", "/logout", "/sessions/{session_id}", "/v1/overview"} <= paths.keys()


def test_the_words_of_another_model_are_not_shown() -> None:
    talk = forked()
    talk.say("<more>", "a reply that is long enough")
    assert fits(lambda ids: "".join(map(chr, ids)), talk.calls)
    assert not fits(lambda ids: "".join(chr(each + 1) for each in ids), talk.calls)
    assert fits(lambda ids: "", []), "nothing to compare"


@pytest.mark.parametrize(
    ("query", "status"),
    [("left=add-0&right=none", 404), ("left=add-0", 422), ("left=add-0&right=add-0&left_builder=os:path", 422)],
)
async def test_a_comparison_needs_two_sessions_and_built_in_builders(
    browser: httpx.AsyncClient, query: str, status: int
) -> None:
    assert (await browser.get(f"/compare?{query}")).status_code == status
