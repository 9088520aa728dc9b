"""A gateway node as a child process: its command line, and what its death leaves to clear."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from polar.child_processes import ChildProgram
from polar.config import NodeConfig
from polar.node import sweep
from polar.store.paths import new_run_id


@dataclass
class GatewayProcess:
    name: str
    address: str
    """Of the rollout server."""
    runs_dir: Path
    config: Path | None
    log: Path | None = None
    """File for its output; None: our stderr."""
    log_options: tuple[str, ...] = ()
    """As `polar gateway` takes them."""
    own_tasks: bool = False
    """Its tasks are those of this machine's user."""
    allowed_modules: tuple[str, ...] = ()
    """Besides those of the config."""
    drain_s: float = 0.0
    """`node.drain_s` of its config."""
    status: tuple[str, ...] = ()
    """Options that say where it serves its metrics (`status_options`)."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Besides ours, such as the node token, which must not stand on a command line."""
    run_id: str = field(default="", init=False)
    """Of the current process; each start has a new run folder."""

    def program(self) -> ChildProgram:
        return ChildProgram(self.name, self.arguments, self.log, self.clear, self.drain_s, self.environment)

    def arguments(self) -> list[str]:
        self.run_id = f"gateway-{new_run_id()}"
        config = ["--config", str(self.config)] if self.config else []
        start = ["--runs-dir", str(self.runs_dir), "gateway", "--server", self.address, "--run-id", self.run_id]
        own = ["--own-tasks"] if self.own_tasks else []
        drain = ["--drain", f"{self.drain_s:g}"] if self.drain_s else []
        allowed = [f"--allow-module={module}" for module in self.allowed_modules]
        return [*start, *own, *config, *drain, *allowed, *self.status, *self.log_options]

    async def clear(self) -> None:
        """Ends the processes that a dead node has left running, and removes their folders."""
        await sweep(self.runs_dir)


def status_options(config: NodeConfig, number: int) -> tuple[str, ...]:
    """Of the node with this number on its machine: the nodes of one config take ports side by side."""
    if config.metrics_port is None:
        return ()
    port = config.metrics_port + number - 1 if config.metrics_port else 0
    return ("--metrics-host", config.metrics_host, "--metrics-port", str(port))
