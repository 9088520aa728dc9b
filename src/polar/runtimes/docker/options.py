"""What a person says about a container, and what is said of it to the engine."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from polar.runtimes.base import Program, SessionFolders, program_path
from polar.runtimes.host.processes import home, owner
from polar.runtimes.options import DEFAULT_PIDS, Capabilities, Limits, RuntimeOptions

HELD_BY = {"cpus": "CpuCfsQuota", "memory_bytes": "MemoryLimit", "pids": "PidsLimit"}
"""What an engine says of itself, by the limit that needs it."""
HELD = tuple(HELD_BY)
NO_QUOTA = "only an engine whose storage is overlay2 on xfs with pquota can; say quota = true where it is"

Capability = Literal[
    "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETUID"
]
"""What installing packages takes, and servers."""


class DockerOptions(RuntimeOptions):
    capabilities: ClassVar[Capabilities] = Capabilities(
        networks=("gateway_only", "open", "none"),
        limits=HELD,
        contains=("files", "processes", "network"),
        reasons={"disk_bytes": NO_QUOTA},
    )

    image: str = Field(default="polar-base", pattern=r"^[A-Za-z0-9][\w./:@-]*$")
    """It is on the engine already: nothing is pulled. It needs `sh`, `tail` and `id`."""
    workspace: str = Field(default="/work", pattern=r"^(/[\w.@+-]*[\w@+-][\w.@+-]*)+$")
    """Made where the image has none; what the image has there, the workspace begins with."""
    user: str | None = None
    """As `name`, `uid` or `uid:gid`. None: the image's own."""
    engine: str | None = None
    """Where the container engine listens, on this machine. None: DOCKER_HOST, or Docker's usual socket."""
    quota: bool = False
    """The engine's storage holds disk limits."""
    cap_add: tuple[Capability, ...] = ()
    """Capabilities that root inside keeps; all others are dropped. Only such as lead nowhere outside."""

    @property
    def offered(self) -> Capabilities:
        base = self.capabilities
        return Capabilities(base.networks, (*base.limits, "disk_bytes"), base.contains) if self.quota else base

    @field_validator("engine")
    @classmethod
    def _is_here(cls, address: str | None) -> str | None:
        if address is not None and not address.startswith(("unix:///", "tcp://", "http://")):
            raise ValueError("an engine of this machine is wanted: unix:///path or tcp://host:port")
        return address


def labels(folders: SessionFolders) -> dict[str, str]:
    """Who owns the container, and where that name means something."""
    return {
        "polar.session": folders.session_id,
        "polar.place": str(folders.root),
        "polar.owner": owner(),
        "polar.home": home(),
    }


def not_held(limits: Limits, engine: dict[str, Any]) -> str:
    """Why an engine does not hold limits, by what it says of itself; empty: it does."""
    asked = [name for name in limits.asked if name in HELD_BY]
    without_root = engine.get("Rootless") or "name=rootless" in (engine.get("SecurityOptions") or ())
    if asked and without_root and engine.get("CgroupVersion") == "1":
        return (
            f"an engine without root does not hold the limit {', '.join(asked)} on a machine with cgroup v1: "
            "use an engine that runs as root, or cgroup v2"
        )
    if missing := [name for name in asked if engine.get(HELD_BY[name]) is False]:
        return f"this engine does not hold the limit {', '.join(missing)} on this machine"
    if limits.cpus is not None and limits.cpus > engine.get("NCPU", limits.cpus):
        return f"a limit of {limits.cpus:g} CPUs is more than the {engine['NCPU']} that the engine's machine has"
    return ""


def container_config(options: DockerOptions, folders: SessionFolders, image: dict[str, Any]) -> dict[str, Any]:
    """The body of the call that creates it; `image` is what the engine tells of its image. Its own process only
    waits, and its init reaps what others leave."""
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
    # Podman sets a timer also for a check that is no check, so it is named only where there is one to switch off.
    return {**config, "Healthcheck": {"Test": ["NONE"]}} if image.get("Healthcheck") else config


def _mount(program: Program) -> dict[str, Any]:
    source = str(program.source.resolve())
    return {"Type": "bind", "Source": source, "Target": program_path(program), "ReadOnly": True}
