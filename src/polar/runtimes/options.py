"""What a task may ask of a runtime: network access, limits, and what the operator of the node has to permit.

Each runtime declares its capabilities beside its options, so a spec that asks for more is refused when the task is
submitted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec
from pydantic import ByteSize, Field, field_validator, model_validator

from polar.config import PermitConfig
from polar.runtimes.host_names import PROVIDERS, HostName
from polar.runtimes.mounts import ReadOnlyMount, mount_refusals, wrong_targets
from polar.types import Strict

Network = Literal["gateway_only", "open", "none"]
"""gateway_only: the session's model and nothing else. open: what the node reaches. none: not even the model."""

Containment = Literal["files", "processes", "network"]
"""files: the session sees only the node's files that it is given, and writes nothing outside its own.
processes: it neither sees nor signals processes of others. network: the network mode is enforced."""


DEFAULT_PIDS = 4096
"""Limit of processes and threads where the task sets none and the machine can enforce one, against fork bombs."""


class Limits(Strict):
    """What all processes of a session together may use. None: unlimited."""

    cpus: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    memory_bytes: ByteSize | None = Field(default=None, ge=4 * 2**20)
    """A number, or a text such as "512MiB". The kernel kills processes that exceed it."""
    pids: int | None = Field(default=None, ge=1)
    """Processes and threads."""
    disk_bytes: ByteSize | None = Field(default=None, ge=2**20)
    """What the session writes: workspace, home and temporary files together."""

    @property
    def asked(self) -> tuple[str, ...]:
        return tuple(name for name in type(self).model_fields if getattr(self, name) is not None)


class Capabilities(msgspec.Struct, frozen=True):
    networks: tuple[Network, ...]
    """The first is the default: the strictest under which a harness reaches its model."""
    limits: tuple[str, ...] = ()
    """Fields of `Limits` that the runtime can enforce."""
    contains: tuple[Containment, ...] = ()
    reasons: dict[str, str] = {}
    """Why something is missing, by `network`, `mounts`, `prepare_network`, `intercept` or the limit's name; shown
    in the refusal."""
    mounts: bool = False
    """Can mount folders of the node read-only."""
    prepare_network: bool = False
    """Can open the network for the prepare steps only."""
    intercept: bool = False
    """Can lead names of hosts to the session's own listener."""
    own_root: bool = False
    """A session can make folders anywhere, such as /tests, and none of them is the node's."""


class RuntimeOptions(Strict):
    capabilities: ClassVar[Capabilities] = Capabilities(networks=("open",))

    network: Network | None = None
    """None: the strictest that the runtime can enforce."""
    prepare_network: Literal["open"] | None = None
    """The network of the prepare steps, while no agent is there. None: the same as the session's. The operator has
    to permit it."""
    mounts: tuple[ReadOnlyMount, ...] = Field(default=(), max_length=50)
    """Folders of the node to mount read-only. The operator has to permit them."""
    intercept: tuple[HostName, ...] = Field(default=(), max_length=32)
    """Hosts whose names lead to the session's own gateway listener, over TLS, for a harness without a base URL.
    True: the hosts of OpenAI, Anthropic and Google."""
    limits: Limits = Limits()
    output_cap_bytes: int = Field(default=10 * 2**20, gt=0)
    """Of each log file."""
    tail_bytes: int = Field(default=8192, gt=0)
    """How much of the end of each output a `Finished` carries."""
    kill_grace_s: float = Field(default=2.0, ge=0)
    """Time between SIGTERM and SIGKILL, in runtimes that send SIGTERM."""

    @property
    def network_mode(self) -> Network:
        return self.network or self.offered.networks[0]

    @property
    def offered(self) -> Capabilities:
        """Overridden where capabilities depend on other options."""
        return self.capabilities

    @property
    def needed_image(self) -> str:
        """The image that must be on the node's machine already, as `images` of the runtime names it. Empty: none,
        or one that only the node can find."""
        return ""

    @property
    def opens_network(self) -> bool:
        """Whether only the prepare steps have the node's network."""
        return self.prepare_network is not None and self.network_mode != "open"

    @property
    def permits_needed(self) -> tuple[str, ...]:
        """Settings of `[permits]` without which no node accepts these options."""
        asks = {"mounts": bool(self.mounts), "prepare_network": self.prepare_network is not None}
        return tuple(name for name, asked in asks.items() if asked)

    def refused_by(self, permits: PermitConfig) -> list[str]:
        """What these options ask for and the operator has not permitted."""
        found = mount_refusals(self.mounts, permits.mounts)
        if self.prepare_network is not None and not permits.prepare_network:
            found.append("prepare_network: the node's setting permits.prepare_network is off")
        return found

    def located(self, folder: Path) -> dict[str, Any]:
        """The options that name paths of the node, with relative ones made absolute from `folder`."""
        if not self.mounts:
            return {}
        return {"mounts": [{"source": str(folder / each.source), "target": each.target} for each in self.mounts]}

    @field_validator("intercept", mode="before")
    @classmethod
    def _all_providers(cls, value: Any) -> Any:
        return (PROVIDERS if value else ()) if isinstance(value, bool) else value

    @model_validator(mode="after")
    def _is_possible(self) -> RuntimeOptions:
        offered = self.offered
        if self.network is not None and self.network not in offered.networks:
            raise ValueError(
                f"this runtime cannot enforce network {self.network!r}, only {' or '.join(offered.networks)}"
                + _because(offered, "network")
            )
        for name in ("mounts", "prepare_network", "intercept"):
            if getattr(self, name) and not getattr(offered, name):
                raise ValueError(f"this runtime does not support {name}" + _because(offered, name))
        if self.intercept and self.network_mode != "gateway_only":
            raise ValueError(f"intercept needs network 'gateway_only', not {self.network_mode!r}")
        if wrong := wrong_targets(self.mounts, getattr(self, "workspace", "/work")):
            raise ValueError("; ".join(wrong))
        for name in self.limits.asked:
            if name not in offered.limits:
                can = f"only {', '.join(offered.limits)}" if offered.limits else "nor any other limit"
                raise ValueError(f"this runtime cannot enforce the limit {name}, {can}" + _because(offered, name))
        return self


def _because(offered: Capabilities, what: str) -> str:
    others = ("network", "mounts", "prepare_network", "intercept")
    reason = offered.reasons.get(what) or offered.reasons.get("limits" if what not in others else "")
    return f": {reason}" if reason else ""
