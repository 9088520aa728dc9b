"""A real Chromium without a screen, driven by chromedriver. A test that needs it names it: `chromium` is a
fixture."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

HOW = "scripts/need.sh chromium chromium chromedriver chromium-driver"
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-quic", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)


@contextmanager
def started_chromium(width: int = 1300, height: int = 900) -> Iterator[Chromium]:
    """Skips the test where a program is missing; CI has both."""
    from selenium import webdriver

    programs = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in programs:
        pytest.skip(f"Chromium with chromedriver is not here: {HOW}")
    options = webdriver.ChromeOptions()
    options.binary_location = str(programs[0])
    for flag in (*FLAGS, f"--window-size={width},{height}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(programs[1])))
    try:
        yield Chromium(driver)
    finally:
        driver.quit()


class Chromium:
    """What a test does with it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, page: Path | str) -> None:
        self.driver.get("about:blank")  # an address that differs in its # alone would not load the page again
        self.driver.get(str(page) if str(page).startswith(("http:", "file:")) else Path(page).as_uri())

    def ask(self, expression: str) -> Any:
        return self.driver.execute_script(f"return {expression}")

    def press(self, keys: str) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(keys).perform()

    def complaints(self) -> list[str]:
        """What the console has, such as errors and violations of the page's policy."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def look(self, *, width: int, height: int = 900, dark: bool = False) -> None:
        """The size of the window, and the scheme that the user prefers."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
