"""Why a session waits: the sentence for each case."""

from __future__ import annotations

from typing import Any

import pytest

from node_abilities import able
from polar.server.scheduling.needs import SessionNeeds
from polar.server.scheduling.waiting import ReachedLimits, reason
from polar.types import PROTOCOL, NodeStatus, Sickness

DOCKER = SessionNeeds(runtimes=("docker",))
SICK = Sickness(part="engine", why="it is gone", since=0.0)


def node(name: str = "one", *, held: int = 0, can: dict[str, Any] | None = None, **fields: Any) -> NodeStatus:
    values = {
        "node_id": f"node-{name}",
        "name": name,
        "slots": 4,
        "registered": 0.0,
        "last_seen": 0.0,
        "alive": True,
        "sessions": tuple(f"s{number}" for number in range(held)),
        "abilities": able(**(can or {})),
        **fields,
    }
    return NodeStatus.model_validate(values)


LOCAL = {"runtimes": ("local",)}
CONTAINED = {"runtimes": ("bubblewrap", "local")}
NONE = ReachedLimits()


@pytest.mark.parametrize(
    ("limits", "nodes", "why"),
    [
        (NONE, [], "there is no live node: `polar gateway` starts one"),
        (NONE, [node(alive=False)], "there is no live node: `polar gateway` starts one"),
        (NONE, [node(can=LOCAL)], "no live node has the runtime docker (1 node: local)"),
        (
            NONE,
            [node(can=LOCAL), node("two", can=CONTAINED), node("dead", alive=False)],
            "no live node has the runtime docker (2 nodes: local; bubblewrap, local)",
        ),
        (
            NONE,
            [node(can=CONTAINED), node("two", can=CONTAINED)],
            "no live node has the runtime docker (2 nodes: bubblewrap, local)",
        ),
        (
            NONE,
            [node(abilities=None), node("two", can=LOCAL)],
            f"no live node has all that it needs: one lacks the server's protocol {PROTOCOL};"
            " two lacks the runtime docker",
        ),
        (
            NONE,
            [node(can=LOCAL), node("two", sick=SICK), node("three", draining=True)],
            "no node that can run it takes sessions: two is sick (engine: it is gone); three is draining",
        ),
        (ReachedLimits(task=4), [node()], "the task's limit max_running = 4 is reached"),
        (ReachedLimits(group=2), [node()], "the group's limit group_max_running = 2 is reached"),
        (ReachedLimits(task=4), [node(can=LOCAL)], "no live node has the runtime docker (1 node: local)"),
        (
            NONE,
            [node(held=4), node("two", held=5), node("three", can=LOCAL)],
            "all 8 slots of 2 nodes that can run it are in use",
        ),
        (NONE, [node(held=4), node("two", held=3)], "a node gets it with its next request"),
    ],
)
def test_the_reason_names_what_would_have_to_change(
    limits: ReachedLimits, nodes: list[NodeStatus], why: str
) -> None:
    assert reason(DOCKER, limits, nodes) == why


def test_everything_that_all_nodes_lack_is_named() -> None:
    needed = SessionNeeds(runtimes=("docker",), labels=("gpu",))
    nodes = [node(can={**LOCAL, "labels": ("a",)}), node("two", can=LOCAL)]
    assert reason(needed, NONE, nodes) == (
        "no live node has the runtime docker and the label gpu (2 nodes: local)"
    )


def test_many_nodes_are_not_all_listed() -> None:
    nodes = [node(f"n{number}", draining=True) for number in range(9)]
    assert reason(DOCKER, NONE, nodes).endswith("n2 is draining; and 6 more")
