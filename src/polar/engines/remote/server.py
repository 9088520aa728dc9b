"""An inference server at a configured address: options, requests, streams, and errors that name the fix.

Also the fields that vLLM and SGLang share: sampling and weight versions.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard, TypeVar
from urllib.parse import urlsplit

import msgspec
import orjson
from pydantic import Field, field_validator

from polar.engines.base import EndReason, LogprobMode
from polar.engines.remote.http_client import HttpClient, HttpRequest
from polar.errors import ConfigError, EngineBusy, EngineDefect, EngineError
from polar.sse import EventParser
from polar.types import PolicySpan, Sampling, Strict

RETRY_AFTER_S = 1.0
"""If a busy server does not name a delay."""
MAX_EVENT_BYTES = 64 * 2**20
DONE = b"[DONE]"
HEALTH = "/health"
PACE_S = 0.05
"""How often a running stream is read. A read costs as much as dozens of events, and no harness acts on a part of a
reply. The end of a reply is read at once."""
END_REASONS: dict[str, EndReason] = {"stop": "stop", "tool_calls": "stop", "length": "length", "abort": "aborted"}
UNSET_VERSION = "default"
"""What a server reports as long as no weight version was set."""

T = TypeVar("T")
PromptIds = orjson.Fragment | list[int]
"""A list of ids, or its JSON."""


class RemoteOptions(Strict):
    url: str
    """The root of the server, such as `http://10.0.0.7:8000`."""
    api_key_env: str | None = None
    """The environment variable with the server's key. The key itself does not belong into a config file."""
    api_key_file: Path | None = None
    start_timeout_s: float = Field(default=120.0, gt=0)
    """For the whole self-test at the start."""

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not the address of a server; write it as http://host:port")
        if parts.username or parts.password:
            raise ValueError("the url must not contain a key: name an environment variable in `api_key_env`")
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
                    f"cannot read the key file {self.api_key_file} (`api_key_file`): {error}"
                ) from error
        return ""


class StreamOptions(RemoteOptions):
    """For servers that stream, alone or behind a router."""

    silence_timeout_s: float = Field(default=600.0, gt=0)
    """How long a server may send nothing, queueing included, before the call fails."""
    session_header: str = "x-session-id"
    """Header with the session's id, by which a router keeps a session on the replica that has its prefix."""
    parallel: int = Field(default=256, ge=1)
    """Sequences the server evaluates at once, if it does not report the number."""
    logprob_mode: LogprobMode | None = None
    """None: measured at the start."""
    chat_template_kwargs: dict[str, Any] = {}
    """In chat mode, arguments of the model's template such as `enable_thinking`."""


