"""A real Prometheus on loopback that scrapes as the shipped example says, and what a test asks it."""

from __future__ import annotations

import asyncio
import math
import shutil
import subprocess
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from ports import port_to_come_back_to
from waiting import HANG_S, until

DEPLOY = Path(__file__).parents[3] / "deploy"


class Prometheus:
    def __init__(self, folder: Path, token_file: Path, targets: dict[str, list[str]]) -> None:
        """`targets`: the addresses of each job."""
        program = shutil.which("prometheus")
        if program is None:
            pytest.skip("prometheus is missing: apt-get install prometheus")
        folder.mkdir()
        config: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
        config["global"]["scrape_interval"] = "1s"
        config["rule_files"] = [str(DEPLOY / "prometheus" / name) for name in config["rule_files"]]
        assert {job["job_name"] for job in config["scrape_configs"]} == targets.keys()
        for job in config["scrape_configs"]:
            job["static_configs"] = [{"targets": targets[job["job_name"]]}]
            job["authorization"]["credentials_file"] = str(token_file)
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        address = f"127.0.0.1:{port_to_come_back_to()}"
        self._url = f"http://{address}"
        options = {"config.file": folder / "prometheus.yml", "storage.tsdb.path": folder / "data"}
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [program, f"--web.listen-address={address}", *(f"--{n}={v}" for n, v in options.items())],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(HANG_S)

    async def until_it_scrapes(self, count: int) -> None:
        """So many targets."""
        await until(lambda: self._counts(count), pause_s=0.2)

    async def _counts(self, count: int) -> bool:
        try:
            return await self.value("sum(up)") == count
        except (aiohttp.ClientConnectorError, aiohttp.ContentTypeError):  # 503 as plain text while it starts
            assert self._process.poll() is None, self.log.read_text()
            return False

    async def ask(self, path: str, **parameters: str) -> Any:
        async with (
            aiohttp.ClientSession() as http,
            http.get(f"{self._url}/api/v1/{path}", params=parameters) as got,
        ):
            body = await got.json()
            assert body["status"] == "success", body
            return body["data"]

    async def query(self, expression: str) -> list[dict[str, Any]]:
        """Samples that are numbers, each with its labels."""
        found = (await self.ask("query", query=expression))["result"]
        values = [{"labels": one["metric"], "value": float(one["value"][1])} for one in found]
        return [one for one in values if not math.isnan(one["value"])]

    async def value(self, expression: str) -> float | None:
        found = await self.query(expression)
        return found[0]["value"] if len(found) == 1 else None

    async def without_data(self, expressions: list[str]) -> list[str]:
        found = await asyncio.gather(*map(self.query, expressions))
        return [expression for expression, samples in zip(expressions, found, strict=True) if not samples]
