"""What a node counts of sessions whose statistics are a plug-in's, and so may be anything."""

from __future__ import annotations

from polar.monitoring.exposition import exposition
from polar.node.status.counts import GatewayCounts
from polar.types import EndedCall, SessionResult, Stage, TrajectoryStatistics

CALL = EndedCall(
    session_id="s-1",
    attempt=1,
    dialect="openai_chat",
    kind="agent",
    outcome="answered",
    arrived=1.0,
    ended=2.0,
    first_token_s=0.1,
    call_s=0.2,
    prompt_tokens=10,
    sampled_tokens=5,
)


def ended(**statistics: object) -> SessionResult:
    found = TrajectoryStatistics.model_validate(statistics)
    return SessionResult(
        session_id="s-1", task_id="s", index=0, attempt=1, stage=Stage.COMPLETED, statistics=found
    )


def test_numbers_that_cannot_be_meant_hold_up_no_other() -> None:
    """A counter takes no negative number. What is not counted of one must not be lost of the rest, and a session
    that has ended leaves nothing behind."""
    counts = GatewayCounts(lambda: 3)
    counts.call_ended(CALL)
    counts.ended(ended(append_only_pairs=1, merged_pairs=3, breaks={"odd": -1, "edited": 2}, dropped={"late": 7}))
    text = exposition(counts).decode()
    assert 'polar_gateway_call_pairs_total{merged="yes"} 1.0' in text
    assert 'polar_gateway_call_pairs_total{merged="no"} 0.0' in text
    assert 'polar_gateway_breaks_total{reason="edited"} 2.0' in text
    assert 'polar_gateway_dropped_tokens_total{reason="late"} 7.0' in text
    assert "polar_gateway_token_age_updates_count 5.0" in text
    assert counts._sampled == {}  # pyright: ignore[reportPrivateUsage]
