"""Where each call's prompt leaves the tokens of an earlier call, and what stands on both sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polar.dashboard.page import PageFork
from polar.dashboard.spelling import Spelling
from polar.tokens.sequences import first_difference
from polar.types import Call, TokenIds, token_ids

SHOWN_TOKENS = 24
"""Of each side of a fork."""


@dataclass(frozen=True)
class Relation:
    """A call's tokens against those of the call they begin with."""

    base: int | None
    """Index of that call; None: the prompt begins with no other's tokens."""
    common: int
    """Tokens of `base` with which the prompt begins."""
    own_prompt_ids: TokenIds
    """The rest of the prompt."""
    fork: PageFork | None


class Relations:
    """Of all calls of a session. `reasons` are the breaks that the builder found, by call id."""

    def __init__(self, calls: Sequence[Call], reasons: Mapping[str, str], spell: Spelling) -> None:
        self._calls = calls
        self._reasons = reasons
        self._spell = spell
        self._index = {call.call_id: index for index, call in enumerate(calls)}
        self._sizes: list[int] = []
        """Of prompt and completion, by what is stored: a damaged journal may count otherwise."""
        for index, call in enumerate(calls):
            parent = self._parent(index) if call.continues else None
            before = 0 if parent is None else self._sizes[parent]
            self._sizes.append(before + len(call.new_prompt_ids) + len(call.completion_ids))

    def of(self, index: int) -> Relation:
        call = self._calls[index]
        reason = self._reasons.get(call.call_id) or call.break_reason
        parent = self._parent(index)
        if call.continues and parent is not None:
            fork = self._between_children(index, parent, reason) if reason else None
            return Relation(parent, self._sizes[parent], call.new_prompt_ids, fork)
        base = parent if parent is not None else self._before(index)
        if base is None or not len(call.new_prompt_ids):
            return Relation(None, 0, call.new_prompt_ids, None)
        return self._apart(call, base, reason)

    def whole(self, index: int) -> TokenIds:
        """Prompt and completion."""
        parts: list[TokenIds] = []
        each: int | None = index
        while each is not None:
            call = self._calls[each]
            parts += [call.completion_ids, call.new_prompt_ids]
            each = self._parent(each) if call.continues else None
        joined = token_ids()
        for part in reversed(parts):
            joined.extend(part)
        return joined

    def _parent(self, index: int) -> int | None:
        """The index of its parent; a damaged journal may name one that comes later, or none."""
        parent = self._index.get(self._calls[index].parent_id or "")
        return parent if parent is not None and parent < index else None

    def _before(self, index: int) -> int | None:
        """The latest earlier call of the same kind: what a request without a parent may have come from."""
        kind = self._calls[index].kind
        return next((each for each in reversed(range(index)) if self._calls[each].kind == kind), None)

    def _apart(self, call: Call, base: int, reason: str) -> Relation:
        before = self.whole(base)
        common = first_difference(before, call.new_prompt_ids)
        own = call.new_prompt_ids[common:]
        if not common and not reason:
            return Relation(None, 0, own, None)
        fork = PageFork(
            reason=reason,
            last_common=self._last_within(base, common),
            other=base + 1,
            position=common,
            other_text=self._text(before[common : common + SHOWN_TOKENS]),
            own_text=self._text(own[:SHOWN_TOKENS]),
        )
        return Relation(base, common, own, fork if reason else None)

    def _last_within(self, base: int, common: int) -> int | None:
        """The number of the deepest call on the way to `base` that ends within the common tokens."""
        each: int | None = base
        while each is not None:
            if self._sizes[each] <= common:
                return each + 1
            each = self._parent(each) if self._calls[each].continues else None
        return None

    def _between_children(self, index: int, parent: int, reason: str) -> PageFork:
        """Two calls continue the same one."""
        call = self._calls[index]
        others = (each for each in range(parent + 1, len(self._calls)) if each != index)
        other = next((each for each in others if self._continues(each, parent)), None)
        ids = token_ids() if other is None else self._calls[other].new_prompt_ids
        common = first_difference(ids, call.new_prompt_ids)
        return PageFork(
            reason=reason,
            last_common=parent + 1,
            other=None if other is None else other + 1,
            position=self._sizes[parent] + common,
            other_text=self._text(ids[common : common + SHOWN_TOKENS]),
            own_text=self._text(call.new_prompt_ids[common : common + SHOWN_TOKENS]),
        )

    def _continues(self, index: int, parent: int) -> bool:
        return self._calls[index].continues and self._parent(index) == parent

    def _text(self, ids: TokenIds) -> str:
        return self._spell(ids) if len(ids) else ""
