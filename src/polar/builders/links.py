"""A session's calls linked to the calls whose tokens they continue, each link proven by its digest.

POSTRUN, second step of every builder. What was stored as parts is put together again here, and a call whose
parts do not make up the prompt that was sent is found out. Each call costs only its own tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polar.builders.drops import DropRules, Verdict, drop_all, judge
from polar.tokens.digest import TokenDigest
from polar.types import Call, TokenIds, token_ids


class UnsoundCalls(ValueError):
    """Calls that cannot be those of one session: an id twice, a parent missing or after its child."""


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

    @property
    def call_id(self) -> str:
        return self.call.call_id

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

    def break_reason(self) -> str:
        """Why the call does not go on where its parent ended, as the gateway or the digest tells."""
        if not self.proven:
            return "digest_mismatch"
        if self.call.break_reason:
            return self.call.break_reason
        return "not_continued" if self.call.parent_id is not None and not self.call.continues else ""


def link_calls(calls: Sequence[Call], rules: DropRules) -> list[Link]:
    """One link for each call, in the same order. Raises `UnsoundCalls`."""
    known = {call.call_id for call in calls}
    links: dict[str, Link] = {}
    for call in calls:
        if call.call_id in links:
            raise UnsoundCalls(f"call {call.call_id} stands twice among the session's calls")
        links[call.call_id] = _link(call, _parent_of(call, links, known), rules)
    return list(links.values())


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


def _link(call: Call, parent: Link | None, rules: DropRules) -> Link:
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
        verdict=judge(call, rules) if proven else drop_all(call, "digest_mismatch"),
    )
