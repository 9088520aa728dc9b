"""OpenAI's chat completions, as endpoints of many makers take them: requests, and a stream's events as pieces.

Only what the task or the harness sets is sent: makers refuse fields that they do not know.
"""

from __future__ import annotations

from typing import Any

import msgspec

from polar.engines.base import ChatPrompt, EndReason, TextPiece
from polar.engines.endpoint.connection import EndpointConnection
from polar.engines.remote.chat_protocol import ReplyMessage, StreamedReply, prompt_fields
from polar.types import EndpointUsage, Sampling

DONE = b"[DONE]"
PLAIN = Sampling()


class TokenDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class OpenAIUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: TokenDetails | None = None
    completion_tokens_details: TokenDetails | None = None


class OpenAIChoice(msgspec.Struct, frozen=True):
    delta: ReplyMessage = ReplyMessage()
    finish_reason: str | None = None


class OpenAIError(msgspec.Struct, frozen=True):
    code: int = 500


class OpenAIEvent(msgspec.Struct, frozen=True):
    choices: list[OpenAIChoice] = []
    usage: OpenAIUsage | None = None
    error: Any = None


class OpenAIApi:
    path = "/v1/chat/completions"
    constrains = True

    def __init__(self, limit_field: str = "max_completion_tokens") -> None:
        self._limit_field = limit_field

    def headers(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"} if key else {}

    def body(self, model: str, prompt: ChatPrompt) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "model": model,
            **prompt_fields(prompt),
            "stream": True,
            "stream_options": {"include_usage": True},
            **changed_sampling(prompt.sampling),
        }
        for tool in fields.get("tools", ()):
            tool["function"]["parameters"] = tool["function"]["parameters"] or {"type": "object", "properties": {}}
        if prompt.stop:
            fields["stop"] = list(prompt.stop)
        if prompt.seed is not None:
            fields["seed"] = prompt.seed
        if prompt.max_tokens is not None:
            fields[self._limit_field] = prompt.max_tokens
        if prompt.json_schema is not None:
            schema = {"name": "reply", "schema": prompt.json_schema or {"type": "object"}}
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}
        return fields

    def reader(self, connection: EndpointConnection) -> OpenAIReader:
        return OpenAIReader(connection)


def changed_sampling(sampling: Sampling) -> dict[str, Any]:
    """The values that are not those of plain sampling."""
    names = ("temperature", "top_p", "top_k", "min_p")
    return {name: value for name in names if (value := getattr(sampling, name)) != getattr(PLAIN, name)}


class OpenAIReader:
    """Reads one reply."""

    def __init__(self, connection: EndpointConnection) -> None:
        self._connection = connection
        self._reply = StreamedReply()
        self._finish_reason: EndReason | None = None
        self._usage: EndpointUsage | None = None

    def feed(self, data: bytes) -> TextPiece | None:
        """The new part of the reply, if the event has one."""
        if data == DONE:
            return None
        try:
            event = msgspec.json.decode(data, type=OpenAIEvent)
        except msgspec.MsgspecError as error:
            raise self._connection.refusal(501, f"it sends events in an unknown format: {error}") from error
        if event.error is not None:
            raise self._connection.refusal(_status_of(event.error), msgspec.json.encode({"error": event.error}))
        if event.usage is not None:
            self._usage = _usage(event.usage)
        deltas = tuple(delta for choice in event.choices for delta in self._reply.add(choice.delta))
        for choice in event.choices:
            if choice.finish_reason is not None:
                self._finish_reason = "length" if choice.finish_reason == "length" else "stop"
        return TextPiece(deltas) if deltas else None

    def end(self) -> TextPiece:
        """The last piece. Raises `EndpointRefused` if the reply has no end."""
        if self._finish_reason is None:
            raise self._connection.refusal(502, "it ended a reply without a finish reason")
        deltas = self._reply.end(cut=self._finish_reason == "length")
        return TextPiece(deltas, self._finish_reason, self._usage)


def _status_of(error: Any) -> int:
    """Of an error within a stream: its code, if that is an HTTP status."""
    try:
        return msgspec.convert(error, OpenAIError).code
    except msgspec.ValidationError:
        return 500


def _usage(reported: OpenAIUsage) -> EndpointUsage:
    prompt, completion = reported.prompt_tokens_details, reported.completion_tokens_details
    return EndpointUsage(
        prompt_tokens=reported.prompt_tokens,
        completion_tokens=reported.completion_tokens,
        cached_tokens=prompt.cached_tokens if prompt else None,
        reasoning_tokens=completion.reasoning_tokens if completion else None,
    )
