"""A browser at the dashboard of a real rollout server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chromium import Chromium
from fake_node import CONTROL, Service
from polar.dashboard.live.pages import dashboard
from polar.types import Spec
from waiting import blocked_until

PAGES = ("/", "/sessions", "/groups", "/nodes", "/training", "/log", "/actions")
READY = "document.body && document.body.dataset.ready === '1'"


def dashboard_service(folder: Path) -> Service:
    """Its tokens are characters."""
    return Service(folder, pages=dashboard(Spec(name="viewed_session:CharacterRenderer"))).start()


class Visitor:
    """A person who looks at the dashboard."""

    def __init__(self, browser: Chromium, service: Service) -> None:
        self.browser = browser
        self.service = service
        browser.driver.get("about:blank")
        browser.driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
        browser.complaints()

    def log_in(self, path: str = "/", token: str = CONTROL) -> None:
        self.browser.open(self.service.url + path)
        self.sees("document.getElementById('token')")
        self.type_token(token)
        self.sees(READY)

    def type_token(self, token: str) -> None:
        self.browser.driver.execute_script("document.getElementById('token').value = ''")
        self.browser.driver.find_element("id", "token").send_keys(token + "\n")

    def go(self, path: str) -> None:
        self.browser.open(self.service.url + path)
        self.sees(READY)

    def sees(self, expression: str) -> Any:
        """Waits until the expression holds."""
        return blocked_until(lambda: self.browser.ask(expression))

    def ask(self, expression: str) -> Any:
        return self.browser.ask(expression)

    def text(self, selector: str) -> str:
        return self.ask(f"document.querySelector({selector!r}).innerText")

    def reads(self, selector: str, text: str) -> None:
        """Waits until the text stands there."""
        self.sees(f"(e => e && e.innerText.includes({text!r}))(document.querySelector({selector!r}))")

    def click(self, selector: str) -> None:
        self.sees(f"document.querySelector({selector!r})")
        self.browser.driver.execute_script(f"document.querySelector({selector!r}).click()")

    def choose(self, selector: str, value: str) -> None:
        change = "new Event('change', {bubbles: true})"
        self.browser.driver.execute_script(
            f"const e = document.querySelector({selector!r}); e.value = {value!r}; e.dispatchEvent({change});"
        )

    def complaints(self) -> list[str]:
        return self.browser.complaints()
