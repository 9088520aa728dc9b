"""What tests of containers share: an image of this machine's own programs, and its processes seen from outside."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson

from polar.runtimes.base import Command
from polar.runtimes.docker.api import connected
from polar.runtimes.docker.runtime import DockerRuntime

PROGRAMS = """
    bash cat chmod cp dd echo env false head id ls ln mkdir mkfifo mv printf pwd rm seq setsid sh sleep stat tail
    touch tr true truncate wc
""".split()
PASSWD = b"root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\n"

StartDocker = Callable[..., Awaitable[DockerRuntime]]


def sh(script: str, **env: str) -> Command:
    return Command(argv=("sh", "-c", script), env=env)


async def containers(**labels: str) -> list[dict[str, Any]]:
    """Containers with these `polar.` labels, running or not."""
    filters = orjson.dumps({"label": [f"polar.{name}={value}" for name, value in labels.items()]}).decode()
    async with connected() as api:
        return await api.call("GET", "/containers/json", query={"all": "true", "filters": filters})


def processes_in(container_id: str) -> list[str]:
    """Processes in a container, except its init and the one that keeps it alive."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                of_container = container_id in (entry / "cgroup").read_text()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if of_container and state not in "ZX" and "tail -f /dev/null" not in words:
                found.append(words)
    return found


async def container_of(runtime: DockerRuntime) -> str:
    told = await runtime.exec(sh("echo $POLAR_SESSION"))
    (row,) = await containers(session=told.stdout_tail.strip())
    return row["Id"]


def root_tar() -> io.BytesIO:
    files: dict[str, str] = {}
    for program in PROGRAMS:
        found = shutil.which(program, path="/usr/bin:/bin")
        assert found is not None, program
        files[f"bin/{program}"] = os.path.realpath(found)
        libraries = subprocess.run(["ldd", found], capture_output=True, text=True).stdout
        files |= {path.lstrip("/"): os.path.realpath(path) for path in re.findall(r"(/\S+) \(0x", libraries)}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, mode in {"tmp": 0o1777, "etc": 0o755, "testbed": 0o755, "testbed/src": 0o755}.items():
            tar.addfile(_entry(name, tarfile.DIRTYPE, mode))
        for name, content in {"etc/passwd": PASSWD, "testbed/src/code.py": b"1\n"}.items():
            entry = _entry(name, tarfile.REGTYPE, 0o644)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
        for name, path in sorted(files.items()):
            entry = _entry(name, tarfile.REGTYPE, 0o755)
            entry.size = os.path.getsize(path)
            with open(path, "rb") as file:
                tar.addfile(entry, file)
    packed.seek(0)
    return packed


def _entry(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = kind, mode
    return entry
