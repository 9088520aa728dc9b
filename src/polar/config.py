"""The config: polar.toml as frozen models. Every value has a default, so no file is needed."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator

from polar.errors import ConfigError, FieldProblem, field_problems
from polar.toml.lines import FieldLines
from polar.types import Spec, Strict

CONFIG_FILE = "polar.toml"
SHOWN_PROBLEMS = 10


def _checked_entry(entry: str) -> str:
    if entry != "*" and not all(part.isidentifier() for part in entry.split(".")):
        raise ValueError("write a module as 'my_package': that allows all modules below it too; '*' allows any")
    return entry


AllowedModules = tuple[Annotated[str, AfterValidator(_checked_entry)], ...]
"""Modules that tasks may name as `module:Class`, each with all modules below it; `*`: any."""


NodeLabel = Annotated[str, Field(min_length=1, max_length=500)]


class GatewayConfig(Strict):
    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    """0: any free port."""
    max_body_bytes: int = Field(default=32 * 2**20, gt=0)
    heartbeat_s: float = Field(default=10.0, gt=0)
    """Interval between heartbeats on a silent stream."""
    max_connections: int = Field(default=4096, ge=1)
    """Open at once, and never more than half of the process's file descriptors. Beyond that, the connection that
    has waited longest for its client is closed."""
    stalled_request_s: float = Field(default=30.0, gt=0)
    """A request of which less than 16 KiB arrives in this time, and not its end, is answered with status 408."""
    linger_s: float = Field(default=5.0, ge=0)
    """How long an abandoned generation keeps sampling, so that a retry can rejoin it."""


class PoolConfig(Strict):
    """How many sessions may be in each stage at once."""

    init: int = Field(default=2, ge=1)
    ready: int = Field(default=4, ge=1)
    """Sessions that are set up ahead and wait for a place in `running`."""
    running: int = Field(default=4, ge=1)
    postrun: int = Field(default=2, ge=1)
    waiting: int = Field(default=16, ge=0)
    """Sessions that have run and wait for POSTRUN, each with its runtime. Once they are so many, sessions that end
    keep their run slots until there is room."""
    evaluator: int = Field(default=2, ge=1)
    """Runtimes of evaluators' own that are being started."""
    prewarm: bool = True
    """Start them while the agent works. False: in POSTRUN, so that a session never has two runtimes beside a
    working agent."""
    warm: int = Field(default=0, ge=0, le=1000)
    """Runtimes that are started ahead, with what the last sessions asked for, and wait for sessions."""


class ModelConfig(Strict):
    name: str = "polar"
    """The model's name towards harnesses; the default is one for which no harness has special rules."""
    mode: Literal["tokens", "chat"] = "tokens"
    """tokens: the gateway renders prompts with `renderer` and parses replies. chat: the engine does both, for
    models that no renderer supports; needs an engine with a chat endpoint."""
    renderer: Spec | None = None
    """None: that of the embedded engine's model. In chat mode it only decodes tokens for display."""

    @property
    def spelling(self) -> Spec | None:
        """The renderer that can decode the model's tokens; None: only the engine can."""
        return self.renderer or (Spec(name="smollm2") if self.mode == "tokens" else None)


