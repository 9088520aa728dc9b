"""One captured model call."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from polar.types.base import Logprobs, TokenIds
from polar.types.chat import Message, Tool

CallKind = Literal["agent", "subagent", "compaction", "auxiliary"]
FinishReason = Literal["stop", "length", "tool_calls", "aborted"]


class CallTimes(msgspec.Struct, frozen=True):
    """Unix seconds."""

    arrived: float
    rendered: float
    sampled: float


class PolicySpan(msgspec.Struct, frozen=True):
    """Sampled tokens of one reply that are one policy version's."""

    version: str
    start: int
    """Counted from the beginning of the reply."""
    length: int


class Drift(msgspec.Struct, frozen=True):
    """Where a prompt that the engine laid out leaves the tokens it goes on from."""

    kind: Literal["retokenised", "rewritten", "drifted"]
    """retokenised: the same text in other tokens; rewritten: another text; drifted: the engine did not tell what
    the tokens say."""
    position: int
    """Of the parent's prompt and completion, the first token that is not in the prompt."""
    expected: str
    """What the parent's tokens say from there on, shortened."""
    found: str
    """What the prompt says there."""


class Call(msgspec.Struct, frozen=True, omit_defaults=True):
    """One captured model call, kept as what is new against its parent.

    The prompt sent to the engine is the parent's prompt, the parent's completion and `new_prompt_ids`, in
    this order; for a call that continues no parent's tokens (`continues` false) it is `new_prompt_ids` alone.
    """

    call_id: str
    session_id: str
    parent_id: str | None
    continues: bool
    new_prompt_ids: TokenIds
    completion_ids: TokenIds
    logprobs: Logprobs
    """One per completion id; NaN where the engine gave none."""
    prompt_digest: bytes
    """`digest_of` the whole prompt as it was sent: proves that the parts above put it together again."""
    prompt_tokens: int
    finish_reason: FinishReason
    new_messages: tuple[Message, ...]
    """Messages new against the parent's request, the harness's echo of the parent's reply first."""
    response: Message
    tools: tuple[Tool, ...] | None
    """None: the parent's, without which a request does not attach to it."""
    new_items: tuple[bytes, ...]
    """A digest per item of the raw request after the first `shared_items`: evidence that owes nothing to our
    parsing. The tools are the first item, then the history in order."""
    dialect: str
    kind: CallKind
    sampling: dict[str, Any]
    engine: str
    logprob_mode: str
    times: CallTimes
    shared_items: int = 0
    """How many items of the raw request are the parent's, to the byte."""
    policy_version: str = ""
    """Under which it began."""
    policy_spans: tuple[PolicySpan, ...] = ()
    """Where the engine tells more than one version for one reply; else all of it is `policy_version`'s."""
    updated_within: bool = False
    """The policy changed while it was sampled, and the engine does not tell at which token."""
    break_reason: str = ""
    """Why the tokens of the parent are not continued, where there is a parent or a near match."""
    tolerant: tuple[str, ...] = ()
    """How the request's history differed from the stored one and was matched all the same."""
    evaluated_tokens: int | None = None
    """Prompt tokens the engine really computed; the rest came from its prefix cache."""
    received: bool = False
    """The last byte of the reply was written to the harness without error."""
    lone_surrogates: int = 0
    """Halves of surrogate pairs in the request, such as `\\ud83d` alone. The prompt has U+FFFD in their place."""
    drift: Drift | None = None
    """Where the engine lays prompts out and this one does not go on from its parent's tokens."""
    request_key: bytes = b""
    """Equal for a request and its repetition: over dialect, attribution and body. Empty: not recorded."""
    cut_tokens: int = 0
    """Ids that the engine gave after the end of the reply; they are not kept."""
