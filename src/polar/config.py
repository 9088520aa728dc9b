"""polar.toml to frozen models. Every value has a default, so no file is needed."""

from __future__ import annotations

import os
import secrets
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from polar.errors import ConfigError
from polar.types import Spec, Strict

CONFIG_FILE = "polar.toml"


class GatewayConfig(Strict):
    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    """0: any free port."""
    max_body_bytes: int = Field(default=32 * 2**20, gt=0)
    heartbeat_s: float = Field(default=10.0, gt=0)
    """A stream says so often that it is alive."""
    linger_s: float = Field(default=5.0, ge=0)
    """A reply that nobody listens to any more is sampled on for so long: the harness may be asking again."""


class PoolConfig(Strict):
    """How many sessions may be in each stage at once."""

    init: int = Field(default=2, ge=1)
    ready: int = Field(default=4, ge=1)
    """Sessions that are set up ahead and wait for a run slot; they hold no worker."""
    running: int = Field(default=4, ge=1)
    postrun: int = Field(default=2, ge=1)


class ModelConfig(Strict):
    name: str = "polar"
    """What the gateway calls the model towards harnesses: an id that no harness has rules for."""
    mode: Literal["tokens", "chat"] = "tokens"
    """tokens: the gateway lays prompts out with `renderer` and reads replies. chat: the engine does both, for
    models whose rendering we cannot own; only engines with a chat endpoint can."""
    renderer: Spec | None = None
    """None: that of the embedded engine's model. In chat mode it serves only to show tokens as text."""

    @property
    def spelling(self) -> Spec | None:
        """The renderer that knows the model's tokens; None: only the engine does."""
        return self.renderer or (Spec(name="smollm2") if self.mode == "tokens" else None)


class NodeConfig(Strict):
    """What a node does when a part of it fails: engine, disk, file descriptors or runtime."""

    max_failures: int = Field(default=5, ge=1)
    """A session that failed so often through its node, while the node looked healthy, keeps its last failure."""
    max_hand_backs: int = Field(default=100, ge=1)
    """The same for a session that was handed back so often because its node was found sick."""
    outage_s: float = Field(default=900.0, ge=0)
    """In a run without a server, how long sessions wait for a part that has failed; then they fail too."""
    probe_s: float = Field(default=60.0, gt=0)
    """How long a part may take to show that it works: a busy engine lets a probe wait its turn."""
    probe_pause_s: float = Field(default=1.0, gt=0)
    """Between the first two probes of a sick part; it doubles up to thirty times as long."""
    min_free_bytes: int = Field(default=64 * 2**20, ge=0)
    """With less free space, the disk of the node's runs counts as full."""


class ServerConfig(Strict):
    host: str = "127.0.0.1"
    port: int = Field(default=8700, ge=0, le=65535)
    """0: any free port."""
    database: str = "sqlite:///polar-server.db"
    """An SQLAlchemy address; `postgresql+psycopg://...` needs the extra `postgres`."""
    heartbeat_s: float = Field(default=3.0, gt=0)
    lease_beats: float = Field(default=4.0, ge=1)
    """A lease runs out after so many heartbeats without word from its node."""
    max_attempts: int = Field(default=10, ge=1)
    """A session whose node was lost this often is given up: it may be what kills them."""
    max_task_bytes: int = Field(default=8 * 2**20, gt=0)
    max_upload_bytes: int = Field(default=512 * 2**20, gt=0)


class Config(Strict):
    runs_dir: Path = Path("polar-runs")
    engine: Spec = Spec(name="embedded")
    model: ModelConfig = ModelConfig()
    gateway: GatewayConfig = GatewayConfig()
    pools: PoolConfig = PoolConfig()
    node: NodeConfig = NodeConfig()
    server: ServerConfig = ServerConfig()


def load(path: Path | None = None) -> Config:
    """The config of `path`, else of ./polar.toml where there is one, else the defaults."""
    chosen = path or Path(CONFIG_FILE)
    if not chosen.exists():
        if path is not None:
            raise ConfigError(f"no config file at {path}")
        return Config()
    try:
        values = tomllib.loads(chosen.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{chosen}: not valid TOML: {error}") from error
    return parse(values, str(chosen))


def parse(values: Mapping[str, Any], source: str) -> Config:
    """`source`: what an error names as the place of the values."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:5])
        raise ConfigError(f"{source}: {problems}") from error


def cache_dir() -> Path:
    """Downloads that every run shares: weights, harnesses. `POLAR_CACHE` moves it."""
    chosen = os.environ.get("POLAR_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(chosen) if chosen else base / "polar"


SecretName = Literal["control-token", "node-token"]
"""The control token opens what trainers do; the node token lets a node register, and nothing else."""


def config_dir() -> Path:
    """What belongs to the user and to no project: tokens. `POLAR_CONFIG_DIR` moves it."""
    chosen = os.environ.get("POLAR_CONFIG_DIR")
    base = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return Path(chosen) if chosen else base / "polar"


def read_secret(name: SecretName) -> str:
    """A token from the environment (`POLAR_CONTROL_TOKEN`, `POLAR_NODE_TOKEN`) or the user's config folder."""
    variable = f"POLAR_{name.replace('-', '_').upper()}"
    path = config_dir() / name
    try:
        return os.environ.get(variable) or path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise ConfigError(
            f"no {name} at {path}: `polar server` makes one at its first start; on another machine set {variable}"
        ) from error


def make_secret(name: SecretName) -> str:
    """The same, made on first use; readable by nobody else."""
    path = config_dir() / name
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return read_secret(name)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(secrets.token_urlsafe(32))
    return read_secret(name)
