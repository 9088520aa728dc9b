"""Where the sessions of a Harbor folder run: its image, built or named, or a runtime that stands in for it."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec

from polar import registry
from polar.data.harbor.table import HarborTable
from polar.data.harbor.task_toml import MIB, FolderRefused, TaskToml
from polar.errors import PolarError
from polar.runtimes.docker.dockerfile import instructions
from polar.runtimes.docker.options import Capability
from polar.runtimes.options import RuntimeOptions

COMPOSE = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml", "singularity-compose.yaml")
ROOT = ("root", "0", 0)
WITHOUT_EFFECT = frozenset({"", "FROM", "WORKDIR", "COPY", "LABEL", "CMD", "ENTRYPOINT", "EXPOSE", "MAINTAINER"})
"""Instructions that change nothing a stand-in lacks, or that it does itself."""


class FolderSurroundings(msgspec.Struct, frozen=True):
    """What a task's dict has about where it runs."""

    runtime: dict[str, Any]
    workspace: dict[str, Any] | None = None
    not_enforced: tuple[str, ...] = ()
    """Limits of the folder that the runtime cannot enforce."""
    own_root: bool = False
    """Whether /tests and /logs can be made."""
    missing_path: str | None = None
    """The working folder of the image, if the runtime has its workspace elsewhere."""
    of_verifier: dict[str, Any] = {}
    """Options in which the verifier's runtime differs from the session's; None removes one."""


def surroundings_of(folder: Path, toml: TaskToml, table: HarborTable) -> FolderSurroundings:
    """Raises `FolderRefused`."""
    environment = folder / "environment"
    if compose := next((name for name in COMPOSE if (environment / name).exists()), None):
        raise FolderRefused(f"environment/{compose}: Polar starts one container per session, not several")
    if (folder / "tests" / "Dockerfile").exists():
        raise FolderRefused("tests/Dockerfile: its verifier has an image of its own, which Polar does not build")
    model = registry.find("runtime", table.runtime.name).Options
    builds = "build" in model.model_fields
    options = dict(table.runtime.options) | _network(toml, table)
    workdir = _workdir(environment, toml, table)
    if "workspace" in model.model_fields and workdir:
        options.setdefault("workspace", workdir)
    workspace = None
    if not builds:
        workspace = _stand_in(folder, environment, toml, workdir)
    elif "image" not in options:
        if not workdir:
            raise FolderRefused(
                "its working folder is not known: set workdir in [environment] of task.toml, or in [harbor]"
            )
        options |= _image(environment, toml, table)
        _refuse_user(environment / "Dockerfile", toml)
    if "cap_add" in model.model_fields:  # images expect what root usually may do in a container
        options.setdefault("cap_add", list(get_args(Capability)))
    of_verifier = _network_of_verifier(toml, table)
    if "user" in model.model_fields:
        of_verifier |= _users(toml, options)
    limits, not_enforced = _limits(toml, table, options)
    if limits:
        options["limits"] = limits | options.get("limits", {})
    own_root = _checked(table.runtime.name, options).offered.own_root
    runtime = {"name": table.runtime.name, "options": options}
    missing = None if "workspace" in model.model_fields else workdir
    return FolderSurroundings(runtime, workspace, not_enforced, own_root, missing, of_verifier)


def _checked(name: str, options: Mapping[str, Any]) -> RuntimeOptions:
    try:
        found = registry.options_of("runtime", registry.find("runtime", name), dict(options))
    except PolarError as error:
        raise FolderRefused(str(error)) from error
    if not isinstance(found, RuntimeOptions):
        raise FolderRefused(f"runtime {name!r} cannot run Harbor folders: its Options are no RuntimeOptions")
    return found


def _network(toml: TaskToml, table: HarborTable) -> dict[str, Any]:
    if table.network != "task":
        return {}
    if "allowlist" in (toml.agent_network, toml.verifier_network):
        raise FolderRefused(
            "it asks for a list of hosts (network_mode allowlist), which Polar cannot enforce: "
            "network = 'closed' in [harbor] runs it without network"
        )
    return {"network": "open"} if toml.agent_network == "public" else {}


def _network_of_verifier(toml: TaskToml, table: HarborTable) -> dict[str, Any]:
    if table.network != "task" or toml.agent_network == toml.verifier_network:
        return {}
    return {"network": "open" if toml.verifier_network == "public" else None}


