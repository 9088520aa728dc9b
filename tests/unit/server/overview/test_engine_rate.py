"""Rates between an older and the newest count of each node."""

from __future__ import annotations

import pytest

from polar.server.overview.engine_rate import APART_S, OVER_S, Sample, rate_of, with_newest
from polar.types import EngineUse


def test_a_rate_is_over_about_the_last_minute_whatever_the_heartbeat() -> None:
    for beat_s in (0.5, 3.0, 10.0, 25.0):
        samples: list[Sample] = []
        for beat in range(int(600 / beat_s)):
            samples = with_newest(samples, (beat * beat_s, EngineUse(calls=beat)))
        over_s = samples[-1][0] - samples[0][0]
        assert OVER_S <= over_s <= OVER_S + max(APART_S, beat_s) + beat_s
        assert len(samples) < OVER_S / APART_S + 4


def test_one_report_is_no_rate() -> None:
    assert rate_of([[], [(5.0, EngineUse(calls=7))]]) == rate_of([])
    assert rate_of([]).over_s == 0.0


def test_the_rates_of_nodes_add_up_and_their_times_are_averaged() -> None:
    one: list[Sample] = [
        (0.0, EngineUse(calls=10, sampled_calls=10, sampled_tokens=100, first_token_s=1.0, call_s=5.0)),
        (
            50.0,
            EngineUse(
                calls=20,
                failed_calls=1,
                sampled_calls=19,
                prompt_tokens=500,
                sampled_tokens=1100,
                first_token_s=2.8,
                call_s=14.0,
            ),
        ),
    ]
    other: list[Sample] = [
        (0.0, EngineUse()),
        (25.0, EngineUse(calls=1, sampled_calls=1, sampled_tokens=250, first_token_s=1.2, call_s=1.0)),
    ]
    rate = rate_of([one, other])
    assert (rate.over_s, rate.calls_per_s, rate.prompt_tokens_per_s) == (50.0, 0.2 + 0.04, 10.0)
    assert (rate.sampled_tokens_per_s, rate.failed_calls) == (20.0 + 10.0, 1)
    assert rate.first_token_s == pytest.approx((1.8 + 1.2) / 10)
    assert rate.call_s == pytest.approx((9.0 + 1.0) / 10)


def test_a_node_that_does_nothing_has_no_times() -> None:
    idle: list[Sample] = [(0.0, EngineUse(calls=3)), (50.0, EngineUse(calls=3))]
    rate = rate_of([idle])
    assert (rate.over_s, rate.calls_per_s, rate.first_token_s, rate.call_s) == (50.0, 0.0, None, None)
