"""What a person says about a container, and what is said of it to the engine."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field, field_validator

from polar.runtimes.base import Place, Tool
from polar.runtimes.options import Capabilities, RuntimeOptions
from polar.runtimes.processes import home, owner

HOME = "/home/polar"
TOOLS = "/opt/polar"
PIDS = 4096
"""A session's processes and threads where nothing is asked: a fork bomb is not to take the machine."""
HELD = ("cpus", "memory_bytes", "pids")
NO_QUOTA = "only an engine whose storage is overlay2 on xfs with pquota can; say quota = true where it is"


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
    cap_add: tuple[str, ...] = ()
    """Capabilities that root inside keeps, such as CHOWN; all others are dropped."""

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


def labels(place: Place) -> dict[str, str]:
    """Who owns the container, and where that name means something."""
    return {
        "polar.session": place.session_id,
        "polar.place": str(place.root),
        "polar.owner": owner(),
        "polar.home": home(),
    }


def tool_path(tool: Tool) -> str:
    return f"{TOOLS}/{tool.name}"


def container_config(options: DockerOptions, place: Place) -> dict[str, Any]:
    """The body of the call that creates it. Its own process only waits, and its init reaps what others leave."""
    limits = options.limits
    host: dict[str, Any] = {
        "Init": True,
        "NetworkMode": "bridge" if options.policy == "open" else "none",
        "CapDrop": ["ALL"],
        "CapAdd": list(options.cap_add),
        "SecurityOpt": ["no-new-privileges"],
        "PidsLimit": limits.pids or PIDS,
        "Mounts": [_mount(tool) for tool in place.tools],
        "LogConfig": {"Type": "none"},
    }
    if limits.memory_bytes is not None:
        host |= {"Memory": limits.memory_bytes, "MemorySwap": limits.memory_bytes}
    if limits.cpus is not None:
        host["NanoCpus"] = int(limits.cpus * 1e9)
    if limits.disk_bytes is not None:
        host["StorageOpt"] = {"size": str(limits.disk_bytes)}
    return {
        "Image": options.image,
        "Entrypoint": ["tail", "-f", "/dev/null"],
        "Cmd": [],
        "User": options.user or "",
        "WorkingDir": "/",
        "Env": [f"POLAR_SESSION={place.session_id}"],
        "Labels": labels(place),
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": host,
    }


def _mount(tool: Tool) -> dict[str, Any]:
    source = str(tool.source.resolve())
    return {"Type": "bind", "Source": source, "Target": tool_path(tool), "ReadOnly": True}
