"""A printed address opens the pages once; the browser that used it keeps a cookie."""

from __future__ import annotations

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from polar.dashboard.access import CODE_S, CodesRequired, OneTimeCodes


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def _page(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"the page {request.url.query}")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def codes(clock: Clock) -> OneTimeCodes:
    return OneTimeCodes(clock)


def a_browser(codes: OneTimeCodes) -> httpx.AsyncClient:
    app = CodesRequired(Starlette(routes=[Route("/{path:path}", _page)]), codes)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8123")


async def test_a_code_becomes_a_cookie_and_leaves_the_address(codes: OneTimeCodes) -> None:
    async with a_browser(codes) as browser:
        answer = await browser.get(codes.address("/compare?left=a&right_builder="))
        assert (answer.status_code, answer.headers["location"]) == (303, "/compare?left=a&right_builder=")
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("polar_view_8123=") and "HttpOnly" in cookie and "SameSite=strict" in cookie
        assert (await browser.get(answer.headers["location"])).text == "the page left=a&right_builder="


async def test_a_code_is_good_once(codes: OneTimeCodes) -> None:
    address = codes.address("/")
    async with a_browser(codes) as first, a_browser(codes) as second:
        assert (await first.get(address)).status_code == 303
        refused = await second.get(address)
        assert refused.status_code == 403 and "Press Enter in the terminal" in refused.text
        again = await first.get(address)
        assert (again.status_code, "set-cookie" in again.headers) == (303, False), "a page that is loaded again"


async def test_a_code_that_is_not_used_ends(codes: OneTimeCodes, clock: Clock) -> None:
    address = codes.address("/")
    clock.now = CODE_S + 1
    async with a_browser(codes) as browser:
        assert (await browser.get(address)).status_code == 403


@pytest.mark.parametrize("address", ["/", "/sessions/a", "/?code=", "/?code=guess"])
async def test_without_cookie_and_code_nothing_is_read(codes: OneTimeCodes, address: str) -> None:
    codes.address("/")
    async with a_browser(codes) as browser:
        browser.cookies.set("polar_view_8123", "guess")
        assert (await browser.get(address)).status_code == 403


async def test_an_address_leads_to_no_other_host(codes: OneTimeCodes) -> None:
    async with a_browser(codes) as browser:
        answer = await browser.get("http://127.0.0.1:8123" + codes.address("//evil.example/"))
        assert answer.headers["location"] == "/evil.example/"
