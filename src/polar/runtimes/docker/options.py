"""Options of the `docker` runtime, and the container configuration that is made of them."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Literal

import msgspec
from pydantic import Field, field_validator, model_validator

from polar.config import PermitConfig
from polar.runtimes.base import Program, SessionFolders
from polar.runtimes.host.processes import owner, owner_scope
from polar.runtimes.mounts import NodeFolder, node_folders
from polar.runtimes.options import DEFAULT_PIDS, Capabilities, Limits, RuntimeOptions
from polar.types import Strict

LIMIT_FEATURES = {"cpus": "CpuCfsQuota", "memory_bytes": "MemoryLimit", "pids": "PidsLimit"}
"""The field of the Docker Engine's /info that each limit needs."""
NO_QUOTA = "it needs a Docker Engine whose storage is overlay2 on xfs with pquota; set quota = true for one"

Capability = Literal[
    "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETUID"
]
"""Capabilities that installing packages and running servers need."""


class DockerBuild(Strict):
    """A Dockerfile and its context. The image is built once for each content, by the first session that needs
    it."""

    context: str = Field(min_length=1)
    """A folder of the node; in a task file, relative to it. Its `.dockerignore` counts."""
    dockerfile: str = Field(default="Dockerfile", min_length=1)
    """Relative to the context."""
    target: str | None = Field(default=None, pattern=r"^[\w.-]+$")
    """The stage to build. None: the last."""
    args: dict[str, str] = {}
    """Values of the Dockerfile's `ARG`s."""

    @field_validator("dockerfile")
    @classmethod
    def _is_in_context(cls, path: str) -> str:
        if path.startswith("/") or ".." in PurePosixPath(path).parts or "\0" in path:
            raise ValueError("must be a relative path inside the context")
        return str(PurePosixPath(path))


class DockerOptions(RuntimeOptions):
    capabilities: ClassVar[Capabilities] = Capabilities(
        networks=("gateway_only", "open", "none"),
        limits=tuple(LIMIT_FEATURES),
        contains=("files", "processes", "network"),
        own_root=True,
        reasons={"disk_bytes": NO_QUOTA},
        mounts=True,
        prepare_network=True,
        intercept=True,
    )

    image: str = Field(default="polar-base", pattern=r"^[A-Za-z0-9][\w./:@-]*$")
    """Pulled if it is missing and the operator permits that. It needs `sh`, `tail` and `id`."""
    build: DockerBuild | None = None
    """Instead of `image`: a Dockerfile. The operator has to permit it."""
    workspace: str = Field(default="/work", pattern=r"^(/[\w.@+-]*[\w@+-][\w.@+-]*)+$")
    """The workspace's path inside, created if missing. It starts with what the image has there."""
    user: str | None = None
    """As `name`, `uid` or `uid:gid`. None: the image's own."""
    engine: str | None = None
    """Address of the Docker Engine on this machine. None: DOCKER_HOST, or Docker's usual socket."""
    quota: bool = False
    """The Docker Engine's storage enforces disk limits."""
    cap_add: tuple[Capability, ...] = ()
    """Capabilities that root inside keeps; all others are dropped. None of them gives access to the node."""

    @property
    def offered(self) -> Capabilities:
        base = self.capabilities
        return msgspec.structs.replace(base, limits=(*base.limits, "disk_bytes")) if self.quota else base

    @property
    def needed_image(self) -> str:
        """Not one that is named by its content, or in another Docker Engine than the node's usual one."""
        by_content = "@" in self.image or re.fullmatch(r"(sha256:)?[0-9a-f]{12,64}", self.image)
        return "" if self.build or self.engine or by_content else short_name(self.image)

    @property
    def permits_needed(self) -> tuple[str, ...]:
        return (*super().permits_needed, *(() if self.build is None else ("build",)))

    def refused_by(self, permits: PermitConfig) -> list[str]:
        found = super().refused_by(permits)
        if self.build is not None and not permits.build:
            found.append("build: the node's setting permits.build is off")
        return found

    def located(self, folder: Path) -> dict[str, Any]:
        paths = super().located(folder)
        if self.build is None:
            return paths
        return paths | {"build": self.build.model_dump() | {"context": str(folder / self.build.context)}}

    @model_validator(mode="after")
    def _has_one_image(self) -> DockerOptions:
        if self.build is not None and "image" in self.model_fields_set:
            raise ValueError("give either image or build")
        return self

    @field_validator("engine")
    @classmethod
    def _is_here(cls, address: str | None) -> str | None:
        if address is not None and not address.startswith(("unix:///", "tcp://", "http://")):
            raise ValueError(
                "give the address of a Docker Engine on this machine: unix:///path or tcp://host:port"
            )
        return address


