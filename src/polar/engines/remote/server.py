"""An inference server at a configured address: its options, calls and streams, and errors that name the fix."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard, TypeVar
from urllib.parse import urlsplit

import msgspec
import orjson
from pydantic import Field, field_validator

from polar.engines.remote.http_client import HttpClient, HttpRequest
from polar.errors import ConfigError, EngineBusy, EngineDefect, EngineError
from polar.types import Sampling, Strict

RETRY_AFTER_S = 1.0
"""For a server that says it is busy and not for how long."""
MAX_EVENT_BYTES = 64 * 2**20
DONE = b"[DONE]"
PACE_S = 0.05
"""How often the events of a stream are read while it goes on. Each look costs as much as dozens of events, and no
harness acts on a part of a reply; the end of a reply waits for no look."""

T = TypeVar("T")


class RemoteOptions(Strict):
    url: str
    """The root of the server, such as `http://10.0.0.7:8000`."""
    api_key_env: str | None = None
    """The environment variable that holds the server's key; a key in a config file would be read by too many."""
    api_key_file: Path | None = None
    start_timeout_s: float = Field(default=120.0, gt=0)
    """For the whole self-test at the start."""

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no address of a server; write it as http://host:port")
        if parts.username or parts.password:
            raise ValueError("no key in the url: name an environment variable in `api_key_env`")
        if parts.query or parts.fragment:
            raise ValueError(f"{url!r} is more than the root of a server; leave out what follows `?` or `#`")
        return url.rstrip("/").removesuffix("/v1")

    def api_key(self) -> str:
        """The key, read when the engine starts. Raises `ConfigError`."""
        if self.api_key_env is not None:
            key = os.environ.get(self.api_key_env, "").strip()
            if not key:
                raise ConfigError(f"the environment has no {self.api_key_env}, which `api_key_env` names: set it")
            return key
        if self.api_key_file is not None:
            try:
                return self.api_key_file.read_text(encoding="utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigError(
                    f"no key can be read from `api_key_file` {self.api_key_file}: {error}"
                ) from error
        return ""


class StreamOptions(RemoteOptions):
    """For servers that stream, alone or behind a router."""

    silence_timeout_s: float = Field(default=600.0, gt=0)
    """A server that says nothing for so long, queueing included, is given up."""
    session_header: str = "x-session-id"
    """Carries the session's id, by which a router keeps a session with the replica that has its prefix."""
    parallel: int = Field(default=256, ge=1)
    """Sequences the server evaluates at once, where it does not say so itself."""


