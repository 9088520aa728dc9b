"""What counts as a verdict: one complete JSON object with the mark of its request."""

from __future__ import annotations

import pytest

from polar.evaluators.judge.material import Material
from polar.evaluators.judge.options import JudgeOptions, ScoreRange
from polar.evaluators.judge.prompt import schema_of
from polar.evaluators.judge.verdicts import WrongVerdict, read_verdict

OPTIONS = JudgeOptions(base_url="http://127.0.0.1:9/v1", model="m", rubric="Is it right?")
GOOD = '{"id": "ab12", "reason": "r", "scores": {"score": 7}}'


def read(text: str) -> float:
    return read_verdict(text, OPTIONS, Material(()), "ab12")[""].scores["score"]


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"\n {GOOD}\n",
        f"```json\n{GOOD}\n```",
        f"```\n{GOOD}\n```",
        f'<think>it wrote {{"score": 1}}</think>\n{GOOD}',
    ],
)
def test_the_whole_reply_is_the_verdict(text: str) -> None:
    assert read(text) == 7.0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not one JSON object"),
        (f"Here it is: {GOOD}", "not one JSON object"),
        (f"{GOOD} {GOOD}", "not one JSON object"),
        ("[]", "must be a JSON object"),
        (GOOD.replace("ab12", "ab13"), '"id" must be "ab12"'),
        (GOOD.replace('"reason": "r", ', ""), "exactly these keys"),
        (GOOD.replace('"r"', "null"), "must be a text"),
        (GOOD.replace('{"score": 7}', "7"), "must be a JSON object"),
        (GOOD.replace('"score": 7', '"score": 7, "more": 1'), "exactly these keys"),
        (GOOD.replace("7", "11"), "from 0 to 10"),
        (GOOD.replace("7", "-1"), "from 0 to 10"),
        (GOOD.replace("7", '"7"'), "from 0 to 10"),
        (GOOD.replace("7", "true"), "from 0 to 10"),
        (GOOD.replace("7", "1e999"), "from 0 to 10"),
        (GOOD.replace("7", "NaN"), "not a number of JSON"),
        (GOOD.replace("7", "1" * 5000), "not one JSON object"),
        (GOOD.replace('"score": 7', '"score": 7, "score": 10'), "twice"),
        ("[" * 100_000, "not one JSON object"),
    ],
)
def test_anything_else_is_none(text: str, problem: str) -> None:
    with pytest.raises(WrongVerdict, match=problem):
        read(text)


def test_a_scale_of_whole_numbers_takes_no_others() -> None:
    whole = OPTIONS.model_copy(update={"scale": ScoreRange(low=1, high=5, whole=True)})

    def read_whole(number: str) -> float:
        text = GOOD.replace("7", number)
        return read_verdict(text, whole, Material(()), "ab12")[""].scores["score"]

    assert (read_whole("4"), read_whole("4.0")) == (4.0, 4.0)
    with pytest.raises(WrongVerdict, match="whole number"):
        read_whole("4.5")
    schema = schema_of(whole, Material(()), "ab12")["properties"]["scores"]["properties"]["score"]
    assert schema == {"type": "integer", "minimum": 1, "maximum": 5}
