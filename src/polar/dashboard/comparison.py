"""Makes the page that shows two sessions, or two builders of one session, side by side.

What is compared are traces: the tokens of each, and which of them are trained on. Where they agree is found in the
browser, for the two traces that are chosen there.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import groupby

from polar import __version__
from polar.dashboard.material import PageMaterial
from polar.dashboard.page import ComparedSide, ComparisonPage, PageRow, TokenKind
from polar.dashboard.session_page import proof_of
from polar.dashboard.spelled import SpelledTokens
from polar.dashboard.spelling import Spelling
from polar.tokens.sequences import first_difference
from polar.types import TokenIds, Trace, Trajectory, token_ids

MOST_PAIRS = 4096
"""Of rows whose beginnings are compared; beyond it rows are paired by their places."""
TRIED_BASES = 8
NO_TRACES = Trajectory(session_id="", builder="")


def comparison_of(left: PageMaterial, right: PageMaterial, spell: Spelling, note: str = "") -> ComparisonPage:
    """Slow with long sessions: call it in a thread."""
    rows = _Rows(spell)
    left_side, left_wholes = _side(left, rows)
    right_side, right_wholes = _side(right, rows)
    return ComparisonPage(
        made_by=__version__,
        left=left_side,
        right=right_side,
        partners=partners_of(left_wholes, right_wholes),
        vocabulary=rows.spelled.texts,
        vocabulary_ids=rows.spelled.ids.tobytes(),
        words=rows.words.tobytes(),
        note=note,
    )


def partners_of(left: Sequence[TokenIds], right: Sequence[TokenIds]) -> list[int]:
    """For each row of the left the row of the right with the most tokens in common from the start, the first of
    several. Empty if the right has none."""
    if not right:
        return []
    if len(left) * len(right) > MOST_PAIRS:
        return [min(index, len(right) - 1) for index in range(len(left))]
    choices = range(len(right))
    return [max(choices, key=lambda index: first_difference(row, right[index])) for row in left]


def _side(material: PageMaterial, rows: _Rows) -> tuple[ComparedSide, list[TokenIds]]:
    trajectory = material.trajectory or NO_TRACES
    numbers = {call.call_id: number for number, call in enumerate(material.calls, 1)}
    made = [rows.add(trace, numbers) for trace in trajectory.traces]
    result = material.result
    side = ComparedSide(
        session_id=material.session_id,
        run_id=material.run_id,
        builder=trajectory.builder or material.lease.task.builder.name,
        built_now=material.built_now,
        stage=material.lease.session.stage.value,
        reward=None if result is None else result.reward,
        failure=material.failure,
        light=proof_of(material.audit).light,
        calls=len(material.calls),
        statistics=trajectory.statistics,
        rows=[row for row, _ in made],
        breaks=[
            (numbers.get(each.call_id), numbers.get(each.parent_id or ""), each.reason)
            for each in trajectory.breaks
        ],
        drops=[(numbers.get(each.call_id), each.length, each.reason) for each in trajectory.dropped],
    )
    return side, [whole for _, whole in made]


class _Rows:
    """The rows of both sides. A row stores what it does not share with an earlier one."""

    def __init__(self, spell: Spelling) -> None:
        self.spelled = SpelledTokens(spell)
        self.words = array("I")
        self._wholes: list[TokenIds] = []
        self._of_call: dict[str, int] = {}
        """The first row that has the sampled tokens of a call."""

    def add(self, trace: Trace, numbers: dict[str, int]) -> tuple[PageRow, TokenIds]:
        whole = token_ids(trace.prompt_ids)
        whole.extend(trace.response_ids)
        base, common = self._base(trace, whole)
        row = PageRow(
            kind=trace.kind,
            prompt=len(trace.prompt_ids),
            response=len(trace.response_ids),
            trainable=trace.trainable_tokens,
            exact=trace.context_exact,
            reward=trace.reward,
            spans=[
                (numbers.get(span.call_id, 0), len(trace.prompt_ids) + span.start, span.length)
                for span in trace.spans
            ],
            kinds=_kinds_of(trace),
            base=base,
            common=common,
            start=len(self.words),
        )
        self.words.extend(self.spelled.words(whole[common:]))
        for span in trace.spans:
            self._of_call.setdefault(span.call_id, len(self._wholes))
        self._wholes.append(whole)
        return row, whole

    def _base(self, trace: Trace, whole: TokenIds) -> tuple[int | None, int]:
        """Of the rows before, those near and those with the same call are likely to begin like it."""
        count = len(self._wholes)
        tried = {*range(max(0, count - TRIED_BASES), count)}
        tried |= {self._of_call[span.call_id] for span in trace.spans if span.call_id in self._of_call}
        common = {index: first_difference(self._wholes[index], whole) for index in tried}
        best = max(common, key=lambda index: common[index], default=None)
        return (None, 0) if best is None or not common[best] else (best, common[best])


def _kinds_of(trace: Trace) -> list[tuple[int, int]]:
    sampled = bytearray(len(trace.response_ids))
    for span in trace.spans:
        for position in range(span.start, min(span.start + span.length, len(sampled))):
            sampled[position] = TokenKind.DROPPED
    kinds = [
        TokenKind.TRAINED if trained else kind for trained, kind in zip(trace.loss_mask, sampled, strict=True)
    ]
    prompt = (len(trace.prompt_ids), int(TokenKind.GIVEN))
    return [prompt, *((sum(1 for _ in same), int(kind)) for kind, same in groupby(kinds))]
