"""The reward files of a Harbor verifier."""

from __future__ import annotations

from pathlib import Path

import pytest

from polar.evaluators.harbor.reward import UnreadableReward, reward_files, score_of_file
from polar.types import Score


def score_of(tmp_path: Path, name: str, text: str, key: str | None = None) -> Score:
    (tmp_path / name).write_text(text)
    return score_of_file(tmp_path / name, key)


@pytest.mark.parametrize(("text", "reward"), [("1\n", 1.0), (" 0.25 ", 0.25), ("0", 0.0), ("-2", -2.0)])
def test_a_text_holds_one_number(tmp_path: Path, text: str, reward: float) -> None:
    assert score_of(tmp_path, "reward.txt", text) == Score(reward=reward)


@pytest.mark.parametrize("text", ["", "\n", "one", "nan", "inf", "1 2"])
def test_a_text_without_a_finite_number_is_unreadable(tmp_path: Path, text: str) -> None:
    with pytest.raises(UnreadableReward, match=r"reward\.txt"):
        score_of(tmp_path, "reward.txt", text)


def test_of_an_object_the_number_called_reward_counts_and_the_others_are_metrics(tmp_path: Path) -> None:
    score = score_of(tmp_path, "reward.json", '{"reward": 0.5, "speed": 3}')
    assert score == Score(reward=0.5, metrics={"speed": 3.0})


def test_an_only_number_is_the_reward_whatever_its_name(tmp_path: Path) -> None:
    assert score_of(tmp_path, "reward.json", '{"accuracy": true}').reward == 1.0


def test_several_numbers_without_a_reward_are_parts_of_their_mean(tmp_path: Path) -> None:
    score = score_of(tmp_path, "reward.json", '{"speed": 0.5, "style": 1.0}')
    assert score.reward == 0.75
    assert {name: (part.reward, part.weight) for name, part in score.parts.items()} == {
        "speed": (0.5, 0.5),
        "style": (1.0, 0.5),
    }


def test_a_key_chooses_one(tmp_path: Path) -> None:
    text = '{"reward": 0, "style": 1.0}'
    assert score_of(tmp_path, "reward.json", text, "style") == Score(reward=1.0, metrics={"reward": 0.0})
    with pytest.raises(UnreadableReward, match="has no 'speed', only reward, style"):
        score_of(tmp_path, "reward.json", text, "speed")


@pytest.mark.parametrize(
    "text", ["{", "{}", "[1]", "1", '{"reward": "1"}', '{"reward": NaN}', '{"reward": 1e999}']
)
def test_anything_but_an_object_of_finite_numbers_is_unreadable(tmp_path: Path, text: str) -> None:
    with pytest.raises(UnreadableReward, match=r"reward\.json"):
        score_of(tmp_path, "reward.json", text)


def test_json_comes_first_and_a_dangling_link_counts(tmp_path: Path) -> None:
    (tmp_path / "reward.txt").write_text("1")
    (tmp_path / "reward.json").symlink_to("nowhere")
    assert reward_files(tmp_path) == ["reward.json", "reward.txt"]
