"""HTTP with the judge's endpoint: one request, tried again with growing pauses. The key appears in no message."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec
import orjson

from polar.back_off import BackOff
from polar.errors import EvaluatorError
from polar.evaluators.judge.options import JudgeOptions

TEMPORARY = frozenset({408, 425, 429, 500, 502, 503, 504, 529})
"""Statuses after which the same request may succeed."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
MAX_REPLY_BYTES = 16 * 2**20
SHOWN_CHARS = 500
ADVICE = {
    400: '; if it does not know `response_format`, set constrain = "json_object" or "none"',
    401: "; check the variable that `api_key_env` names, in the environment of the node",
    403: "; check the variable that `api_key_env` names, in the environment of the node",
    404: "; check `base_url` and `model`",
}


class JudgeUnreachable(EvaluatorError):
    """The endpoint gave no reply. There is no verdict, which is not a reward of zero."""


class _Retry(Exception):
    """The same request may succeed later."""

    def __init__(self, why: str, after_s: float = 0.0) -> None:
        super().__init__(why)
        self.after_s = after_s


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Said(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    message: _Said
    finish_reason: str | None = None


class _Completion(msgspec.Struct, frozen=True):
    choices: list[_Choice]
    model: str | None = None
    usage: _Usage | None = None


class JudgeReply(msgspec.Struct, frozen=True):
    text: str
    model: str
    """As the endpoint names it; empty: it does not."""
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    tries: int


class JudgeEndpoint:
    """Use it as an async context manager."""

    def __init__(self, options: JudgeOptions) -> None:
        self._options = options
        self._key = _key_of(options.api_key_env)

    async def __aenter__(self) -> JudgeEndpoint:
        timeout = aiohttp.ClientTimeout(total=self._options.timeout_s)
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._http = aiohttp.ClientSession(headers=headers, timeout=timeout)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._http.close()

    async def ask(self, body: Mapping[str, Any]) -> JudgeReply:
        """Raises `JudgeUnreachable`."""
        back_off = BackOff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        for tries in range(1, self._options.retries + 2):
            try:
                return await self._once(body, tries)
            except _Retry as error:
                if tries > self._options.retries:
                    why = f"gave no reply in {tries} tries: {self._hide(str(error))}"
                    raise JudgeUnreachable(f"the judge at {self._options.base_url} {why}") from error
                await asyncio.sleep(max(back_off.next_s(), min(error.after_s, LONGEST_PAUSE_S)))
        raise AssertionError("the last try returns or raises")

    async def _once(self, body: Mapping[str, Any], tries: int) -> JudgeReply:
        url, headers = f"{self._options.base_url}/chat/completions", {"Content-Type": "application/json"}
        try:
            # A redirect could lead to an address that the operator did not allow.
            async with self._http.post(
                url, data=orjson.dumps(body), headers=headers, allow_redirects=False
            ) as reply:
                payload = await _read(reply)
                if reply.status in TEMPORARY:
                    after_s = _seconds(reply.headers.get("retry-after"))
                    raise _Retry(f"{reply.status}: {_shown(payload)}", after_s)
                if reply.status != 200:
                    raise self._refused(reply.status, payload)
        except TimeoutError as error:
            raise _Retry(f"no reply within {self._options.timeout_s:g} s (timeout_s)") from error
        except (aiohttp.ClientError, OSError) as error:
            raise _Retry(f"no connection: {str(error) or type(error).__name__}") from error
        return _reply_of(payload, self._options.base_url, tries)

    def _refused(self, status: int, payload: bytes) -> JudgeUnreachable:
        said = self._hide(_shown(payload))
        return JudgeUnreachable(
            f"the judge at {self._options.base_url} answered with {status}: {said}{ADVICE.get(status, '')}"
        )

    def _hide(self, text: str) -> str:
        return text.replace(self._key, "[key]") if self._key else text


def _key_of(variable: str | None) -> str:
    if variable is None:
        return ""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise JudgeUnreachable(
            f"the node's environment has no {variable}, which `api_key_env` names: set it there"
        )
    return key


async def _read(reply: aiohttp.ClientResponse) -> bytes:
    payload = bytearray()
    async for chunk in reply.content.iter_any():
        payload += chunk
        if len(payload) > MAX_REPLY_BYTES:
            raise JudgeUnreachable(f"the judge's reply has more than {MAX_REPLY_BYTES} bytes")
    return bytes(payload)


def _reply_of(payload: bytes, base_url: str, tries: int) -> JudgeReply:
    try:
        found = msgspec.json.decode(payload, type=_Completion)
        choice = found.choices[0]
    except (msgspec.MsgspecError, UnicodeDecodeError, IndexError) as error:
        raise JudgeUnreachable(
            f"{base_url} does not speak the OpenAI API: {error}; it said {_shown(payload)}"
        ) from error
    usage = found.usage or _Usage()
    return JudgeReply(
        choice.message.content or "",
        found.model or "",
        choice.finish_reason or "",
        usage.prompt_tokens or 0,
        usage.completion_tokens or 0,
        tries,
    )


def _shown(payload: bytes) -> str:
    return payload[:SHOWN_CHARS].decode(errors="replace").strip()


def _seconds(value: str | None) -> float:
    try:
        return max(0.0, float(value or 0))
    except ValueError:  # a date
        return 0.0
