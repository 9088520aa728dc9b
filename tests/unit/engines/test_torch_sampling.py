from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
import torch

from polar.engines.torch.sampling import SamplingParameters, sample, shaped

pytestmark = [pytest.mark.check, pytest.mark.usefixtures("one_thread")]
LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, -3.0])


def kept(**parameters: Any) -> list[int]:
    return torch.isfinite(shaped(LOGITS, SamplingParameters(**parameters))).nonzero()[:, 0].tolist()


def test_tokens_come_as_often_as_the_softmax_says() -> None:
    random, count = Random(0), 20_000
    draws = [random.random() for _ in range(count)]
    ids, _ = sample(LOGITS.expand(count, -1), [SamplingParameters()] * count, draws)
    found = Counter(ids)
    shares = [found[n] / count for n in range(5)]
    assert shares == pytest.approx(LOGITS.softmax(-1).tolist(), abs=0.01)


def test_the_logprob_is_of_the_plain_softmax_whatever_was_sampled_from() -> None:
    parameters = [SamplingParameters(), SamplingParameters(temperature=0.0), SamplingParameters(top_k=1)]
    ids, logprobs = sample(LOGITS.expand(3, -1), parameters, [0.0, 0.99, 0.99])
    assert ids == [0, 0, 0]
    assert logprobs == pytest.approx([LOGITS.log_softmax(-1)[0].item()] * 3)


def test_a_token_without_probability_is_never_sampled() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]])
    assert sample(logits, [SamplingParameters()], [0.0])[0] == [1]
    assert sample(logits, [SamplingParameters()], [0.5])[0] == [3]
    assert sample(logits, [SamplingParameters()], [1 - 2**-53])[0] == [3]


def test_truncation_keeps_the_likeliest() -> None:
    assert kept(top_k=2) == [0, 1]
    assert kept(top_p=0.5) == [0]
    assert kept(top_p=0.7) == [0, 1]
    assert kept(min_p=0.1) == [0, 1, 2]
    assert kept(top_k=3, top_p=0.999, min_p=0.0) == [0, 1, 2]
    assert kept(temperature=0.0) == [0]


def test_temperature_flattens() -> None:
    hot = shaped(LOGITS, SamplingParameters(temperature=2.0))
    assert hot.exp().tolist() == pytest.approx((LOGITS / 2).softmax(-1).tolist())


@pytest.mark.parametrize(
    ("parameters", "named"),
    [
        ({"n": 2}, "n"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"stop": ("x",)}, "stop"),
        ({"structured_outputs": {"json": {}}}, "structured_outputs"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_what_the_sampler_cannot_do_is_refused(parameters: dict[str, Any], named: str) -> None:
    assert named in SamplingParameters(**parameters).problem()
    assert SamplingParameters().problem() == ""
