"""A Harbor folder's `task.toml`, schema 1.0 to 1.4: what Polar uses of it, and what it cannot honour.

Keys that Polar does not know are ignored, as Harbor ignores them. Older names of a value are read too.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from polar.types import InnerPath, Strict

SCHEMAS = ("1.0", "1.1", "1.2", "1.3", "1.4")
NetworkMode = Literal["no-network", "public", "allowlist"]
MIB = 2**20
UNITS = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}


class FolderRefused(Exception):
    """A task folder that cannot run; the message names the fix."""


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class PackageTable(_Table):
    name: str


class AgentTable(_Table):
    timeout_sec: float | None = Field(default=None, gt=0)
    user: str | int | None = None
    network_mode: NetworkMode | None = None


class EnvironmentTable(_Table):
    build_timeout_sec: float = Field(default=600.0, gt=0)
    docker_image: str | None = None
    os: str = "linux"
    cpus: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    memory_mb: int | None = Field(default=None, gt=0)
    storage_mb: int | None = Field(default=None, gt=0)
    gpus: int | None = None
    tpu: dict[str, Any] | None = None
    mcp_servers: list[Any] = []
    env: dict[str, str] = {}
    skills_dir: str | None = None
    healthcheck: dict[str, Any] | None = None
    workdir: str | None = None
    network_mode: NetworkMode = "public"

    @model_validator(mode="before")
    @classmethod
    def _older_names(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        table = dict(cast("dict[str, Any]", value))
        for old in ("memory", "storage"):
            if isinstance(table.get(old), str):
                table.setdefault(f"{old}_mb", _megabytes(table[old]))
        if table.get("allow_internet") is not None:
            table.setdefault("network_mode", "public" if table["allow_internet"] else "no-network")
        return table


class VerifierTable(_Table):
    timeout_sec: float = Field(default=600.0, gt=0)
    env: dict[str, str] = {}
    user: str | int | None = None
    network_mode: NetworkMode | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: dict[str, Any] | None = None
    collect: list[Any] = []


class PolarTable(Strict):
    """`[metadata.polar]`: what a folder says to Polar only; Harbor ignores it."""

    workspace: InnerPath | None = None
    """A folder below the task folder that holds what the Dockerfile puts into the working folder. With it the task
    also runs where there is no Docker."""
    where: Literal["own", "session"] | None = None
    no_reward: Literal["error", "zero"] | None = None
    reward_key: str | None = None
    protected: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()

    @property
    def of_evaluator(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude={"workspace"}, exclude_defaults=True)


class ArtifactTable(_Table):
    source: str


class TaskToml(_Table):
    schema_version: str = "1.4"
    task: PackageTable | None = None
    metadata: dict[str, Any] = {}
    agent: AgentTable = AgentTable()
    verifier: VerifierTable = VerifierTable()
    environment: EnvironmentTable = EnvironmentTable()
    steps: list[Any] = []
    artifacts: list[str | ArtifactTable] = []

    @model_validator(mode="before")
    @classmethod
    def _older_name(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        table = cast("dict[str, Any]", value)
        return {"schema_version": table["version"]} | table if "version" in table else table

    @property
    def polar(self) -> PolarTable:
        return PolarTable.model_validate(self.metadata.get("polar", {}))

    @property
    def sources(self) -> tuple[str, ...]:
        """Paths of the artifacts in the agent's container."""
        return tuple(each if isinstance(each, str) else each.source for each in self.artifacts)

    @property
    def agent_network(self) -> NetworkMode:
        return self.agent.network_mode or self.environment.network_mode

    @property
    def verifier_network(self) -> NetworkMode:
        return self.verifier.network_mode or self.environment.network_mode


def read_task_toml(folder: Path) -> TaskToml:
    """Raises `FolderRefused` for a file that is missing or wrong, or asks for what Polar does not have."""
    path = folder / "task.toml"
    try:
        found = TaskToml.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
        found.polar  # noqa: B018 - checks it
    except FileNotFoundError as error:
        raise FolderRefused("it has no task.toml: is it a Harbor task folder?") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "metadata.polar"
        raise FolderRefused(f"task.toml: {place}: {first['msg'][:1].lower()}{first['msg'][1:]}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise FolderRefused(f"task.toml cannot be read: {error}") from error
    if found.schema_version not in SCHEMAS:
        known = f"{SCHEMAS[0]} to {SCHEMAS[-1]}"
        raise FolderRefused(f"task.toml has schema_version {found.schema_version!r}; Polar knows {known}")
    if reason := next((reason for reason, asked in _unsupported(found).items() if asked), ""):
        raise FolderRefused(reason)
    return found


def _unsupported(toml: TaskToml) -> dict[str, object]:
    """Reason to whether the folder asks for it."""
    environment, verifier = toml.environment, toml.verifier
    return {
        "it has several steps, which is not supported: make each step a folder of its own": toml.steps,
        f"it needs {environment.os}; Polar runs Linux only": environment.os.lower() != "linux",
        "it asks for GPUs, which no runtime of Polar's has: remove gpus if it runs without": environment.gpus,
        "it asks for a TPU, which no runtime of Polar's has": environment.tpu is not None,
        "it brings MCP servers, which Polar does not start: remove mcp_servers if it runs without": (
            environment.mcp_servers
        ),
        "it brings skills, which Polar does not install: remove skills_dir if it runs without": (
            environment.skills_dir
        ),
        "[environment] env is not supported: set the variables by ENV in the Dockerfile": environment.env,
        "it has a health check: its image starts a service, and Polar starts none; start it in tests/test.sh": (
            environment.healthcheck is not None
        ),
        "its verifier has an environment of its own: remove [verifier.environment] if the task's will do": (
            verifier.environment is not None
        ),
        "[[verifier.collect]] is not supported: let the agent write that state to its working folder": (
            verifier.collect
        ),
    }


def _megabytes(text: str) -> int:
    size = text.strip().upper()
    if not size or size[-1] not in UNITS:
        raise ValueError(f"{text!r} is no size: write a number with G, M or K")
    return int(float(size[:-1]) * UNITS[size[-1]])
