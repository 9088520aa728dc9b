"""Options of the `docker` runtime, and the container configuration that is made of them."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec
from pydantic import Field, field_validator

from polar.runtimes.base import Program, SessionFolders
from polar.runtimes.host.processes import owner, owner_scope
from polar.runtimes.options import DEFAULT_PIDS, Capabilities, Limits, RuntimeOptions

LIMIT_FEATURES = {"cpus": "CpuCfsQuota", "memory_bytes": "MemoryLimit", "pids": "PidsLimit"}
"""The field of the Docker Engine's /info that each limit needs."""
NO_QUOTA = "it needs a Docker Engine whose storage is overlay2 on xfs with pquota; set quota = true for one"

Capability = Literal[
    "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETUID"
]
"""Capabilities that installing packages and running servers need."""


class DockerOptions(RuntimeOptions):
    capabilities: ClassVar[Capabilities] = Capabilities(
        networks=("gateway_only", "open", "none"),
        limits=tuple(LIMIT_FEATURES),
        contains=("files", "processes", "network"),
        own_root=True,
        reasons={"disk_bytes": NO_QUOTA},
    )

    image: str = Field(default="polar-base", pattern=r"^[A-Za-z0-9][\w./:@-]*$")
    """Must be on the Docker Engine already: nothing is pulled. It needs `sh`, `tail` and `id`."""
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

    @field_validator("engine")
    @classmethod
    def _is_here(cls, address: str | None) -> str | None:
        if address is not None and not address.startswith(("unix:///", "tcp://", "http://")):
            raise ValueError(
                "give the address of a Docker Engine on this machine: unix:///path or tcp://host:port"
            )
        return address


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


def container_config(options: DockerOptions, folders: SessionFolders, image: dict[str, Any]) -> dict[str, Any]:
    """The body of the call that creates the container; `image` is the image's configuration. The container's own
    process only waits, and its init reaps orphans."""
    limits = options.limits
    host: dict[str, Any] = {
        "Init": True,
        "NetworkMode": "bridge" if options.network_mode == "open" else "none",
        "CapDrop": ["ALL"],
        "CapAdd": list(options.cap_add),
        "SecurityOpt": ["no-new-privileges"],
        "PidsLimit": limits.pids or DEFAULT_PIDS,
        "Mounts": [_mount(program) for program in folders.programs],
        "LogConfig": {"Type": "none"},
    }
    if limits.memory_bytes is not None:
        host |= {"Memory": limits.memory_bytes, "MemorySwap": limits.memory_bytes}
    if limits.cpus is not None:
        host["NanoCpus"] = int(limits.cpus * 1e9)
    if limits.disk_bytes is not None:
        host["StorageOpt"] = {"size": str(limits.disk_bytes)}
    config = {
        "Image": options.image,
        "Entrypoint": ["tail", "-f", "/dev/null"],
        "Cmd": [],
        "User": options.user or "",
        "WorkingDir": "/",
        "Env": [f"POLAR_SESSION={folders.session_id}"],
        "Labels": labels(folders),
        "HostConfig": host,
    }
    # Podman sets a timer even for a disabled check, so it is named only if the image has one to disable.
    return {**config, "Healthcheck": {"Test": ["NONE"]}} if image.get("Healthcheck") else config


def _mount(program: Program) -> dict[str, Any]:
    source = str(program.source.resolve())
    return {"Type": "bind", "Source": source, "Target": program.mount_point, "ReadOnly": True}
