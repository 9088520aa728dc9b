"""The split: whole repositories, as near to the wanted shares as they allow."""

from __future__ import annotations

import pytest

from polar.errors import ConfigError
from polar.runs.generate.plan import SplitRatio
from polar.runs.generate.split import split_repositories


def in_test(sessions: dict[str, int], share: float = 0.1, seed: int = 0) -> set[str]:
    return {name for name, side in split_repositories(sessions, share, seed).items() if side == "test"}


def test_the_nearest_share_that_whole_repositories_allow() -> None:
    assert in_test({"big": 80, "middle": 13, "small": 7}) == {"small"}
    assert in_test({"a": 60, "b": 24, "c": 6, "d": 4, "e": 6}) in ({"c", "d"}, {"d", "e"})
    assert in_test({"a": 70, "b": 30}, 0.5) in ({"a"}, {"b"})


def test_both_sides_get_a_repository_where_there_are_two() -> None:
    assert len(in_test({"a": 50, "b": 50})) == 1
    assert in_test({"a": 99, "b": 1}, 0.9) == {"a"}


def test_one_repository_is_for_training() -> None:
    assert split_repositories({"only": 5}, 0.1, 0) == {"only": "train"}
    assert split_repositories({}, 0.1, 0) == {}


def test_without_a_test_part_everything_is_for_training() -> None:
    assert in_test({"a": 5, "b": 5}, 0.0) == set()


def test_a_repository_without_sessions_does_not_take_the_test_side() -> None:
    assert in_test({"a": 5, "b": 5, "empty": 0}) in ({"a"}, {"b"})


def test_the_same_seed_gives_the_same_split_and_another_may_not() -> None:
    equal = dict.fromkeys("abcdefghij", 1)
    splits = [in_test(equal, seed=seed) for seed in range(20)]
    assert splits == [in_test(dict(reversed(equal.items())), seed=seed) for seed in range(20)]
    assert all(len(split) == 1 for split in splits) and len({*map(frozenset, splits)}) > 1


def test_thousands_of_sessions_in_hundreds_of_repositories() -> None:
    sessions = {f"repo-{number}": 1 + number * number % 97 for number in range(400)}
    test = sum(sessions[name] for name in in_test(sessions))
    assert abs(test - sum(sessions.values()) / 10) < 1


@pytest.mark.parametrize("text", ["90", "90/10/0", "a/b", "0/100", "-1/5", "90.5/9.5", ""])
def test_a_wrong_ratio_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="write it as 90/10"):
        SplitRatio.of(text)


def test_a_ratio_need_not_sum_up_to_a_hundred() -> None:
    assert SplitRatio.of("4/1").test_share == 0.2 and SplitRatio.of("100/0").test_share == 0.0
