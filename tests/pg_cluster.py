"""A PostgreSQL cluster for the tests, made and removed by them."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import psycopg

from waiting import blocked_until

ENDS_WITH_ITS_PARENT = ("setpriv", "--pdeathsig", "QUIT")
"""A test run that is killed leaves no server behind."""


class Postgres:
    """A cluster of its own in a temporary folder, reached by its Unix socket."""

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self._user = "postgres" if os.geteuid() == 0 else None  # PostgreSQL refuses to run as root
        self.folder = Path(tempfile.mkdtemp(prefix="polar-pg-"))
        self._numbers = itertools.count(1)
        self._server: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self._user:
            shutil.chown(self.folder, self._user)
        data = str(self.folder / "data")
        self._run(
            "initdb", "-D", data, "-A", "trust", "-U", "postgres", "--no-sync", "--no-instructions", "-E", "UTF8"
        )
        settings = {"listen_addresses": "", "fsync": "off", "max_connections": "50"}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("wb") as log:
            self._server = subprocess.Popen(
                [*ENDS_WITH_ITS_PARENT, str(self._programs / "postgres"), "-D", data, "-k", self.folder, *options],
                user=self._user,
                cwd="/",
                stdout=log,
                stderr=log,
            )
        blocked_until(self._answers)

    def stop(self) -> None:
        if self._server is not None:
            self._server.send_signal(signal.SIGQUIT)
            self._server.wait()
        shutil.rmtree(self.folder)

    def _answers(self) -> bool:
        assert self._server is not None and self._server.poll() is None, (self.folder / "log").read_text()
        try:
            self.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def new_database(self) -> str:
        """A schema of its own is as good as a database of its own, and made in no time."""
        name = f"polar_{next(self._numbers)}"
        self.execute(f"CREATE SCHEMA {name}")
        return f"postgresql+psycopg://postgres@/postgres?host={self.folder}&options=-csearch_path%3D{name}"

    def execute(self, statement: str) -> None:
        with psycopg.connect(
            host=str(self.folder), user="postgres", dbname="postgres", autocommit=True
        ) as connection:
            connection.execute(statement.encode())

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self._programs / program), *arguments],
            user=self._user,
            cwd="/",
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
