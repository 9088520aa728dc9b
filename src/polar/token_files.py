"""The user's tokens on disk: made at their first use, read by server, nodes and clients, replaced by new ones."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Literal

from polar.errors import ConfigError

SecretName = Literal["control-token", "node-token", "metrics-token"]
"""The control token is for trainers; the node token only lets a node register; the metrics token only reads
metrics."""


def config_dir() -> Path:
    """The user's tokens. `POLAR_CONFIG_DIR` moves it."""
    chosen = os.environ.get("POLAR_CONFIG_DIR")
    base = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return Path(chosen) if chosen else base / "polar"


def read_secret(name: SecretName) -> str:
    """A token from the environment (`POLAR_CONTROL_TOKEN`, `POLAR_NODE_TOKEN`) or the user's config folder."""
    path = config_dir() / name
    try:
        found = os.environ.get(_variable(name)) or path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise ConfigError(
            f"no {name} at {path}: `polar server` makes one at its first start; on another machine set "
            f"{_variable(name)}"
        ) from error
    if not found:
        raise ConfigError(f"the file {path} is empty: remove it, or set {_variable(name)}")
    return found


def make_secret(name: SecretName) -> str:
    """The same; creates the token on first use, readable only by the user."""
    _make_file(config_dir() / name)
    return read_secret(name)


def next_secret(name: SecretName) -> str:
    """The SHA-256 of a new token, which waits in a file of its own until the server knows it. A second call before
    `use_next_secret` has the same one: the answer to the first may have been lost."""
    path = _next(name)
    _make_file(path)
    return sha256(path.read_bytes().strip()).hexdigest()


def use_next_secret(name: SecretName) -> tuple[Path, str]:
    """Puts the new token in the place of the old one. Returns its file, and the variable that hides it, if any."""
    path = config_dir() / name
    os.replace(_next(name), path)
    return path, _variable(name) if os.environ.get(_variable(name)) else ""


def _variable(name: SecretName) -> str:
    return f"POLAR_{name.replace('-', '_').upper()}"


def _next(name: SecretName) -> Path:
    return config_dir() / f"{name}.next"


def _make_file(path: Path) -> None:
    """With a new token, if there is no such file. It appears whole: workers that start together look for it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.exists():
        return
    fresh = path.with_name(f".{secrets.token_hex(8)}")
    with open(fresh, "x", encoding="ascii", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(secrets.token_urlsafe(32))
    with suppress(FileExistsError):
        os.link(fresh, path)
    fresh.unlink()