class NodeConfig(Strict):
    """How a node handles failures of its engine, disk, file descriptors or runtime."""

    max_failures: int = Field(default=5, ge=1)
    """After this many failures through a node that looked healthy, a session is not run again."""
    max_hand_backs: int = Field(default=100, ge=1)
    """The same for a session that was handed back because its node was sick."""
    outage_s: float = Field(default=900.0, ge=0)
    """In a run without a server: how long sessions wait for a failed part before they fail."""
    probe_s: float = Field(default=60.0, gt=0)
    """Time limit of a health probe. Long, because a busy engine queues it."""
    probe_pause_s: float = Field(default=1.0, gt=0)
    """Pause between the first two probes of a sick part; it doubles, up to thirty times as long."""
    upload_bytes: int = Field(default=256 * 2**10, ge=0, le=64 * 2**20)
    """How much of a session's logs, patch and artefacts goes to the rollout server with its result; 0: nothing.
    `polar fetch` gets it from there."""
    drain_s: float = Field(default=0.0, ge=0)
    """A node that is stopped leases nothing more, and lets its sessions go on for this long before it hands them
    back. A second SIGTERM ends the wait."""
    min_free_bytes: int = Field(default=64 * 2**20, ge=0)
    """With less free space, the disk counts as full."""
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Where a node of a rollout server answers `/metrics`, `/healthz` and `/readyz`; several nodes (`--workers`)
    take this port and the following ones. 0: any free port, which the log names. None: nowhere."""
    metrics_host: str = "127.0.0.1"
    metrics: Literal["token", "open"] = "token"
    """Who may read `/metrics` there: whoever has the metrics token, or everyone who reaches it."""
    otlp_endpoint: str | None = None
    """An OpenTelemetry collector that gets a trace of each session, as `http://collector:4318`. None: that of the
    variable `OTEL_EXPORTER_OTLP_ENDPOINT`, and without it no traces are made. Needs the extra `otel`."""
    allowed_modules: AllowedModules = ()
    """Of the tasks of a rollout server: the node gets no session of a task that names another, and does not import
    it. The tasks of `polar run` may name any."""
    labels: tuple[NodeLabel, ...] = Field(default=(), max_length=100)
    """What tasks may ask for in `needs.labels`, such as `gpu` or `site:lab`."""
    runtimes: tuple[str, ...] | None = None
    """Runtimes of Polar that a rollout server may use on this node. None: all that work here."""


class PermittedEndpoint(Strict):
    """An address that evaluators may call from the node; a bare string is the address alone."""

    url: str
    """Scheme, host and port, and perhaps the beginning of the path: `https://judge.example/v1`."""
    api_key_env: str | None = None
    """The variable of the node's environment that a task may name as this endpoint's key."""

    @model_validator(mode="before")
    @classmethod
    def _url_alone(cls, value: Any) -> Any:
        return {"url": value} if isinstance(value, str) else value

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise ValueError(f"{url!r} is not the address of an endpoint; write it as https://host:port/path")
        return url.rstrip("/")


class PermitConfig(Strict):
    """What the operator of a node lets tasks ask of its machine. By default nothing: a task that asks for more is
    refused, and the refusal names the setting."""

    build: bool = False
    """Build the Dockerfiles of tasks. Their commands run as root in containers of the Docker Engine, without the
    limits of a session."""
    build_network: bool = False
    """These builds may use the network."""
    pull: Literal["never", "missing"] = "never"
    """missing: get images that are not on this machine from their registry."""
    mounts: tuple[Path, ...] = ()
    """Folders that tasks may mount read-only, each with all below it."""
    prepare_network: bool = False
    """The prepare steps of a task may use the node's network, before its agent starts."""
    endpoints: tuple[PermittedEndpoint, ...] | None = None
    """Addresses that evaluators may call from the node. None: any, where the tasks are those of the machine's own
    user (`polar run`, `polar up` with a server on loopback, `polar rescore`); none at a node of any other rollout
    server."""


class RetentionConfig(Strict):
    """What the server deletes by itself, a little at a time. By default nothing. It never deletes an open group,
    nor what no client has fetched and no callback has delivered, nor what was fetched in the last ten minutes."""

    results_days: float | None = Field(default=None, gt=0)
    """Whole groups with their tasks, sessions, results and uploads, so long after their last result."""
    blobs_days: float | None = Field(default=None, gt=0)
    """Uploads (traces, calls, files), so long after they came; their results stay."""
    events_days: float | None = Field(default=None, gt=0)
    max_blob_bytes: int | None = Field(default=None, ge=0)
    """The oldest uploads are deleted while all together take more."""