class Refused(EngineError):
    """The server answered with an error."""

    def __init__(self, message: str, status: int, reason: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class RemoteServer:
    """HTTP with one server. `product` is its name in messages, `hint` how such a server is started."""

    def __init__(self, product: str, hint: str, options: StreamOptions) -> None:
        self.product = product
        self.url = options.url
        self._hint = hint
        key = options.api_key()
        credentials = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = HttpClient(options.url, credentials, options.silence_timeout_s)
        self._decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}
        """Of batches, by the kind of their events: making one takes longer than a whole reply."""

    async def close(self) -> None:
        await self._http.close()

    async def get(self, path: str, kind: type[T]) -> T:
        return await self._call(HttpRequest("GET", path), kind)

    async def post(
        self, path: str, body: Mapping[str, Any], kind: type[T], headers: Mapping[str, str] | None = None
    ) -> T:
        return await self._call(_post(path, body, headers or {}), kind)

    async def _call(self, request: HttpRequest, kind: type[T]) -> T:
        try:
            async with self._http.request(request) as reply:
                payload = await reply.whole()
        except OSError as error:
            raise self._unreachable(error) from error
        if reply.status != 200:
            raise self._refused(request.path, reply.status, payload, reply.headers.get("retry-after"))
        return self.read(payload, request.path, kind)

    def read(self, payload: bytes, path: str, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(payload, type=kind)
        except msgspec.MsgspecError as error:
            raise EngineDefect(
                f"{self.product} answered {path} in another shape: {error}; see docs/engines.md for its versions"
            ) from error

    def read_all(self, batch: Sequence[bytes], path: str, kind: type[T]) -> Iterator[T]:
        """The events of a batch, decoded together. Where one cannot be read, those before it come out first."""
        decoder = self._decoders.get(kind) or self._decoders.setdefault(kind, msgspec.json.Decoder(list[kind]))
        try:
            events: Iterable[T] = decoder.decode(b"[" + b",".join(batch) + b"]")
        except msgspec.MsgspecError:
            events = (self.read(data, path, kind) for data in batch)
        yield from events

    async def stream(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> AsyncGenerator[list[bytes]]:
        """The data of the events up to the server's `[DONE]`, in batches. Leaving it early closes the connection,
        by which the server knows that nobody wants the rest."""
        try:
            async with self._http.request(_post(path, body, headers)) as reply:
                if reply.status != 200:
                    wait = reply.headers.get("retry-after")
                    raise self._refused(path, reply.status, await reply.whole(), wait)
                lines = EventLines()
                while data := await reply.arrived(PACE_S):
                    batch = lines.data_of(data)
                    if DONE in batch:
                        yield batch[: batch.index(DONE)]
                        await reply.ended(PACE_S)  # then the connection can be used again
                        return
                    if batch:
                        yield batch
        except OSError as error:
            raise self._unreachable(error) from error
        raise EngineError(f"{self.product} at {self.url} broke a reply off; see the server's log")

    def fault(self, path: str, error: Any) -> EngineError:
        """The error that an event of a stream tells."""
        said = orjson.dumps({"error": error})
        code: Any = error.get("code") if _is_object(error) else None
        return self._refused(path, code if isinstance(code, int) else 500, said, None)

    def _unreachable(self, error: Exception) -> EngineError:
        return EngineError(
            f"no connection to {self.product} at {self.url}: {error or type(error).__name__}; see that the server "
            f"runs ({self._hint}), its log, and the engine option `url`"
        )

    def _refused(self, path: str, status: int, payload: bytes, retry_after: str | None) -> EngineError:
        reason = reason_of(payload)
        message = f"{self.product} answered {path} with {status}: {reason}"
        if status in (429, 503):
            return EngineBusy(message, _retry_after(retry_after))
        advice = {
            401: "give its key by `api_key_env` or `api_key_file`",
            404: f"see that `url` is the root of a {self.product} server ({self._hint})",
        }.get(status, "see the server's log")
        return Refused(f"{message}; {advice}", status, reason)


def sampling_fields(sampling: Sampling) -> dict[str, Any]:
    """Every value under the name all of these servers have for it: they take those left out from the model's
    generation config, or from preferences of their own."""
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": sampling.min_p,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "ignore_eos": False,
    }


def _post(path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> HttpRequest:
    return HttpRequest("POST", path, {"Content-Type": "application/json", **headers}, orjson.dumps(body))


def _retry_after(value: str | None) -> float:
    try:
        return max(0.0, float(value or RETRY_AFTER_S))
    except ValueError:  # a date, which some proxies write
        return RETRY_AFTER_S


def reason_of(payload: bytes) -> str:
    """What an error body says, in whichever of the usual shapes."""
    try:
        said: Any = orjson.loads(payload)
    except orjson.JSONDecodeError:
        return payload[:300].decode(errors="replace").strip() or "no reason given"
    for name in ("error", "message", "detail"):
        if _is_object(said) and said.get(name):
            said = said[name]
    return str(said)[:1000] or "no reason given"


def _is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


class EventLines:
    """The data of server-sent events, whatever the pieces they arrive in."""

    def __init__(self) -> None:
        self._rest = b""

    def data_of(self, piece: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise EngineDefect(f"the server sent an event of more than {MAX_EVENT_BYTES} bytes")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]
