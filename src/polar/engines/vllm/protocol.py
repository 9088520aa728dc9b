"""The format of vLLM's two routes for tokens: requests, streamed events, and which logprob belongs to which id.

`/inference/v1/generate` is made for tokens and reports weight versions; every server has `/v1/completions`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from polar.engines.base import GenerateRequest, Piece
from polar.engines.remote.server import (
    END_REASONS,
    PromptIds,
    RemoteServer,
    VersionSpan,
    policy_spans,
    sampling_fields,
    version_at,
)
from polar.errors import EngineDefect, EngineError
from polar.types import logprobs, token_ids

GENERATE = "/inference/v1/generate"
COMPLETIONS = "/v1/completions"
Route = Literal["/inference/v1/generate", "/v1/completions"]
MISSING = -9999.0
"""vLLM writes it if it has no logprob."""
ID_PREFIX = "token_id:"


class NamedLogprob(msgspec.Struct, frozen=True):
    logprob: float | None = None
    token_id: int | None = None
    token: str = ""
    """Versions before 0.32 put the id here."""


class ChoiceLogprobs(msgspec.Struct, frozen=True):
    content: list[NamedLogprob] | None = None
    """From `/inference/v1/generate`; the other two fields are from `/v1/completions`."""
    token_logprobs: list[float | None] | None = None
    tokens: list[str] = []


class ScoredToken(msgspec.Struct, frozen=True):
    logprob: float | None = None


PromptLogprobs = list[dict[str, ScoredToken] | None]


class VllmChoice(msgspec.Struct, frozen=True):
    token_ids: list[int] | None = None
    logprobs: ChoiceLogprobs | None = None
    finish_reason: str | None = None
    weight_versions: list[VersionSpan] | None = None
    """On the last event, for the whole reply."""
    prompt_logprobs: PromptLogprobs | None = None


class CachedTokens(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: CachedTokens | None = None


class VllmEvent(msgspec.Struct, frozen=True):
    choices: list[VllmChoice] = []
    usage: Usage | None = None
    error: Any = None


class ScoreReply(msgspec.Struct, frozen=True):
    choices: list[VllmChoice] = []
    prompt_logprobs: PromptLogprobs | None = None


class ServerVersion(msgspec.Struct, frozen=True):
    version: str = ""


def generation_body(
    route: Route, model: str, request: GenerateRequest, max_tokens: int, prompt: PromptIds
) -> dict[str, Any]:
    """`prompt`: the request's ids."""
    parameters: dict[str, Any] = {
        "n": 1,
        **sampling_fields(request.sampling),
        "max_tokens": max_tokens,
        "min_tokens": 0,
        "seed": request.seed,
        "stop": [],
        "stop_token_ids": list(request.stop_ids),
        "skip_special_tokens": False,
        "logprobs": 0,
    }
    if request.json_schema is not None:
        # vLLM treats an empty schema, which allows anything, as none.
        parameters["structured_outputs"] = {"json": request.json_schema or {"type": "object"}}
    body = prompt_body(route, model, prompt, parameters)
    return {**body, "stream": True, "stream_options": {"include_usage": True}}


def score_body(route: Route, model: str, ids: list[int]) -> dict[str, Any]:
    return prompt_body(route, model, ids, {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0})


def prompt_body(route: Route, model: str, ids: PromptIds, parameters: dict[str, Any]) -> dict[str, Any]:
    if route == GENERATE:
        return {"model": model, "token_ids": ids, "sampling_params": {**parameters, "detokenize": False}}
    return {
        "model": model,
        "prompt": ids,
        "add_special_tokens": False,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        **parameters,
    }


class StreamedIds:
    """Collects the ids of a stream. The last piece waits for the end of the stream, where the usage is
    reported."""

    def __init__(self, server: RemoteServer, route: Route) -> None:
        self._server = server
        self._route: Route = route
        self.ids: list[int] = []
        """Not yet returned in a piece."""
        self._values: list[float] = []
        self._count = 0
        """Ids that were returned in pieces."""
        self._last: VllmChoice | None = None
        self._usage: Usage | None = None

    @property
    def ended(self) -> bool:
        """Whether the last event has arrived. Then the ids belong to the last piece."""
        return self._last is not None

    def add(self, batch: Sequence[bytes]) -> None:
        sampled: list[VllmChoice] = []
        try:
            for event in self._server.read_all(batch, self._route, VllmEvent):
                if event.error is not None:
                    raise self._server.fault(self._route, event.error)
                self._usage = event.usage or self._usage
                for choice in event.choices:
                    if choice.finish_reason is not None:
                        self._last = choice
                    elif choice.token_ids:
                        sampled.append(choice)
        finally:  # ids that came before an error count
            self._keep(sampled)

    def _keep(self, sampled: Sequence[VllmChoice]) -> None:
        try:
            pairs = [paired(*sampled)]
        except EngineDefect:  # in one of them; keep those before it
            pairs = map(paired, sampled)
        for ids, values in pairs:
            self.ids += ids
            self._values += values

    def piece(self) -> Piece:
        """The ids since the last piece."""
        piece = Piece(token_ids(self.ids), logprobs(self._values))
        self._count += len(self.ids)
        self.ids, self._values = [], []
        return piece

    def end(self) -> Piece:
        if self._last is None:
            raise no_finish_reason(self._server)
        last, rest = last_piece(self._last, self._usage, self._count), self.piece()
        return msgspec.structs.replace(last, ids=rest.ids + last.ids, logprobs=rest.logprobs + last.logprobs)


def no_finish_reason(server: RemoteServer) -> EngineError:
    return EngineError(f"vLLM at {server.url} ended a reply without a finish reason; see the server's log")


def paired(*choices: VllmChoice) -> tuple[list[int], list[float]]:
    """The ids of events and a logprob for each, NaN where the server had none."""
    ids = [token_id for choice in choices for token_id in choice.token_ids or ()]
    given = [choice.logprobs for choice in choices if choice.logprobs is not None]
    entries = [entry for each in given for entry in each.content or ()]
    if entries:
        names: Sequence[int | None] = [entry.token_id for entry in entries]
        if names != ids:
            names = [_named_id(entry.token) if entry.token_id is None else entry.token_id for entry in entries]
        values = [entry.logprob for entry in entries]
    else:
        names = [_named_id(name) for each in given for name in each.tokens]
        values = [value for each in given for value in each.token_logprobs or ()]
    if not ids and not values:
        return [], []
    if len(ids) != len(values) or names != ids:
        raise EngineDefect(
            f"vLLM gave {len(ids)} ids and {len(values)} logprobs that do not belong together; "
            "use 0.13 or newer, without a proxy that rewrites its replies"
        )
    # `or_missing` of each, without a call for each token of each reply.
    return ids, [value if value is not None and MISSING < value < math.inf else math.nan for value in values]


def last_piece(choice: VllmChoice, usage: Usage | None, before: int) -> Piece:
    """The end of a reply, of which `before` ids came in earlier pieces."""
    ids, values = paired(choice)
    details = usage.prompt_tokens_details if usage else None
    cached = details.cached_tokens if details else None
    spans = policy_spans(choice.weight_versions)
    return Piece(
        ids=token_ids(ids),
        logprobs=logprobs(values),
        finish_reason=END_REASONS.get(choice.finish_reason or "", "aborted"),
        evaluated_tokens=None if usage is None or cached is None else usage.prompt_tokens - cached,
        policy_version=version_at(spans, before),
        policy_spans=spans,
    )


def _named_id(name: str) -> int | None:
    number = name.removeprefix(ID_PREFIX)
    return int(number) if number != name and number.isdecimal() else None