class ServerRefused(EngineError):
    """The server answered with an error status."""

    def __init__(self, message: str, status: int, reason: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


class RemoteServer:
    """HTTP with one server. `product` is its name in messages, `hint` the command that starts one."""

    def __init__(
        self,
        product: str,
        hint: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        silence_timeout_s: float = 600.0,
    ) -> None:
        self.product = product
        self.url = url
        self._hint = hint
        self._http = HttpClient(url, headers or {}, silence_timeout_s)
        self._decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}
        """Of batches, by the type of their events: making one takes longer than a whole reply."""

    async def close(self) -> None:
        await self._http.close()

    async def get(self, path: str, kind: type[T]) -> T:
        return await self._call(HttpRequest("GET", path), kind)

    async def post(
        self, path: str, body: Mapping[str, Any], kind: type[T], headers: Mapping[str, str] | None = None
    ) -> T:
        return await self._call(_post(path, body, headers or {}), kind)

    async def command(self, path: str, body: Mapping[str, Any] | None = None) -> None:
        """A POST whose reply says nothing beside its status."""
        await self._payload(_post(path, body or {}, {}))

    async def ping(self) -> None:
        """Raises `EngineError` if nothing answers, or the server says that it is unwell."""
        try:
            await self._payload(HttpRequest("GET", HEALTH))
        except ServerRefused as error:
            if error.status != 404:  # a router may not have the route, and answers all the same
                raise

    async def _call(self, request: HttpRequest, kind: type[T]) -> T:
        return self._read(await self._payload(request), request.path, kind)

    async def _payload(self, request: HttpRequest) -> bytes:
        try:
            async with self._http.request(request) as reply:
                payload = await reply.whole()
        except OSError as error:
            raise self._unreachable(error) from error
        if reply.status != 200:
            raise self._refusal(request.path, reply.status, payload, reply.headers.get("retry-after"))
        return payload

    def _read(self, payload: bytes, path: str, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(payload, type=kind)
        except msgspec.MsgspecError as error:
            raise EngineDefect(
                f"{self.product} answered {path} in an unknown format: {error}; see docs/engines.md for versions"
            ) from error

    def read_all(self, batch: Sequence[bytes], path: str, kind: type[T]) -> Iterator[T]:
        """Decodes the events of a batch together. If one is unreadable, those before it are yielded first."""
        decoder = self._decoders.get(kind) or self._decoders.setdefault(kind, msgspec.json.Decoder(list[kind]))
        try:
            events: Iterable[T] = decoder.decode(b"[" + b",".join(batch) + b"]")
        except msgspec.MsgspecError:
            events = (self._read(data, path, kind) for data in batch)
        yield from events

    async def stream(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str]
    ) -> AsyncGenerator[list[bytes]]:
        """The data of the events up to the server's `[DONE]`, in batches. Leaving early closes the connection, and
        the server stops sampling."""
        try:
            async with self._http.request(_post(path, body, headers)) as reply:
                if reply.status != 200:
                    wait = reply.headers.get("retry-after")
                    raise self._refusal(path, reply.status, await reply.whole(), wait)
                parser = EventParser()
                while data := await reply.arrived(PACE_S):
                    batch = parser.feed(data)
                    if DONE in batch:
                        yield batch[: batch.index(DONE)]
                        await reply.ended(PACE_S)  # then the connection can be reused
                        return
                    if batch:
                        yield batch
                    if parser.unfinished_bytes > MAX_EVENT_BYTES:
                        raise EngineDefect(f"{self.product} sent an event of more than {MAX_EVENT_BYTES} bytes")
        except OSError as error:
            raise self._unreachable(error) from error
        raise EngineError(f"{self.product} at {self.url} ended a stream early; see the server's log")

    def fault(self, path: str, error: Any) -> EngineError:
        """The error that an event of a stream reports."""
        code: Any = error.get("code") if _is_object(error) else None
        return self._refusal(path, code if isinstance(code, int) else 500, orjson.dumps({"error": error}), None)

    def _unreachable(self, error: Exception) -> EngineError:
        return EngineError(
            f"no connection to {self.product} at {self.url}: {error or type(error).__name__}; check that the "
            f"server runs ({self._hint}), its log, and the engine option `url`"
        )

    def _refusal(self, path: str, status: int, payload: bytes, retry_after: str | None) -> EngineError:
        reason = reason_of(payload)
        message = f"{self.product} answered {path} with {status}: {reason}"
        if status in (429, 503):
            return EngineBusy(message, _retry_after(retry_after))
        advice = {
            401: "set its key with `api_key_env` or `api_key_file`",
            404: f"check that `url` is the root of a {self.product} server ({self._hint})",
        }.get(status, "see the server's log")
        return ServerRefused(f"{message}; {advice}", status, reason)


def _post(path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> HttpRequest:
    return HttpRequest("POST", path, {"Content-Type": "application/json", **headers}, orjson.dumps(body))


def _retry_after(value: str | None) -> float:
    try:
        return max(0.0, float(value or RETRY_AFTER_S))
    except ValueError:  # a date, which some proxies send
        return RETRY_AFTER_S


def bearer(api_key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}


def reason_of(payload: bytes) -> str:
    """The message of an error body, in any of the usual formats."""
    try:
        found: Any = orjson.loads(payload)
    except orjson.JSONDecodeError:
        return payload[:300].decode(errors="replace").strip() or "no reason given"
    for name in ("error", "message", "detail"):
        if _is_object(found) and found.get(name):
            found = found[name]
    return str(found)[:1000] or "no reason given"


def _is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def sampling_fields(sampling: Sampling) -> dict[str, Any]:
    """Every value is sent: servers replace missing ones by the model's generation config or by their own
    defaults."""
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


class VersionSpan(msgspec.Struct, frozen=True):
    """The version of the weights that sampled the tokens from `start` to before `end` of a reply."""

    version: str
    start: int = 0
    end: int = 0


def set_version(version: str | None) -> str:
    """Empty if no version was ever set."""
    return "" if version is None or version == UNSET_VERSION else version


def policy_spans(reported: Sequence[VersionSpan] | None) -> tuple[PolicySpan, ...]:
    """The spans of a reply, adjacent ones of the same version merged; none if no version was ever set."""
    spans: list[PolicySpan] = []
    for span in reported or ():
        version, last = set_version(span.version), spans[-1] if spans else None
        if span.end <= span.start:
            continue
        if last is not None and last.version == version and last.start + last.length == span.start:
            spans[-1] = PolicySpan(version, last.start, span.end - last.start)
        else:
            spans.append(PolicySpan(version, span.start, span.end - span.start))
    return tuple(spans) if any(span.version for span in spans) else ()


def version_at(spans: Sequence[PolicySpan], position: int) -> str:
    inside = (span.version for span in spans if span.start <= position < span.start + span.length)
    return next(inside, "")
