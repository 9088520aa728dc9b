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
    """Tokens of one reply that one policy version sampled."""

    version: str
    start: int
    """Index in the reply."""
    length: int


class Drift(msgspec.Struct, frozen=True):
    """Where a prompt that the engine rendered differs from the parent's tokens."""

    kind: Literal["retokenised", "rewritten", "drifted"]
    """retokenised: the same text in other tokens; rewritten: another text; drifted: unknown, because the engine
    did not return the text of the tokens."""
    position: int
    """Index of the first differing token in the parent's prompt and completion."""
    expected: str
    """The parent's text from there on, shortened."""
    found: str
    """The prompt's text there."""


class EndpointUsage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Numbers of tokens of one call, as an endpoint counts them that gives no token ids. None: not reported."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    """Of the prompt, taken from a cache."""
    reasoning_tokens: int | None = None
    """Of the completion."""


class Call(msgspec.Struct, frozen=True, omit_defaults=True):
    """One captured model call, stored as the difference to its parent.

    The prompt sent to the engine is the parent's prompt, the parent's completion and `new_prompt_ids`, in this
    order. If `continues` is false it is `new_prompt_ids` alone.
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
    """`digest_of` the whole prompt as it was sent; proves that it is reconstructed correctly."""
    prompt_tokens: int
    finish_reason: FinishReason
    new_messages: tuple[Message, ...]
    """Messages that the parent's request did not have; first the harness's echo of the parent's reply."""
    response: Message
    tools: tuple[Tool, ...] | None
    """None: the same as the parent's, which is a condition for continuing it."""
    new_items: tuple[bytes, ...]
    """A digest per item of the raw request after the first `shared_items`: evidence that does not depend on our
    parsing. The tools are the first item, then the history in order."""
    dialect: str
    kind: CallKind
    sampling: dict[str, Any]
    engine: str
    logprob_mode: str
    times: CallTimes
    shared_items: int = 0
    """How many leading items of the raw request are byte for byte the parent's."""
    policy_version: str = ""
    """The version when the call began."""
    policy_spans: tuple[PolicySpan, ...] = ()
    """Set if the engine reports more than one version for the reply; else all of it is of `policy_version`."""
    updated_within: bool = False
    """The policy changed while it was sampled, and the engine does not report at which token."""
    break_reason: str = ""
    """Why the call does not continue its parent's tokens, or those of a near match."""
    tolerant: tuple[str, ...] = ()
    """Tolerated differences between the request's history and the stored one."""
    evaluated_tokens: int | None = None
    """Prompt tokens that the engine computed; the others came from its prefix cache."""
    received: bool = False
    """The last byte of the reply was written to the harness without error."""
    lone_surrogates: int = 0
    """Unpaired surrogates in the request, such as `\\ud83d` alone. The prompt has U+FFFD in their place."""
    drift: Drift | None = None
    """In chat mode: where the prompt differs from its parent's tokens."""
    request_key: bytes = b""
    """Digest of dialect, attribution and body; equal for a request and its retry. Empty: not recorded."""
    cut_tokens: int = 0
    """Number of ids that the engine gave after the end of the reply; they are not kept."""
    usage: EndpointUsage | None = None
    """Set if the engine gives no token ids. The call is then only its messages: it has no ids, and whatever it has
    may not be trained on."""

    @property
    def echo(self) -> Message | None:
        """The parent's reply as the harness repeats it. None: there is no parent, or the harness left the reply
        out."""
        if self.parent_id is None or not self.new_messages or self.new_messages[0].role != "assistant":
            return None
        return self.new_messages[0]

    @property
    def new_turns(self) -> tuple[Message, ...]:
        """What the request adds to its parent's conversation: the new messages without the echo."""
        return self.new_messages[self.echo is not None :]


CallOutcome = Literal["answered", "final_message", "refused", "failed"]


class EndedCall(msgspec.Struct, frozen=True):
    """What is known of a model call when it has ended, for those who watch a node: no text, no token ids.
    Calls that got no reply are among them."""

    session_id: str
    attempt: int
    dialect: str
    kind: CallKind
    outcome: CallOutcome
    """final_message: the gateway wrote the reply itself; failed: infrastructure did; refused: all else without a
    reply, such as an invalid request or a client that left."""
    arrived: float
    """Unix seconds, as `ended`."""
    ended: float
    call_id: str = ""
    """Empty: it was refused before it got one."""
    problem: str = ""
    """The gateway's error code; empty if there is a reply."""
    first_token_s: float | None = None
    """From its arrival to its first token; None: none was sampled."""
    call_s: float | None = None
    """From its arrival to its last token."""
    prompt_tokens: int = 0
    evaluated_tokens: int | None = None
    """Of the prompt, what the engine computed; None: it did not report it."""
    sampled_tokens: int = 0
    finish_reason: str = ""
    policy_version: str = ""
    policy_updates: int = 0
    """Changes of the policy version that the node had seen when the call began."""
    engine: str = ""
    """Name and model."""
