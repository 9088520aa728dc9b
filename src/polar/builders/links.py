"""Links a session's calls to the calls whose tokens they continue, each proven by its digest.

POSTRUN, second step of every builder. Stored parts are joined to prompts again, and a call whose parts do not make
up the prompt that was sent is detected. Each call costs only its own tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from polar.builders.drops import DropRules, Verdict, drop_all, judge, superseded_calls
from polar.tokens.sequences import TokenDigest, joined_prompt
from polar.types import Call, Dropped, TokenIds


class UnsoundCalls(ValueError):
    """Calls that cannot belong to one session: a repeated id, a parent that is missing or comes after its
    child."""


class Repair(NamedTuple):
    """How a trace continues with a call that does not continue its parent's tokens (`drift.py`)."""

    overwritten: int
    """Number of tokens to remove from the end of the parent's prompt and completion."""
    skipped: int
    """Number of tokens to skip at the start of the call's prompt: they are in the trace already, or left out."""
    how: Literal["healed", "spliced"]
    """healed: the trace then equals the call's real prompt; spliced: it does not."""


@dataclass(frozen=True, eq=False, slots=True)
class Link:
    """A call and the one it continues."""

    call: Call
    continued: Link | None
    """The call whose prompt and completion begin this call's prompt."""
    digest: TokenDigest
    """Of prompt and completion; extended for children."""
    tokens: int
    """Length of prompt and completion."""
    proven: bool
    """Its stored parts make up the prompt that was sent."""
    verdict: Verdict
    parent: Link | None = None
    """The call whose request and reply begin this call's request, whether or not the tokens continue."""
    repair: Repair | None = None
    lost: tuple[Dropped, ...] = ()
    """Trainable tokens that a later prompt overwrites."""

    @property
    def call_id(self) -> str:
        return self.call.call_id

    @property
    def prompt_tokens(self) -> int:
        return self.tokens - len(self.call.completion_ids)

    @property
    def follows(self) -> Link | None:
        """The call after which this one may stand in a trace."""
        return self.parent if self.repair else self.continued

    def prompt_ids(self) -> TokenIds:
        """The whole prompt. Costs its length, so call it once for each trace."""
        return joined_prompt(self._continued_calls())

    def _continued_calls(self) -> Iterator[Call]:
        link: Link | None = self
        while link is not None:
            yield link.call
            link = link.continued

    def prompt_after(self, tokens: int) -> TokenIds:
        """The prompt after its first `tokens`, which include all that it continues."""
        continued = self.continued.tokens if self.continued is not None else 0
        return self.call.new_prompt_ids[tokens - continued :]

    def break_reason(self) -> str:
        """Why the call does not continue its parent, by the gateway or by the digest."""
        if not self.proven:
            return "digest_mismatch"
        if self.call.break_reason:
            return self.call.break_reason
        return "not_continued" if self.call.parent_id is not None and not self.call.continues else ""


RepairRule = Callable[[Link, Call], Repair | None]
"""How a trace continues from a parent to a call, both proven; None: the call starts a trace."""


def link_calls(calls: Sequence[Call], rules: DropRules, repair: RepairRule | None = None) -> list[Link]:
    """One link for each call, in the same order. Raises `UnsoundCalls`."""
    known = {call.call_id for call in calls}
    superseded = superseded_calls(calls, rules)
    links: dict[str, Link] = {}
    for call in calls:
        if call.call_id in links:
            raise UnsoundCalls(f"call {call.call_id} appears twice among the session's calls")
        verdict = judge(call, rules, superseded=call.call_id in superseded)
        link = _link(call, _parent_of(call, links, known), verdict)
        links[call.call_id] = _repaired(link, repair) if repair else link
    return list(links.values())


def _repaired(link: Link, rule: RepairRule) -> Link:
    parent = link.parent
    if parent is None or link.continued is not None or not (parent.proven and link.proven):
        return link
    return replace(link, repair=rule(parent, link.call))


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
    if not prompt_tokens and call.usage is None:
        raise UnsoundCalls(f"call {call.call_id} has an empty prompt")
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
