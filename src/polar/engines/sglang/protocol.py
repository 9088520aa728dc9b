"""SGLang's `/generate` on the wire: what is asked, what an event says, and what of it is new.

An event holds all that was sampled so far, or with `--incremental-streaming-output` only what is new. Which of the
two it is shows in `completion_tokens`, the count of all.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import orjson

from polar.engines.base import GenerateRequest
from polar.engines.remote.prompt_json import Prompt
from polar.engines.remote.proof import or_missing
from polar.engines.remote.server import sampling_fields
from polar.engines.remote.weight_versions import VersionSpan, named_version, spans_of, version_at
from polar.errors import EngineDefect
from polar.types import PolicySpan

GENERATE = "/generate"
MISSING = -1e30
"""SGLang cuts a logprob off at the smallest float: it stands for a probability of zero."""

FINISH: dict[str, Literal["stop", "length", "aborted"]] = {
    "stop": "stop",
    "tool_calls": "stop",
    "length": "length",
    "abort": "aborted",
}

TokenLogprob = tuple[float | None, int, str | None]


class FinishReason(msgspec.Struct, frozen=True):
    type: Literal["stop", "tool_calls", "length", "abort"]
    """tool_calls: a stop, in chat mode."""
    message: str = ""
    status_code: int | None = None


class Meta(msgspec.Struct, frozen=True):
    completion_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    finish_reason: FinishReason | None = None
    weight_version: str | None = None
    """Of the weights at the moment this was written; earlier tokens may be of others."""
    weight_versions: list[VersionSpan] | None = None
    """Of the reply so far, from servers that keep it by token."""
    output_token_logprobs: list[TokenLogprob] | None = None
    input_token_logprobs: list[TokenLogprob] | None = None

    @property
    def evaluated_tokens(self) -> int | None:
        return None if self.cached_tokens is None else self.prompt_tokens - self.cached_tokens

    @property
    def policy_spans(self) -> tuple[PolicySpan, ...]:
        return spans_of(self.weight_versions)

    def version_at(self, position: int) -> str:
        """The version of an id that is new in this event."""
        if self.weight_versions:
            return version_at(self.policy_spans, position)
        return named_version(self.weight_version)


class Event(msgspec.Struct, frozen=True):
    meta_info: Meta = Meta()
    output_ids: list[int] = []
    error: Any = None


class ModelInfo(msgspec.Struct, frozen=True):
    model_path: str
    is_generation: bool = True


class ServerInfo(msgspec.Struct, frozen=True):
    version: str = ""
    max_req_input_len: int | None = None
    """The longest prompt the server takes, and one more."""
    max_running_requests: int | None = None


class ModelCard(msgspec.Struct, frozen=True):
    max_model_len: int | None = None


class ModelList(msgspec.Struct, frozen=True):
    data: list[ModelCard]


def generation_body(request: GenerateRequest, max_tokens: int, request_id: str, prompt: Prompt) -> dict[str, Any]:
    """`prompt`: the request's ids."""
    knobs: dict[str, Any] = {
        "max_new_tokens": max_tokens,
        "min_new_tokens": 0,
        **sampling_fields(request.sampling),
        "stop": [],
        "stop_token_ids": list(request.stop_ids),
        "skip_special_tokens": False,
        "no_stop_trim": True,
    }
    if request.seed is not None:
        knobs["sampling_seed"] = request.seed & 0x7FFFFFFF
    if request.json_schema is not None:
        schema = request.json_schema or {"type": "object"}
        knobs["json_schema"] = orjson.dumps(schema).decode()
    body = _body(prompt, knobs, start=-1)
    return {**body, "rid": request_id, "stream": True}


def score_body(ids: list[int], start: int) -> dict[str, Any]:
    """The logprobs of the prompt's own tokens, after the one at `start`."""
    return {**_body(ids, {"max_new_tokens": 1, "temperature": 0.0}, start), "stream": False}


def _body(ids: Prompt, knobs: dict[str, Any], start: int) -> dict[str, Any]:
    return {
        "input_ids": ids,
        "sampling_params": knobs,
        "return_logprob": True,
        "logprob_start_len": start,
        "top_logprobs_num": 0,
    }


class Progress:
    """What of a reply is known already."""

    def __init__(self) -> None:
        self.count = 0
        """Ids that were given."""

    def new(self, event: Event) -> tuple[list[int], list[float]]:
        """The ids of an event that are new, and a logprob for each."""
        meta = event.meta_info
        reports = meta.output_token_logprobs or []
        ids = [token_id for _, token_id, _ in reports]
        values = [or_missing(value, MISSING) for value, _, _ in reports]
        if event.output_ids and event.output_ids != ids:
            raise EngineDefect(
                f"SGLang gave {len(event.output_ids)} ids and {len(ids)} logprobs that do not belong together; "
                "ask a worker, not a router that rewrites its answers"
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
