"""A session's calls linked to the calls whose tokens they continue, each link proven by its digest.

POSTRUN, second step of every builder. What was stored as parts is put together again here, and a call whose
parts do not make up the prompt that was sent is found out. Each call costs only its own tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from polar.builders.drops import DropRules, Verdict, drop_all, judge, superseded_calls
from polar.tokens.sequences import TokenDigest
from polar.types import Call, Dropped, TokenIds, token_ids


class UnsoundCalls(ValueError):
    """Calls that cannot be those of one session: an id twice, a parent missing or after its child."""


class Mend(NamedTuple):
    """How a trace can go on to a call that does not continue its parent's tokens (`drift.py`)."""

    overwritten: int
    """So many tokens at the end of the parent's prompt and completion give way."""
    skipped: int
    """So many of the call's prompt do not come after them: those that stand already, or are left out."""
    how: Literal["healed", "spliced"]
    """healed: the trace is the call's real prompt then; spliced: it is not."""


@dataclass(frozen=True, eq=False, slots=True)
class Link:
    """A call and the one it continues."""

    call: Call
    continued: Link | None
    """The call whose prompt and completion begin this call's prompt."""
    digest: TokenDigest
    """Over prompt and completion: where the digest of a child goes on."""
    tokens: int
    """Of prompt and completion."""
    proven: bool
    """The parts make up the prompt that was sent."""
    verdict: Verdict
    parent: Link | None = None
    """The call whose request and reply begin this call's request, whatever became of the tokens."""
    mend: Mend | None = None
    lost: tuple[Dropped, ...] = ()
    """Trainable tokens that gave way to what a later prompt has in their place."""

    @property
    def call_id(self) -> str:
        return self.call.call_id

    @property
    def prompt_tokens(self) -> int:
        return self.tokens - len(self.call.completion_ids)

    @property
    def follows(self) -> Link | None:
        """The call after which this one may stand in a trace."""
        return self.parent if self.mend else self.continued

    def prompt_ids(self) -> TokenIds:
        """The whole prompt. Costs its length, so ask once for each trace."""
        ancestors: list[Call] = []
        link = self.continued
        while link is not None:
            ancestors.append(link.call)
            link = link.continued
        ids = token_ids()
        for call in reversed(ancestors):
            ids.extend(call.new_prompt_ids)
            ids.extend(call.completion_ids)
        ids.extend(self.call.new_prompt_ids)
        return ids

    def prompt_after(self, tokens: int) -> TokenIds:
        """What the prompt has after its first tokens, no fewer than those it continues."""
        continued = self.continued.tokens if self.continued is not None else 0
        return self.call.new_prompt_ids[tokens - continued :]

    def break_reason(self) -> str:
        """Why the call does not go on where its parent ended, as the gateway or the digest tells."""
        if not self.proven:
            return "digest_mismatch"
        if self.call.break_reason:
            return self.call.break_reason
        return "not_continued" if self.call.parent_id is not None and not self.call.continues else ""


Mending = Callable[[Link, Call], Mend | None]
"""How a call goes on from its parent, neither of which is in doubt; None where it starts a trace of its own."""


def link_calls(calls: Sequence[Call], rules: DropRules, mending: Mending | None = None) -> list[Link]:
    """One link for each call, in the same order. Raises `UnsoundCalls`."""
    known = {call.call_id for call in calls}
    superseded = superseded_calls(calls, rules)
    links: dict[str, Link] = {}
    for call in calls:
        if call.call_id in links:
            raise UnsoundCalls(f"call {call.call_id} stands twice among the session's calls")
        verdict = judge(call, rules, superseded=call.call_id in superseded)
        link = _link(call, _parent_of(call, links, known), verdict)
        links[call.call_id] = _mended(link, mending) if mending else link
    return list(links.values())


def _mended(link: Link, mending: Mending) -> Link:
    parent = link.parent
    if parent is None or link.continued is not None or not (parent.proven and link.proven):
        return link
    return replace(link, mend=mending(parent, link.call))


def _parent_of(call: Call, links: dict[str, Link], known: set[str]) -> Link | None:
    if call.parent_id is None:
        if call.continues:
            raise UnsoundCalls(f"call {call.call_id} continues a parent but names none")
        return None
    if call.parent_id not in known:
        raise UnsoundCalls(f"call {call.call_id} has parent {call.parent_id}, which is not among the calls")
    if call.parent_id not in links:
        raise UnsoundCalls(f"call {call.call_id} comes before its parent {call.parent_id}")
    return links[call.parent_id]


def _link(call: Call, parent: Link | None, verdict: Verdict) -> Link:
    continued = parent if call.continues else None
    before = TokenDigest() if continued is None else continued.digest
    prompt = before.extended(call.new_prompt_ids)
    prompt_tokens = (0 if continued is None else continued.tokens) + len(call.new_prompt_ids)
    if not prompt_tokens:
        raise UnsoundCalls(f"call {call.call_id} has an empty prompt, which no engine samples from")
    proven = prompt.value() == call.prompt_digest and prompt_tokens == call.prompt_tokens
    return Link(
        call=call,
        continued=continued,
        digest=prompt.extended(call.completion_ids),
        tokens=prompt_tokens + len(call.completion_ids),
        proven=proven,
        verdict=verdict if proven else drop_all(call, "digest_mismatch"),
        parent=parent,
    )
