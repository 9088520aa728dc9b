"""A real S3-compatible server on loopback for tests: moto's, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ports import port_to_come_back_to
from waiting import blocked_until

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
}


class S3Server:
    def __init__(self, folder: Path) -> None:
        self._port = port_to_come_back_to()
        self._log = folder / "moto.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Also again, at the same address; what it stored is gone then."""
        command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self._port)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **CREDENTIALS})
        blocked_until(self._answers)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def make_bucket(self, name: str) -> None:
        urllib.request.urlopen(urllib.request.Request(f"{self.url}/{name}", method="PUT")).close()

    @property
    def environment(self) -> dict[str, str]:
        return {**CREDENTIALS, "AWS_ENDPOINT_URL": self.url}

    def _answers(self) -> bool:
        assert self._process is not None and self._process.poll() is None, self._log.read_text()
        try:
            urllib.request.urlopen(f"{self.url}/moto-api/").close()
        except urllib.error.HTTPError as error:
            error.close()
            return True
        except OSError:
            return False
        return True


@contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """With its address and credentials in the environment, as an operator would set them."""
    server = S3Server(folder)
    server.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in server.environment.items():
                patch.setenv(name, value)
            yield server
    finally:
        server.stop()
