"""Why a session waits, in a sentence for the person who submitted it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, case, func, select

from polar.server.records.tables import groups, needs, queue
from polar.server.scheduling.needs import Lack, SessionNeeds, missing
from polar.server.scheduling.stored_needs import read_needs
from polar.types import PROTOCOL, NodeStatus, WaitReason

SHOWN_NODES = 3
LISTED = 20


@dataclass(frozen=True)
class ReachedLimits:
    """Of a task and its group; None: it is not reached."""

    task: int | None = None
    group: int | None = None

    def __str__(self) -> str:
        """Empty: none is reached."""
        if self.task is not None:
            return f"the task's limit max_running = {self.task} is reached"
        return "" if self.group is None else f"the group's limit group_max_running = {self.group} is reached"


def why_task_waits(connection: Connection, task_id: str, known: Sequence[NodeStatus]) -> str:
    """Of its next session. Empty: none waits."""
    row = connection.execute(_waiting().where(queue.c.task_id == task_id)).first()
    return "" if row is None else _why(row, known)


def why_all_wait(connection: Connection, known: Sequence[NodeStatus]) -> tuple[WaitReason, ...]:
    """By reason, the most sessions first."""
    waiting = _waiting().subquery()
    kinds = (waiting.c.body, waiting.c.task_limit, waiting.c.group_limit)
    counted = select(*kinds, func.sum(waiting.c.waiting), func.min(waiting.c.task_id)).group_by(*kinds)
    sessions, first = Counter[str](), dict[str, str]()
    for body, task_limit, group_limit, count, task_id in connection.execute(counted):
        why = reason(read_needs(body), ReachedLimits(task_limit, group_limit), known)
        sessions[why] += int(count)
        first[why] = min(task_id, first.get(why, task_id))
    return tuple(
        WaitReason(why=why, sessions=count, task_id=first[why]) for why, count in sessions.most_common(LISTED)
    )


def _waiting() -> Select[*tuple[Any, ...]]:
    task_is_full = queue.c.running >= queue.c.max_running
    group_is_full = groups.c.running >= groups.c.max_running
    return (
        select(
            queue.c.task_id,
            queue.c.waiting,
            needs.c.body,
            case((task_is_full, queue.c.max_running)).label("task_limit"),
            case((group_is_full, groups.c.max_running)).label("group_limit"),
        )
        .join(needs, needs.c.needs_id == queue.c.needs_id)
        .join(groups, groups.c.group_id == queue.c.group_id)
        .where(queue.c.waiting > 0)
    )


def _why(row: Row[Any], known: Sequence[NodeStatus]) -> str:
    return reason(read_needs(row.body), ReachedLimits(row.task_limit, row.group_limit), known)


def reason(needed: SessionNeeds, limits: ReachedLimits, known: Sequence[NodeStatus]) -> str:
    """What keeps sessions with these needs from a node, the most lasting first."""
    live = [node for node in known if node.alive]
    if not live:
        return "there is no live node: `polar gateway` starts one"
    lacks = [_lacks(needed, node) for node in live]
    able = [node for node, lacking in zip(live, lacks, strict=True) if not lacking]
    if not able:
        return _no_node_has(lacks, [node.name for node in live])
    ready = [node for node in able if node.sick is None and not node.draining]
    if not ready:
        states = [f"{node.name} is {_state(node)}" for node in able]
        return f"no node that can run it takes sessions: {_first(states)}"
    if reached := str(limits):
        return reached
    if all(len(node.sessions) >= node.slots for node in ready):
        slots = sum(node.slots for node in ready)
        return f"all {slots} slots of {_nodes(len(ready))} that can run it are in use"
    return "a node gets it with its next request"


def _lacks(needed: SessionNeeds, node: NodeStatus) -> list[Lack]:
    if node.abilities is None or node.abilities.protocol != PROTOCOL:
        return [Lack(f"the server's protocol {PROTOCOL}", "another version of Polar")]
    return missing(needed, node.abilities)


def _no_node_has(lacks: Sequence[Sequence[Lack]], names: Sequence[str]) -> str:
    common = [lack.what for lack in lacks[0] if all(lack.what in {each.what for each in of} for of in lacks)]
    if not common:
        parts = [f"{name} lacks {of[0].what}" for name, of in zip(names, lacks, strict=True)]
        return f"no live node has all that it needs: {_first(parts)}"
    instead = dict.fromkeys(each.has or "none" for of in lacks for each in of if each.what == common[0])
    return f"no live node has {' and '.join(common)} ({_nodes(len(lacks))}: {_first(list(instead))})"


def _state(node: NodeStatus) -> str:
    return "draining" if node.sick is None else f"sick ({node.sick.part}: {node.sick.why[:200]})"


def _nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"


def _first(parts: Sequence[str]) -> str:
    more = f"; and {len(parts) - SHOWN_NODES} more" if len(parts) > SHOWN_NODES else ""
    return "; ".join(parts[:SHOWN_NODES]) + more
