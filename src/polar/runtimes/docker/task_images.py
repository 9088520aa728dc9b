"""Images that were built from Dockerfiles of tasks: listed with their last use, and removed."""

from __future__ import annotations

import time
from datetime import datetime

import msgspec
import orjson

from polar.runtimes.docker.api import DockerApi
from polar.runtimes.docker.images import REPOSITORY, TASK_LABEL, task_images_dir


class TaskImage(msgspec.Struct, frozen=True):
    name: str
    size_bytes: int
    """With layers that it shares with other images."""
    used_at: float
    in_use: bool
    """By a container, running or not."""


async def task_images(api: DockerApi) -> list[TaskImage]:
    """Only those with the label and the name that Polar gives."""
    filters = orjson.dumps({"label": [TASK_LABEL]}).decode()
    rows = await api.call("GET", "/images/json", query={"filters": filters})
    containers = await api.call("GET", "/containers/json", query={"all": "true"})
    used = {each["ImageID"] for each in containers}
    return [
        TaskImage(name, int(row["Size"]), _used_at(name, row["Created"]), row["Id"] in used)
        for row in rows
        for name in row.get("RepoTags") or ()
        if name == f"{REPOSITORY}:{row['Labels'][TASK_LABEL]}"
    ]


async def remove_task_image(api: DockerApi, name: str) -> None:
    """The Docker Engine refuses if a container uses it."""
    await api.call("DELETE", f"/images/{name}")
    digest = name.partition(":")[2]
    for path in (task_images_dir() / f"{digest}.log", task_images_dir() / f".{digest}.lock"):
        path.unlink(missing_ok=True)


def _used_at(name: str, created: float | str) -> float:
    try:
        return (task_images_dir() / f"{name.partition(':')[2]}.log").stat().st_mtime
    except OSError:
        if isinstance(created, str):  # Podman
            return datetime.fromisoformat(created).timestamp()
        return float(created or time.time())
