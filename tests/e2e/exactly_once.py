"""The promise, checked from the outside: what was sampled is what is trained on, each token once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from polar.types import Call, Trajectory

Place = tuple[str, int]
"""A call and a position in its completion."""


def assert_exactly_once(calls: Sequence[Call], trajectory: Trajectory) -> None:
    by_id = {call.call_id: call for call in calls}
    trained: Counter[Place] = Counter()
    for trace in trajectory.traces:
        for span in trace.spans:
            call = by_id[span.call_id]
            stretch = slice(span.start, span.start + span.length)
            assert trace.response_ids[stretch] == call.completion_ids, "the span holds the call's own tokens"
            for position, trainable in enumerate(trace.loss_mask[stretch]):
                if trainable:
                    trained[call.call_id, position] += 1
                    assert trace.logprobs[span.start + position] == call.logprobs[position]
        assert trace.trainable_tokens == sum(
            trace.loss_mask[i] for span in trace.spans for i in range(span.start, span.start + span.length)
        ), "nothing outside the spans is trainable"
    dropped = Counter((d.call_id, d.start + i) for d in trajectory.dropped for i in range(d.length))
    sampled = Counter((call.call_id, i) for call in calls for i in range(len(call.completion_ids)))
    assert trained + dropped == sampled
