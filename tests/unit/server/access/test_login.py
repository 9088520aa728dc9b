"""The login's cookie, and who may do what: a table of requests."""

from __future__ import annotations

import time

import httpx
import pytest
from fastapi import Request

from polar.config import ServerConfig
from polar.server.access.login import LOGIN_S, by_https, cookie_name, known_host
from polar.server.access.tokens import ServiceTokens
from polar.server.app import make_app
from polar.server.routes import login as login_routes
from polar.server.state import State

CONTROL = "control-secret"
OWN = {"x-polar-page": "1", "origin": "http://127.0.0.1:8700", "sec-fetch-site": "same-origin"}
COOKIE = "polar_login_8700"


def request_with(**headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    scope = {"type": "http", "scheme": "http", "server": ("127.0.0.1", 1), "path": "/", "headers": raw}
    return Request(scope)


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("127.0.0.1:8700", COOKIE),
        ("polar.example", "polar_login_0"),
        ("[::1]:8700", COOKIE),
        ("a:b", "polar_login_0"),
    ],
)
def test_servers_on_other_ports_have_cookies_of_their_own(host: str, name: str) -> None:
    assert cookie_name(request_with(host=host)) == name


def test_https_is_known_behind_a_proxy_too() -> None:
    assert by_https(request_with(host="polar.example", origin="https://polar.example"))
    assert not by_https(request_with(host="127.0.0.1:8700", origin="http://127.0.0.1:8700"))


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("127.0.0.1:8700", True),
        ("localhost", True),
        ("[::1]:8700", True),
        ("evil.example:8700", False),
        ("", False),
    ],
)
def test_a_foreign_name_is_not_known(host: str, known: bool) -> None:
    assert known_host(request_with(host=host), ("127.0.0.1", "localhost", "[::1]")) is known
    assert known_host(request_with(host=host), ()), "a server that listens elsewhere has any name"


@pytest.fixture
async def browser(monkeypatch: pytest.MonkeyPatch) -> httpx.AsyncClient:
    monkeypatch.setattr(login_routes, "WRONG_TRY_S", 0.0)
    state = await State.open(ServerConfig(database="sqlite://"), time.time)
    app = make_app(state, ServiceTokens(CONTROL, "node-secret"))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8700")


async def logged_in(browser: httpx.AsyncClient) -> httpx.Response:
    answer = await browser.post("/login", json={"token": CONTROL}, headers=OWN)
    assert answer.status_code == 204
    return answer


async def test_the_cookie_is_kept_from_scripts_and_from_other_sites(browser: httpx.AsyncClient) -> None:
    cookie = (await logged_in(browser)).headers["set-cookie"].lower()
    assert cookie.startswith(COOKIE)
    assert all(part in cookie for part in ("httponly", "samesite=strict", "path=/", f"max-age={LOGIN_S}"))
    assert "secure" not in cookie
    secure = OWN | {"origin": "https://127.0.0.1:8700"}
    over_tls = await browser.post("/login", json={"token": CONTROL}, headers=secure)
    assert "secure" in over_tls.headers["set-cookie"].lower()


async def test_a_wrong_token_is_refused_without_being_repeated(browser: httpx.AsyncClient) -> None:
    refused = await browser.post("/login", json={"token": "guessed-secret"}, headers=OWN)
    assert refused.status_code == 401 and "guessed-secret" not in refused.text
    assert "set-cookie" not in refused.headers


async def test_too_many_wrong_tries_are_refused_at_once_and_the_right_one_is_not(
    browser: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_routes, "MOST_WAITING", 0)
    assert (await browser.post("/login", json={"token": "wrong"}, headers=OWN)).status_code == 429
    await logged_in(browser)


GET, POST = "GET /v1/nodes", "POST /v1/tasks/none/cancel"
REQUESTS = [
    # with the cookie, what is asked, which headers change, the status
    (False, GET, {}, 401),
    (True, GET, {}, 200),
    (True, GET, {"x-polar-page": None, "origin": None, "sec-fetch-site": None}, 200),
    (True, GET, {"host": "evil.example"}, 401),
    (True, GET, {"authorization": "Bearer wrong"}, 401),
    (False, GET, {"authorization": f"Bearer {CONTROL}", "host": "proxy.example"}, 200),
    (False, POST, {}, 401),
    (True, POST, {}, 404),
    (True, POST, {"x-polar-page": None}, 403),
    (True, POST, {"origin": None}, 403),
    (True, POST, {"origin": "null"}, 403),
    (True, POST, {"origin": "http://evil.example"}, 403),
    (True, POST, {"origin": "http://127.0.0.1:9999"}, 403),
    (True, POST, {"sec-fetch-site": "same-site"}, 403),
    (True, POST, {"sec-fetch-site": "cross-site"}, 403),
    (True, POST, {"sec-fetch-site": None}, 404),
    (True, POST, {"authorization": f"Bearer {CONTROL}", "origin": None, "x-polar-page": None}, 404),
    (True, "POST /v1/nodes", {}, 401),
    (True, "POST /v1/nodes/n/lease", {}, 401),
    (True, "POST /logout", {}, 204),
    (True, "POST /logout", {"origin": "http://evil.example"}, 403),
    (False, "POST /login", {"origin": "http://evil.example"}, 403),
    (False, "POST /login", {"host": "evil.example", "origin": "http://evil.example"}, 403),
]


@pytest.mark.parametrize(("cookie", "asked", "changes", "status"), REQUESTS)
async def test_who_may_do_what(
    browser: httpx.AsyncClient, cookie: bool, asked: str, changes: dict[str, str | None], status: int
) -> None:
    value = (await logged_in(browser)).cookies[COOKIE]
    browser.cookies.clear()
    headers = OWN | ({"cookie": f"{COOKIE}={value}"} if cookie else {}) | changes
    method, path = asked.split()
    given = {name: text for name, text in headers.items() if text is not None}
    assert (await browser.request(method, path, headers=given)).status_code == status


async def test_a_proxy_of_this_machine_is_a_name_that_the_config_can_add() -> None:
    state = await State.open(ServerConfig(database="sqlite://", names=("polar.example",)), time.time)
    app = make_app(state, ServiceTokens(CONTROL, "node-secret"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="https://polar.example") as browser:
        own = OWN | {"origin": "https://polar.example"}
        assert (await browser.post("/login", json={"token": CONTROL}, headers=own)).status_code == 204
        assert (await browser.get("/v1/nodes")).status_code == 200
