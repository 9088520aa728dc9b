"""The values of `polar top` as lines and tables of plain text, for the terminal and for `--once`.

Names and messages come from nodes, tasks and harnesses: all pass through `visible` here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from polar.cli.control.nodes import abilities_line, state_of
from polar.cli.output import counted, number, one_line, visible
from polar.cli.top.feed import OPEN_STAGES, Snapshot
from polar.types import NodeStatus, Stage
from polar.types.service.overview import (
    EngineRate,
    FailureCount,
    HarnessOutcomes,
    LogLine,
    Overview,
    SessionRowView,
)

Tone = Literal["", "bad", "warn"]
SectionName = Literal["nodes", "sessions", "outcomes", "failures", "log"]
STATES = ("silent", "sick", "draining", "well")
LONGEST = 400
"""Characters of one cell."""


@dataclass(frozen=True)
class Row:
    key: str
    """What an action on the row needs: a node's or a session's id."""
    cells: tuple[str, ...]
    details: str = ""
    """Everything about it, for those who choose it."""
    tone: Tone = ""


@dataclass(frozen=True)
class Section:
    name: SectionName
    title: str
    columns: tuple[str, ...]
    """A name that begins with `#`: numbers, aligned to the right. The last column takes the room that is left."""
    rows: tuple[Row, ...]
    optional: tuple[str, ...] = ()
    """Columns to leave out, in this order, while the terminal is too narrow."""
    empty: str = ""
    """What to say without rows."""


def head_lines(overview: Overview) -> list[str]:
    """The service in four lines, and one for why sessions wait."""
    lines = [_policy_line(overview), _stage_line(overview), _rate_line(overview), _outcome_line(overview)]
    return [*lines, *_waiting_line(overview)]


def sections(snapshot: Snapshot) -> list[Section]:
    overview = snapshot.overview
    return [
        node_section(overview),
        session_section(snapshot),
        outcome_section(overview),
        failure_section(overview),
        log_section(snapshot.log),
    ]


def _policy_line(overview: Overview) -> str:
    policy = overview.policy
    state = "PAUSED" if policy.paused else "generating"
    version = visible(policy.version) or "(no version)"
    updates = f", {policy.updates} updates" if policy.updates else ""
    free = max(0, overview.slots - overview.busy)
    return f"policy {one_line(version, 40)}{updates}: {state}   slots {overview.busy} busy, {free} free"


def _stage_line(overview: Overview) -> str:
    parts: list[str] = []
    for stage in Stage:
        count = overview.stages.get(stage, 0)
        oldest = stage is Stage.QUEUED and overview.oldest_queued_s is not None
        waited = f" (oldest {age(overview.oldest_queued_s)})" if oldest else ""
        if count or stage in (Stage.QUEUED, Stage.RUNNING):
            parts.append(f"{stage.value.lower()} {short(count)}{waited}")
    return "  ".join(parts)


def _waiting_line(overview: Overview) -> list[str]:
    """The reason of most waiting sessions."""
    if not overview.waiting:
        return []
    first, *others = overview.waiting
    more = f"; {sum(other.sessions for other in others)} for other reasons" if others else ""
    return [f"{short(first.sessions)} wait{more}: {one_line(first.why, LONGEST)}"]


def _rate_line(overview: Overview) -> str:
    rate: EngineRate = overview.rate
    if not rate.over_s:
        return "no calls measured yet"
    parts = [
        f"{short(rate.sampled_tokens_per_s)} tokens/s sampled",
        f"{short(rate.prompt_tokens_per_s)} read",
        f"{rate.calls_per_s:.1f} calls/s",
        f"first token {_s(rate.first_token_s)}",
        f"call {_s(rate.call_s)}",
    ]
    return "  ".join([*parts, f"{rate.failed_calls} FAILED"] if rate.failed_calls else parts)


def _outcome_line(overview: Overview) -> str:
    if not overview.window:
        return "no session has ended yet"
    contrast = overview.contrast
    parts = [f"newest {overview.window}"]
    if overview.ended_per_minute is not None:
        parts.append(f"{overview.ended_per_minute:.1f} ended/min")
    if contrast.groups:
        share = contrast.without_contrast / contrast.groups
        parts.append(f"groups without contrast {contrast.without_contrast}/{contrast.groups} ({share:.0%})")
    if overview.stale:
        parts.append(f"stale {overview.stale}")
    return "  ".join(parts)


def node_section(overview: Overview) -> Section:
    """Those that want attention first."""
    columns = ("node", "name", "state", "#slots", "#sessions", "#seen", "why")
    ordered = sorted(overview.nodes, key=lambda node: STATES.index(state_of(node)))
    rows = tuple(_node_row(node, overview.at) for node in ordered)
    well = sum(state_of(node) == "well" for node in overview.nodes)
    title = f"nodes: {well} of {len(overview.nodes)} well" if overview.nodes else "nodes"
    none = "no node is registered: start one with `polar gateway --server URL`"
    return Section("nodes", title, columns, rows, optional=("#seen", "name"), empty=none)


def _node_row(node: NodeStatus, now: float) -> Row:
    state = state_of(node)
    why = f"{node.sick.part} for {age(now - node.sick.since)}: {node.sick.why}" if node.sick else ""
    cells = (
        node.node_id,
        node.name,
        state,
        str(node.slots),
        str(len(node.sessions)),
        age(now - node.last_seen),
        why,
    )
    details = [
        f"{node.node_id} ({node.name}): {state}",
        f"slots {node.slots}, generations under way {node.generating}, last seen {age(now - node.last_seen)} ago",
        "it has acknowledged the policy" if node.heard else "it has not acknowledged the current policy",
        *([why] if why else []),
        f"can: {abilities_line(node)}",
        f"sessions: {' '.join(node.sessions) or 'none'}",
    ]
    tone: Tone = {"silent": "bad", "sick": "bad", "draining": "warn"}.get(state, "")  # type: ignore[assignment]
    return _row(node.node_id, cells, details, tone)


def session_section(snapshot: Snapshot) -> Section:
    """Stuck sessions first."""
    overview, stuck = snapshot.overview, {one.session_id: one.why for one in snapshot.overview.stuck}
    ordered = sorted(snapshot.sessions, key=lambda session: session.session_id not in stuck)
    rows = tuple(_session_row(session, stuck.get(session.session_id, ""), overview.at) for session in ordered)
    columns = ("session", "stage", "#for", "node", "harness", "#attempt", "note")
    total = sum(count for stage, count in overview.stages.items() if stage in OPEN_STAGES)
    title = f"sessions: {total} open" + (f", {len(stuck)} STUCK" if stuck else "")
    cut = f", {len(rows)} listed" if len(rows) < total else ""
    optional = ("#attempt", "harness", "node")
    return Section("sessions", title + cut, columns, rows, optional, "no session is open")


def _session_row(session: SessionRowView, stuck: str, now: float) -> Row:
    waited = age(None if session.since is None else now - session.since)
    notes = [f"STUCK: {stuck}"] if stuck else []
    if session.cancel_requested:
        notes.append("cancel requested")
    cells = (
        session.session_id,
        session.stage.value,
        waited,
        session.node_id or "-",
        session.harness,
        str(session.attempt),
        "; ".join(notes),
    )
    details = [
        f"{session.session_id}: {session.stage} for {waited}, attempt {session.attempt}",
        f"task {session.task_id}, group {session.group_id}, sample {session.index}",
        f"harness {session.harness}, runtime {session.runtime}, node {session.node_id or 'none'}",
        f"calls {session.calls}, tokens sampled {session.sampled_tokens}, policy updates {session.policy_updates}",
        *notes,
    ]
    return _row(session.session_id, cells, details, "bad" if stuck else "")


def outcome_section(overview: Overview) -> Section:
    columns = (
        "harness",
        "#sessions",
        "#trainable",
        "#reward",
        "#merged",
        "#rows/session",
        "#calls",
        "run",
    )
    rows = tuple(_outcome_row(one) for one in overview.harnesses)
    title = f"outcomes: newest {overview.window}" if overview.window else "outcomes"
    if overview.untrainable:
        reasons: dict[str, int] = {**overview.untrainable}
        title += f"; not trainable: {counted(reasons)}"
    optional = ("#calls", "run", "#trainable")
    return Section("outcomes", title, columns, rows, optional, "no session has ended yet")


def _outcome_row(one: HarnessOutcomes) -> Row:
    merged = "-" if one.merge_rate is None else f"{one.merge_rate:.0%}"
    cells = (
        one.harness,
        str(one.sessions),
        str(one.trainable),
        number(one.mean_reward),
        merged,
        f"{one.rows_per_session:.2f}",
        f"{one.calls_per_session:.1f}",
        _s(one.run_s),
    )
    details = [
        f"{one.harness}: {one.sessions} sessions, {one.trainable} trainable",
        f"mean reward {number(one.mean_reward)}; mean time in RUNNING {_s(one.run_s)}",
        f"merge rate {merged}: share of calls that continue another's tokens, among those that could",
        f"rows per session {one.rows_per_session:.2f}, calls per session {one.calls_per_session:.1f}",
        f"tokens sampled {one.sampled_tokens}",
    ]
    return _row(one.harness, cells, details)


def failure_section(overview: Overview) -> Section:
    """Infrastructure first: it is what an operator can mend."""
    ordered = sorted(overview.failures, key=lambda one: (one.agent, -one.count))
    by_agent = sum(one.count for one in ordered if one.agent)
    ours = sum(one.count for one in ordered) - by_agent
    title = f"failures: {ours} by infrastructure, {by_agent} by the agent"
    columns = ("by", "#count", "where", "type", "newest session")
    return Section("failures", title, columns, tuple(map(_failure_row, ordered)), (), "none")


def _failure_row(one: FailureCount) -> Row:
    by = "agent" if one.agent else "INFRASTRUCTURE"
    meaning = "counts as reward 0" if one.agent else "counts in no mean; the service failed the session"
    details = [
        f"{one.type} in {one.where}: {one.count} of the newest sessions",
        f"caused by {'the agent' if one.agent else 'infrastructure'}: {meaning}",
        f"the newest: {one.session_id}",
        f"polar show {one.session_id} --server URL tells more",
    ]
    cells = (by, str(one.count), one.where, one.type, one.session_id)
    return _row(one.session_id, cells, details, "" if one.agent else "bad")


def log_section(lines: Sequence[LogLine]) -> Section:
    """The newest first: it must be seen where there is little room."""
    rows = tuple(_log_row(str(index), line) for index, line in enumerate(lines))
    columns = ("time", "level", "source", "message")
    return Section("log", "log: newest first", columns, rows[::-1], ("source",), "no lines")


def _log_row(key: str, line: LogLine) -> Row:
    at = time.strftime("%H:%M:%S", time.localtime(line.at))
    about = f" [{line.session_id}]" if line.session_id and line.session_id not in line.message else ""
    details = [
        f"{at} {line.level} {line.source}",
        line.message,
        *([f"session {line.session_id}"] if about else []),
    ]
    tone: Tone = {"error": "bad", "warning": "warn"}.get(line.level, "")  # type: ignore[assignment]
    return _row(key, (at, line.level, line.source, f"{line.message}{about}"), details, tone)


def _row(key: str, cells: tuple[str, ...], details: Sequence[str], tone: Tone = "") -> Row:
    return Row(key, tuple(one_line(cell, LONGEST) for cell in cells), "\n".join(map(visible, details)), tone)


def age(seconds: float | None) -> str:
    """As `12s`, `3m20s`, `2h05m` or `3d04h`; the clocks of two machines may differ, so never below 0."""
    if seconds is None:
        return "-"
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def short(value: float) -> str:
    """A number in at most five characters, as `940`, `12.3k` or `4.0M`."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.1f}{unit}"
    return str(value) if isinstance(value, int) else f"{value:.0f}"


def _s(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.2f} s" if seconds < 10 else age(seconds)
