"""Which logprob is whose, as puzzles; and that nothing is left to llama.cpp's defaults."""

from __future__ import annotations

import math

import pytest

from contracts.engine_contract import ask
from polar.engines.llamacpp.protocol import TokenReport, completion_body, pair_logprobs, slice_seed
from polar.engines.pieces import cut_at_stop
from polar.errors import EngineDefect
from polar.types import token_ids

NONE = None


def paired(ids: list[int], *reported: tuple[int, float]) -> list[float | None]:
    values = pair_logprobs(ids, [TokenReport(token_id, value) for token_id, value in reported])
    return [NONE if math.isnan(value) else value for value in values]


def test_a_report_for_every_id() -> None:
    assert paired([5, 6, 5], (5, -0.1), (6, -0.2), (5, -0.3)) == [-0.1, -0.2, -0.3]


def test_a_character_of_three_tokens_has_one_report() -> None:
    assert paired([10, 20, 30, 7], (30, -0.3), (7, -0.7)) == [NONE, NONE, -0.3, -0.7]


def test_a_report_that_could_belong_to_two_places_belongs_to_none() -> None:
    assert paired([10, 9, 9, 7], (9, -0.9), (7, -0.7)) == [NONE, NONE, NONE, -0.7]


def test_what_stands_around_settles_whose_a_report_is() -> None:
    assert paired([9, 7, 9], (7, -0.7), (9, -0.9)) == [NONE, -0.7, -0.9]


def test_a_reply_cut_inside_a_character_lacks_its_last_reports() -> None:
    assert paired([7, 10, 20], (7, -0.7)) == [-0.7, NONE, NONE]


def test_the_sentinel_of_a_zero_probability_is_no_logprob() -> None:
    assert paired([5], (5, -3.4028234663852886e38)) == [NONE]


@pytest.mark.parametrize("reported", [[(6, -0.1)], [(5, -0.1), (5, -0.2)], [(6, -0.2), (5, -0.1)]])
def test_reports_of_other_ids_are_a_defect(reported: list[tuple[int, float]]) -> None:
    with pytest.raises(EngineDefect, match="do not belong"):
        paired([5], *reported)


def test_no_ids_and_no_reports() -> None:
    assert paired([]) == []


def test_ids_after_a_stop_id_are_cut() -> None:
    assert cut_at_stop([4, 2, 9, 2], (2, 9)) == token_ids([4, 2])
    assert cut_at_stop([4, 5], (2,)) == token_ids([4, 5])


def test_the_plain_distribution_passes_through_no_cut() -> None:
    body = completion_body(ask([1, 2], seed=3), token_ids([8]), size=5, sequence=1)
    assert body["prompt"] == [1, 2, 8]
    assert body["samplers"] == ["temperature"]
    assert {name: body[name] for name in ("temperature", "top_k", "top_p", "min_p")} == {
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
    }
    assert (body["n_predict"], body["id_slot"], body["stream"]) == (5, 1, False)


def test_cuts_that_are_asked_for_are_made() -> None:
    body = completion_body(ask([1], temperature=0.7, top_k=5, top_p=0.9, min_p=0.1), token_ids(), 1, 0)
    assert body["samplers"] == ["temperature", "top_k", "top_p", "min_p"]


def test_each_slice_draws_its_own_random_numbers() -> None:
    seeds = {slice_seed(seed, start) for seed in range(5) for start in (0, 32, 64)}
    assert len(seeds) == 15
    assert slice_seed(1, 32) == slice_seed(1, 32)
    assert slice_seed(None, 32) == -1