def _users(toml: TaskToml, options: dict[str, Any]) -> dict[str, Any]:
    """Sets the agent's, and returns the verifier's where it differs: None is the image's own."""
    agent, verifier = toml.agent.user, toml.verifier.user
    if agent is not None:
        options["user"] = str(agent)
    return {} if agent == verifier else {"user": None if verifier is None else str(verifier)}


def _workdir(environment: Path, toml: TaskToml, table: HarborTable) -> str | None:
    """As Harbor has it: task.toml's, else the Dockerfile's. None: only the image knows."""
    return toml.environment.workdir or table.workdir or _dockerfile_workdir(environment / "Dockerfile")


def _dockerfile_workdir(path: Path) -> str | None:
    """Of the last stage. A path with a variable is not known."""
    found = None
    for name, words in _read(path):
        if name == "FROM":
            found = None
        elif name == "WORKDIR" and words:
            word = words[0].strip("\"'")
            found = posixpath.normpath(posixpath.join(found or "/", word))
    return None if found is None or "$" in found or found == "/" else found


def _refuse_user(dockerfile: Path, toml: TaskToml) -> None:
    """The verifier's own runtime has to make /tests and /logs as the user of its commands."""
    user = toml.verifier.user if toml.verifier.user is not None else _dockerfile_user(dockerfile)
    if user not in (None, *ROOT):
        raise FolderRefused(
            f"its verifier runs as {user}, who cannot make /tests: set user = 'root' in [verifier] of task.toml"
        )


def _dockerfile_user(path: Path) -> str | None:
    """Of the last stage; None: the base image's own."""
    found = None
    for name, words in _read(path):
        if name == "FROM":
            found = None
        elif name == "USER" and words:
            found = words[0].partition(":")[0]
    return found


def _image(environment: Path, toml: TaskToml, table: HarborTable) -> dict[str, Any]:
    has_dockerfile = (environment / "Dockerfile").is_file()
    if toml.environment.docker_image is not None and not (table.build and has_dockerfile):
        return {"image": toml.environment.docker_image}
    if not has_dockerfile:
        raise FolderRefused("it has neither environment/Dockerfile nor docker_image in [environment] of task.toml")
    return {"build": {"context": str(environment)}}


def _stand_in(folder: Path, environment: Path, toml: TaskToml, workdir: str | None) -> dict[str, Any] | None:
    """The workspace, where no image of the folder's can be used."""
    if (named := toml.polar.workspace) is not None:
        if not (folder / named).is_dir():
            raise FolderRefused(f"[metadata.polar] workspace: there is no folder {named}")
        if not (folder / named).resolve().is_relative_to(environment.resolve()):
            raise FolderRefused("[metadata.polar] workspace must be below environment: the agent gets all of it")
        return {"folder": str(folder / named)}
    fix = (
        "run it in docker, or name the content of its working folder by workspace in [metadata.polar] of task.toml"
    )
    steps = _read(environment / "Dockerfile")
    if not steps:
        raise FolderRefused(f"it has no environment/Dockerfile, so its workspace is only in its image: {fix}")
    if wrong := next((name for name, _ in steps if name not in WITHOUT_EFFECT), None):
        raise FolderRefused(f"its Dockerfile has {wrong}, which only docker can do: {fix}")
    copies = [words for name, words in steps if name == "COPY"]
    if not copies:
        return None
    (source, target), *more = [(words[0], words[-1]) for words in copies]
    is_simple = not more and len(copies[0]) == 2 and (environment / source).is_dir()
    if not is_simple or posixpath.normpath(posixpath.join(workdir or "/", target)) != workdir:
        raise FolderRefused(f"its Dockerfile copies more than one folder to its working folder: {fix}")
    return {"folder": str((environment / source).resolve())}


def _limits(
    toml: TaskToml, table: HarborTable, options: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Those that the runtime can enforce, and the names of the others."""
    if not table.limits:
        return {}, ()
    environment = toml.environment
    asked = {
        "cpus": environment.cpus,
        "memory_bytes": environment.memory_mb and environment.memory_mb * MIB,
        "disk_bytes": environment.storage_mb and environment.storage_mb * MIB,
    }
    offered = _checked(table.runtime.name, options).offered.limits
    enforced = {name: value for name, value in asked.items() if value is not None and name in offered}
    return enforced, tuple(name for name, value in asked.items() if value is not None and name not in offered)


def _read(path: Path) -> list[tuple[str, list[str]]]:
    if not path.is_file():
        return []
    text = re.sub(r"<<-?\s*[\"']?(\w+)[\"']?.*?\n\1\s*$", "", path.read_text(errors="replace"), flags=re.S | re.M)
    return list(instructions(text))