def short_name(image: str) -> str:
    """An image's name without what Docker and Podman fill in by themselves."""
    for prefix in ("docker.io/", "localhost/", "library/"):
        image = image.removeprefix(prefix)
    return image.removesuffix(":latest")


def labels(folders: SessionFolders) -> dict[str, str]:
    """The container's owner, and the scope in which the owner's name is valid."""
    return {
        "polar.session": folders.session_id,
        "polar.place": str(folders.root),
        "polar.owner": owner(),
        "polar.home": owner_scope(),
    }


def why_no_limits(limits: Limits, info: dict[str, Any]) -> str:
    """Why the Docker Engine cannot enforce the limits, by its /info; empty: it can."""
    asked = [name for name in limits.asked if name in LIMIT_FEATURES]
    rootless = info.get("Rootless") or "name=rootless" in (info.get("SecurityOptions") or ())
    if asked and rootless and info.get("CgroupVersion") == "1":
        return (
            f"a rootless Docker Engine does not enforce the limit {', '.join(asked)} with cgroup v1: "
            "use one that runs as root, or cgroup v2"
        )
    if missing := [name for name in asked if info.get(LIMIT_FEATURES[name]) is False]:
        return f"this Docker Engine does not enforce the limit {', '.join(missing)} on this machine"
    if limits.cpus is not None and limits.cpus > info.get("NCPU", limits.cpus):
        return f"the limit is {limits.cpus:g} CPUs, but the machine has {info['NCPU']}"
    return ""


class EngineImage(msgspec.Struct, frozen=True):
    """An image that the Docker Engine has."""

    name: str
    config: dict[str, Any] = {}


def container_config(
    options: DockerOptions, folders: SessionFolders, image: EngineImage, seccomp: str
) -> dict[str, Any]:
    """The body of the call that creates the container. Its own process only waits, and its init reaps orphans.
    `seccomp`: a profile as JSON; for Podman the path of one."""
    limits = options.limits
    host: dict[str, Any] = {
        "Init": True,
        "NetworkMode": "bridge" if options.network_mode == "open" else "none",
        "CapDrop": ["ALL"],
        "CapAdd": list(options.cap_add),
        "SecurityOpt": ["no-new-privileges", f"seccomp={seccomp}"],
        "PidsLimit": limits.pids or DEFAULT_PIDS,
        "Mounts": [
            *(_mount(program) for program in folders.programs),
            *(_folder_mount(folder) for folder in node_folders(options.mounts)),
        ],
        "LogConfig": {"Type": "none"},
    }
    if options.intercept:
        host["ExtraHosts"] = [f"{name}:127.0.0.1" for name in options.intercept]
    if limits.memory_bytes is not None:
        host |= {"Memory": limits.memory_bytes, "MemorySwap": limits.memory_bytes}
    if limits.cpus is not None:
        host["NanoCpus"] = int(limits.cpus * 1e9)
    if limits.disk_bytes is not None:
        host["StorageOpt"] = {"size": str(limits.disk_bytes)}
    config = {
        "Image": image.name,
        "Entrypoint": ["tail", "-f", "/dev/null"],
        "Cmd": [],
        "User": options.user or "",
        "WorkingDir": "/",
        "Env": [f"POLAR_SESSION={folders.session_id}"],
        "Labels": labels(folders),
        "HostConfig": host,
    }
    # Podman sets a timer even for a disabled check, so it is named only if the image has one to disable.
    return {**config, "Healthcheck": {"Test": ["NONE"]}} if image.config.get("Healthcheck") else config


def _mount(program: Program) -> dict[str, Any]:
    source = str(program.source.resolve())
    return {"Type": "bind", "Source": source, "Target": program.mount_point, "ReadOnly": True}


def _folder_mount(folder: NodeFolder) -> dict[str, Any]:
    # Older Docker Engines make only the outermost of several mounts read-only.
    options = {"NonRecursive": True}
    return {
        "Type": "bind",
        "Source": str(folder.source),
        "Target": folder.target,
        "ReadOnly": True,
        "BindOptions": options,
    }
