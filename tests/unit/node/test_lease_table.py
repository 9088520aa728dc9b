"""A node runs one attempt of a session at a time."""

from __future__ import annotations

from fake_rollout_server import a_lease

from polar.node.lease_table import LeaseTable
from polar.types import Lease


def begun(leases: list[Lease]) -> list[tuple[str, int]]:
    return [(lease.session.session_id, lease.session.attempt) for lease in leases]


def test_the_next_attempt_waits_until_the_earlier_one_has_ended() -> None:
    table = LeaseTable()
    table.put((a_lease("a-0", attempt=1),))
    assert begun(table.take(8)) == [("a-0", 1)]
    table.put((a_lease("a-0", attempt=2), a_lease("b-0", attempt=1)))
    assert begun(table.take(8)) == [("b-0", 1)]
    table.release("a-0")
    assert begun(table.take(8)) == [("a-0", 2)]


def test_of_two_attempts_that_wait_only_the_newest_begins() -> None:
    """The server took the second attempt away, and the heartbeat that says so has not come yet."""
    table = LeaseTable()
    table.put((a_lease("a-0", attempt=1),))
    table.take(8)
    table.put((a_lease("a-0", attempt=2),))
    table.put((a_lease("a-0", attempt=3),))
    table.release("a-0")
    assert begun(table.take(8)) == [("a-0", 3)]
    assert not table.waiting
