"""What a page shows, as values that become the JSON inside it. Arrays travel as base64 of their bytes."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec


class TokenKind(IntEnum):
    """What became of a token. A fifth kind, echoed, is no property of a token: it is a sampled token where it
    stands again in the prompt of a later call."""

    GIVEN = 0
    """In a prompt, and not sampled before."""
    TRAINED = 1
    """Sampled, and trainable in a trace."""
    DROPPED = 2
    """Sampled, and listed as dropped with a reason."""
    UNPLACED = 3
    """Sampled, and neither: there are no traces, or they are incomplete."""


class PackedTokens(msgspec.Struct, frozen=True):
    """All tokens of a session, each once: per call what its prompt adds, then what was sampled."""

    vocabulary: list[str]
    """Texts that occur, each once for each id."""
    vocabulary_ids: bytes
    """int32, one per text."""
    words: bytes
    """uint32 per token: its place in the vocabulary."""
    kinds: bytes
    """uint8 per token: `TokenKind`."""
    logprobs: bytes
    """float32 per sampled token, in order; NaN where the engine gave none."""


class PageMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    role: str
    content: str = ""
    reasoning: str = ""
    tool_calls: list[tuple[str, str, str]] = []
    """Name, arguments and id."""
    tool_call_id: str = ""
    images: list[str] = []
    """In words: a page loads none of them."""
    is_error: bool = False
    echo: str = ""
    """Of a reply that the request repeats: `same`, or `changed`."""


class PageFork(msgspec.Struct, frozen=True):
    """Where a call left the tokens of an earlier one."""

    reason: str
    last_common: int | None
    """Number of the last call of which both sides have all tokens."""
    other: int | None
    """Number of the call on the other side."""
    position: int
    """How many tokens both sides have in common."""
    other_text: str
    """What follows on the other side, shortened."""
    own_text: str
    """What follows on this side."""


class PageCall(msgspec.Struct, frozen=True):
    call_id: str
    number: int
    """From 1, parents before children."""
    kind: str
    parent: int | None
    """Number of the parent."""
    continues: bool
    chain: int
    """Calls of one chain have the same number."""
    trace: int | None
    """The trace that has its sampled tokens."""
    trace_start: int
    """Where they begin in the response of this trace."""
    base: int | None
    """Number of the call whose tokens begin its prompt."""
    common: int
    """How many tokens of `base` that are; they are not stored again."""
    start: int
    """Its first own token among all tokens of the page."""
    prompt: int
    """How many own tokens belong to the prompt."""
    sampled: int
    """How many come after them."""
    prompt_tokens: int
    """The whole prompt, with what it has in common with `base`."""
    messages: list[PageMessage]
    reply: PageMessage
    finish_reason: str
    fork: PageFork | None
    drops: list[tuple[int, int, str]]
    """Start and length among the sampled tokens, and the reason."""
    policy: list[tuple[int, int, str]]
    """Start and length among the sampled tokens, and the version."""
    times: tuple[float, float, float]
    """Arrived, rendered, sampled: Unix seconds."""
    notes: list[str]
    raw: dict[str, Any]
    """What else the journal has of request and reply."""


class PageProof(msgspec.Struct, frozen=True):
    """Whether sent, echoed and trained tokens agree, by `polar.audit`."""

    light: str
    """`exact`, `inexact` (the traces say so themselves), `wrong`, or `none`: there is nothing to prove."""
    summary: str
    findings: list[str]


class PageFile(msgspec.Struct, frozen=True):
    """A log or kept file."""

    path: str
    size_bytes: int
    text: str
    """All of it, the end of it, or nothing."""
    cut: bool
    """The file is larger than `text`."""


class SessionPage(msgspec.Struct, frozen=True):
    session_id: str
    run_id: str
    """Empty: the session is a server's."""
    made_by: str
    """The version of Polar."""
    task: dict[str, Any]
    stage: str
    attempt: int
    stages: list[tuple[str, float]]
    """Name, and Unix seconds at which it began."""
    result: dict[str, Any] | None
    reward: float | None
    proof: PageProof
    calls: list[PageCall]
    tokens: PackedTokens
    files: list[PageFile]
    note: str = ""
    """Such as why tokens are shown as numbers."""
    others: list[str] = []
    """Ids of sessions that it can be compared with."""
    builders: list[str] = []
    """Names of builders that can build its calls again; empty: where the page is, nothing is compared."""


class PageRow(msgspec.Struct, frozen=True):
    """A trace: prompt, then response."""

    kind: str
    prompt: int
    """Number of its tokens, as the next two."""
    response: int
    trainable: int
    exact: bool
    reward: float | None
    spans: list[tuple[int, int, int]]
    """Sampled tokens: number of the call, where they begin in the row, and how many they are."""
    kinds: list[tuple[int, int]]
    """Tokens from first to last: how many in a row are of which `TokenKind`."""
    base: int | None
    """Which row of the page, the left ones first, has the tokens that it begins with."""
    common: int
    """How many tokens of `base` that are; they are not stored again."""
    start: int
    """Its first own token among all tokens of the page."""


class ComparedSide(msgspec.Struct, frozen=True):
    """A session with the traces that one builder made of it."""

    session_id: str
    run_id: str
    builder: str
    built_now: bool
    """The traces are not the stored ones."""
    stage: str
    reward: float | None
    failure: str
    light: str
    """As in `PageProof`."""
    calls: int
    statistics: dict[str, Any]
    """`TrajectoryStatistics`."""
    rows: list[PageRow]
    breaks: list[tuple[int | None, int | None, str]]
    """Number of the call, of its parent, and the reason."""
    drops: list[tuple[int | None, int, str]]
    """Number of the call, number of tokens, and the reason."""


class ComparisonPage(msgspec.Struct, frozen=True):
    """Two sessions, or two builders of one, side by side."""

    made_by: str
    left: ComparedSide
    right: ComparedSide
    partners: list[int]
    """For each row of the left the row of the right that begins like it for longest."""
    vocabulary: list[str]
    vocabulary_ids: bytes
    """As in `PackedTokens`."""
    words: bytes
    """As in `PackedTokens`: the own tokens of all rows."""
    note: str = ""
    others: list[str] = []
    """This and the next as in `SessionPage`."""
    builders: list[str] = []


class ListedSession(msgspec.Struct, frozen=True):
    session_id: str
    task_id: str
    instruction: str
    stage: str
    attempt: int
    reward: float | None
    failure: str
    calls: int
    sampled_tokens: int


class RunPage(msgspec.Struct, frozen=True):
    run_id: str
    """Or what else has the sessions, if there is a `title`."""
    made_by: str
    started: float
    sessions: list[ListedSession]
    title: str = ""
    """In place of `run` and its id."""
