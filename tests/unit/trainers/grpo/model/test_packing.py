"""Packs share what traces have in common, and a model sees no difference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_model import VOCABULARY, a_credited, save_tiny_model

from polar.trainers.grpo.model.packing import TrainingSequence, packs, training_sequence
from polar.trainers.grpo.model.policy_model import PolicyModel

pytestmark = pytest.mark.check

PROMPT = [5, 6, 7, 8]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PolicyModel:
    torch.set_num_threads(1)
    folder: Path = tmp_path_factory.mktemp("tiny")
    return PolicyModel(str(save_tiny_model(folder)), "cpu")


def sequences(*responses: list[int], prompt: list[int] = PROMPT) -> list[TrainingSequence]:
    return [training_sequence(a_credited(prompt, response), 1.0) for response in responses]


def alone(model: PolicyModel, sequence: TrainingSequence) -> np.ndarray:
    """The logprobs of a sequence's targets, computed without any packing."""
    with torch.no_grad():
        logits = model.module(torch.from_numpy(sequence.ids)[None]).logits[0].log_softmax(-1)
    return logits[sequence.targets - 1, sequence.ids[sequence.targets]].numpy()


def test_a_common_prompt_is_computed_once() -> None:
    [pack] = packs(sequences([1, 2, 3], [1, 9], [4]), 100)
    assert pack.ids.tolist() == [5, 6, 7, 8, 1, 2, 3, 9, 4]
    assert pack.positions.tolist() == [0, 1, 2, 3, 4, 5, 6, 5, 4]
    assert pack.end.tolist() == [9, 9, 9, 9, 8, 7, 7, 8, 9]
    assert pack.target_ids.tolist() == [1, 2, 3, 1, 9, 4]
    assert pack.predictors.tolist() == [3, 4, 5, 3, 4, 3]
    assert (pack.traces, pack.trace_tokens) == (3, 18)


def test_a_pack_holds_no_more_than_it_may() -> None:
    found = list(packs(sequences([1, 2, 3], [1, 9], [4]), 8))
    assert [pack.ids.tolist() for pack in found] == [[5, 6, 7, 8, 1, 2, 3, 9], [5, 6, 7, 8, 4]]


def test_a_sequence_that_is_too_long_has_a_pack_of_its_own() -> None:
    assert [len(pack.ids) for pack in packs(sequences([1] * 20, [2]), 8)] == [24, 5]


def test_without_sharing_every_trace_stands_whole() -> None:
    [pack] = packs(sequences([1, 2], [1, 3]), 100, share=False)
    assert pack.ids.tolist() == [5, 6, 7, 8, 1, 2, 5, 6, 7, 8, 1, 3]
    assert pack.end.tolist() == [6] * 6 + [12] * 6


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 2), min_size=1, max_size=4),
            st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=6),
        ),
        min_size=1,
        max_size=6,
    ),
    st.integers(4, 40),
    st.booleans(),
)
def test_packed_logprobs_are_those_of_each_trace_alone(
    model: PolicyModel, traces: list[tuple[list[int], list[int]]], max_tokens: int, share: bool
) -> None:
    made = [training_sequence(a_credited(prompt, response), 1.0) for prompt, response in traces]
    for sequence in made:
        # The weight tells the sequences apart after sorting.
        sequence.weights[:] = alone(model, sequence)
    for pack in packs(made, max_tokens, share=share):
        with torch.no_grad():
            computed = model.logprobs(pack).numpy()
        np.testing.assert_allclose(computed, pack.weights, atol=2e-5)