class ServerConfig(Strict):
    host: str = "127.0.0.1"
    port: int = Field(default=8700, ge=0, le=65535)
    """0: any free port."""
    tls_cert: Path | None = None
    """PEM file of the certificate, with those between it and its CA. Read again when it changes. None: no TLS."""
    tls_key: Path | None = None
    """PEM file of its key, without a password."""
    names: tuple[str, ...] = ()
    """Further names under which browsers reach a server that listens on loopback, such as that of a proxy."""
    database: str = "sqlite:///polar-server.db"
    """An SQLAlchemy URL; `postgresql+psycopg://...` needs the extra `postgres`."""
    blobs: str | None = None
    """Where uploads are stored: `folder:PATH`, `s3://bucket/prefix` (needs the extra `s3`) or `database`. None: a
    folder beside an SQLite database, the database itself if that is PostgreSQL."""
    retention: RetentionConfig = RetentionConfig()
    heartbeat_s: float = Field(default=3.0, gt=0)
    lease_beats: float = Field(default=4.0, ge=1)
    """A lease expires after this many missed heartbeats of its node."""
    max_attempts: int = Field(default=10, ge=1)
    """A session is given up after this many lost nodes: it may be what kills them."""
    turn_sessions: int = Field(default=16, ge=1, le=10_000)
    """How many sessions of a task are leased before the next task of the same priority has its turn."""
    callback_networks: tuple[str, ...] = ()
    """Networks that callbacks may go to besides public addresses, as `10.0.0.0/8`."""
    callback_loopback: bool | None = None
    """Whether callbacks may go to loopback. None: while `host` is a loopback address. Turn it off where a proxy on
    this machine makes the server reachable for others."""
    max_task_bytes: int = Field(default=8 * 2**20, gt=0)
    max_upload_bytes: int = Field(default=512 * 2**20, gt=0)
    """Of one session, decompressed."""
    max_connections: int = Field(default=4096, ge=1)
    """Open at once, and never more than half of the process's file descriptors. Beyond that, the connection that
    has waited longest for its client is closed."""
    stalled_request_s: float = Field(default=30.0, gt=0)
    """A request of which less than 16 KiB arrives in this time, and not its end, is answered with status 408."""
    metrics: Literal["token", "open", "off"] = "token"
    """Who may read `/metrics`: whoever has the metrics token (or the control token), everyone who reaches the
    server, or no one."""
    allowed_modules: AllowedModules = ()
    """A task that names another is refused. The server imports none of them: the nodes do."""
    actions_kept: int = Field(default=100_000, ge=100)
    """Entries of the record of control actions; the oldest go."""
    action_log: Path | None = None
    """A file that gets each of them as a line of JSON too."""

    @property
    def scheme(self) -> str:
        return "http" if self.tls_cert is None else "https"

    @model_validator(mode="after")
    def _has_both(self) -> ServerConfig:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key belong together: give both, or neither")
        return self

    @field_validator("blobs")
    @classmethod
    def _is_a_store(cls, blobs: str | None) -> str | None:
        folder, bucket = (blobs or "").removeprefix("folder:"), urlsplit(blobs or "")
        known = blobs in (None, "database") or (str(blobs).startswith("folder:") and folder)
        if "@" in bucket.netloc:  # it would stand in messages
            raise ValueError(
                "an S3 store has no user in its address; credentials are AWS_ACCESS_KEY_ID and others"
            )
        prefix = bucket.path.strip("/")
        odd = bool(prefix) and not {"", ".", ".."}.isdisjoint(prefix.split("/"))  # no key has such a part
        if not known and not (bucket.scheme == "s3" and bucket.netloc and not bucket.query and not odd):
            raise ValueError(f"{blobs!r} is no store; write folder:PATH, s3://bucket/prefix or database")
        return blobs

    @field_validator("callback_networks")
    @classmethod
    def _are_networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        for network in networks:
            ip_network(network)
        return networks


class Config(Strict):
    runs_dir: Path = Path("polar-runs")
    engine: Spec = Spec(name="embedded")
    model: ModelConfig = ModelConfig()
    gateway: GatewayConfig = GatewayConfig()
    pools: PoolConfig = PoolConfig()
    node: NodeConfig = NodeConfig()
    permits: PermitConfig = PermitConfig()
    server: ServerConfig = ServerConfig()


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def for_foreign_tasks(config: Config) -> Config:
    """The config of a node whose tasks come from others: evaluators call only the addresses that are listed."""
    if config.permits.endpoints is not None:
        return config
    return config.model_copy(update={"permits": config.permits.model_copy(update={"endpoints": ()})})


def load(path: Path | None = None) -> Config:
    """The config of `path`, else of ./polar.toml if there is one, else the defaults."""
    chosen = path or Path(CONFIG_FILE)
    if not chosen.exists():
        if path is not None:
            raise ConfigError(f"no config file at {path}")
        return Config()
    try:
        text = chosen.read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{chosen}: not valid TOML: {error}") from error
    except OSError as error:
        raise ConfigError(f"cannot read {chosen}: {error.strerror}") from error
    return parse(values, str(chosen), FieldLines(text))


def parse(values: Mapping[str, Any], source: str, lines: FieldLines | None = None) -> Config:
    """`source`: what an error names as the place of the values."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise refused(field_problems(error, Config), source, lines) from error


def refused(problems: Sequence[FieldProblem], source: str, lines: FieldLines | None = None) -> ConfigError:
    """An error that names the place of each field."""

    def placed(problem: FieldProblem) -> str:
        line = lines.of(problem.field) if lines else None
        return f"line {line}: {problem}" if line else problem

    shown = [placed(problem) for problem in problems[:SHOWN_PROBLEMS]]
    return ConfigError(f"{source}: {shown[0]}" if len(shown) == 1 else "\n  ".join([f"{source}:", *shown]))


def refused_in_file(problems: Sequence[FieldProblem], path: Path | None) -> ConfigError:
    """The same for fields of a config that `load` has read from `path`, or from ./polar.toml."""
    chosen = path or Path(CONFIG_FILE)
    try:
        return refused(problems, str(chosen), FieldLines(chosen.read_text(encoding="utf-8")))
    except OSError:  # there is no file: the config is made of defaults
        return refused(problems, "config")


def cache_dir() -> Path:
    """Downloads that all runs share: weights, harnesses. `POLAR_CACHE` moves it."""
    chosen = os.environ.get("POLAR_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(chosen) if chosen else base / "polar"
