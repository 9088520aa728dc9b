"""Which replica a session goes to: evenly spread, moved as little as possible, never much more than a share."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.engines.pool.affinity import chosen, ranked

SESSIONS = [f"task-{number}-0" for number in range(2000)]


@dataclass(frozen=True)
class Stand:
    name: str
    under_way: int = 0


def stands(count: int) -> list[Stand]:
    return [Stand(f"http://10.0.0.{number}:8000") for number in range(count)]


def first(session_id: str, replicas: list[Stand]) -> str:
    return ranked(session_id, replicas)[0].name


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_sessions_are_spread_evenly(count: int) -> None:
    replicas = stands(count)
    spread = Counter(first(session_id, replicas) for session_id in SESSIONS)
    assert len(spread) == count
    assert max(spread.values()) < 1.25 * len(SESSIONS) / count


def test_a_lost_replica_moves_only_its_own_sessions() -> None:
    replicas = stands(4)
    lost, rest = replicas[1], [replicas[0], *replicas[2:]]
    moved = {name: first(name, rest) for name in SESSIONS if first(name, rest) != first(name, replicas)}
    assert moved.keys() == {name for name in SESSIONS if first(name, replicas) == lost.name}
    assert len(set(moved.values())) == 3, "and to all of the others"


def test_the_order_of_the_list_does_not_matter() -> None:
    replicas = stands(5)
    assert [first(name, replicas) for name in SESSIONS] == [first(name, replicas[::-1]) for name in SESSIONS]


def test_names_are_not_run_together() -> None:
    one, other = [Stand("ab"), Stand("c")], [Stand("b"), Stand("c")]
    assert any((first(f"s{n}", one) == "c") != (first(f"s{n}a", other) == "c") for n in range(200)), (
        "session s with replica ab is not session sa with replica b"
    )


def test_any_text_is_a_session() -> None:
    assert first("\ud800 ü\x00", stands(3))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.floats(1, 4), st.text())
def test_no_replica_gets_much_more_than_its_share(loads: list[int], factor: float, session_id: str) -> None:
    replicas = [Stand(f"http://{number}", load) for number, load in enumerate(loads)]
    picked = chosen(session_id, replicas, factor)
    assert picked.under_way < factor * (sum(loads) + 1) / len(loads) + 1


def test_below_its_share_a_session_stays_where_it_is() -> None:
    own, other = ranked("s", stands(2))
    assert chosen("s", [Stand(own.name, 2), Stand(other.name, 2)], 1.5).name == own.name
    assert chosen("s", [Stand(own.name, 9), Stand(other.name, 2)], 1.5).name == other.name
