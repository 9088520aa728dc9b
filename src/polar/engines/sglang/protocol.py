"""The format of SGLang's `/generate`: requests, events, and which ids of an event are new.

An event contains all ids sampled so far, or with `--incremental-streaming-output` only the new ones. Comparing
with `completion_tokens`, the count of all, shows which.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import orjson

from polar.engines.base import GenerateRequest
from polar.engines.pieces import or_missing
from polar.engines.remote.server import (
    PromptIds,
    RemoteServer,
    VersionSpan,
    policy_spans,
    sampling_fields,
    set_version,
    version_at,
)
from polar.errors import EngineDefect
from polar.types import PolicySpan

GENERATE = "/generate"
MAX_SEED = 0x7FFFFFFF
MISSING = -1e30
"""SGLang clips logprobs at the smallest float: a probability of zero."""

LogprobEntry = tuple[float | None, int, str | None]


class SglangFinish(msgspec.Struct, frozen=True):
    type: Literal["stop", "tool_calls", "length", "abort"]
    """tool_calls: a stop, in chat mode."""
    message: str = ""
    status_code: int | None = None

    def check(self, server: RemoteServer, path: str) -> None:
        """Raises the error that SGLang reports as an aborted reply."""
        if self.type == "abort" and self.status_code is not None:
            raise server.fault(path, {"message": self.message, "code": self.status_code})


class MetaInfo(msgspec.Struct, frozen=True):
    completion_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    finish_reason: SglangFinish | None = None
    weight_version: str | None = None
    """At the time of this event; earlier tokens may have another."""
    weight_versions: list[VersionSpan] | None = None
    """For the reply so far, from servers that record it per token."""
    output_token_logprobs: list[LogprobEntry] | None = None
    input_token_logprobs: list[LogprobEntry] | None = None

    @property
    def evaluated_tokens(self) -> int | None:
        return None if self.cached_tokens is None else self.prompt_tokens - self.cached_tokens

    @property
    def policy_spans(self) -> tuple[PolicySpan, ...]:
        return policy_spans(self.weight_versions)

    def version_at(self, position: int) -> str:
        """The version of an id that is new in this event."""
        if self.weight_versions:
            return version_at(self.policy_spans, position)
        return set_version(self.weight_version)


class SglangEvent(msgspec.Struct, frozen=True):
    meta_info: MetaInfo = MetaInfo()
    output_ids: list[int] = []
    error: Any = None


class ModelInfo(msgspec.Struct, frozen=True):
    model_path: str
    is_generation: bool = True


class ServerInfo(msgspec.Struct, frozen=True):
    version: str = ""
    max_req_input_len: int | None = None
    """One more than the longest prompt that the server accepts."""
    max_running_requests: int | None = None


def generation_body(
    request: GenerateRequest, max_tokens: int, request_id: str, prompt: PromptIds
) -> dict[str, Any]:
    """`prompt`: the request's ids."""
    parameters: dict[str, Any] = {
        "max_new_tokens": max_tokens,
        "min_new_tokens": 0,
        **sampling_fields(request.sampling),
        "stop": [],
        "stop_token_ids": list(request.stop_ids),
        "skip_special_tokens": False,
        "no_stop_trim": True,
    }
    if request.seed is not None:
        parameters["sampling_seed"] = request.seed & MAX_SEED
    if request.json_schema is not None:
        parameters["json_schema"] = orjson.dumps(request.json_schema or {"type": "object"}).decode()
    body = _body(prompt, parameters, start=-1)
    return {**body, "rid": request_id, "stream": True}


def score_body(ids: list[int], start: int) -> dict[str, Any]:
    """Asks for the logprobs of the prompt's tokens after `start`."""
    return {**_body(ids, {"max_new_tokens": 1, "temperature": 0.0}, start), "stream": False}


def _body(ids: PromptIds, parameters: dict[str, Any], start: int) -> dict[str, Any]:
    return {
        "input_ids": ids,
        "sampling_params": parameters,
        "return_logprob": True,
        "logprob_start_len": start,
        "top_logprobs_num": 0,
    }


class ReplyProgress:
    """How many ids of a reply have arrived."""

    def __init__(self) -> None:
        self.count = 0

    def new(self, event: SglangEvent) -> tuple[list[int], list[float]]:
        """The new ids of an event, and a logprob for each."""
        meta = event.meta_info
        reports = meta.output_token_logprobs or []
        ids = [token_id for _, token_id, _ in reports]
        values = [or_missing(value, MISSING) for value, _, _ in reports]
        if event.output_ids and event.output_ids != ids:
            raise EngineDefect(
                f"SGLang gave {len(event.output_ids)} ids and {len(ids)} logprobs that do not belong together; "
                "use a worker, not a router that rewrites its replies"
            )
        if len(ids) == meta.completion_tokens:
            ids, values = ids[self.count :], values[self.count :]
        self.count += len(ids)
        if self.count != meta.completion_tokens:
            raise EngineDefect(
                f"SGLang counts {meta.completion_tokens} sampled tokens and gave {self.count}; "
                "use a version that Polar's contract suite passes with"
            )
        return ids, values
