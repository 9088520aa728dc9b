"""polar.toml to frozen models. Every value has a default, so no file is needed."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

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
    renderer: Spec = Spec(name="smollm2")


class Config(Strict):
    runs_dir: Path = Path("polar-runs")
    engine: Spec = Spec(name="embedded")
    model: ModelConfig = ModelConfig()
    gateway: GatewayConfig = GatewayConfig()
    pools: PoolConfig = PoolConfig()


def load(path: Path | None = None) -> Config:
    """The config of `path`, else of ./polar.toml where there is one, else the defaults."""
    chosen = path or Path(CONFIG_FILE)
    if not chosen.exists():
        if path is not None:
            raise ConfigError(f"no config file at {path}")
        return Config()
    try:
        return Config.model_validate(tomllib.loads(chosen.read_text(encoding="utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{chosen}: not valid TOML: {error}") from error
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:5])
        raise ConfigError(f"{chosen}: {problems}") from error


def cache_dir() -> Path:
    """Downloads that every run shares: weights, harnesses. `POLAR_CACHE` moves it."""
    chosen = os.environ.get("POLAR_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(chosen) if chosen else base / "polar"
