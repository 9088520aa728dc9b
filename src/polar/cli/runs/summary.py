"""The outcome of a run: a row for each task, and what became of every sampled token."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from polar.cli.output import console, counted, number, print_json, print_table, visible
from polar.cli.runs.progress import LIVE_STAGES
from polar.types import SessionResult

MOST_NAMED = 10


def print_outcome(
    results: Sequence[SessionResult],
    origin: dict[str, Any],
    *,
    json: bool,
    harness_of: Mapping[str, str] | None = None,
) -> None:
    """`origin`: where the results are, for the JSON. `harness_of`: task id to harness; several are compared."""
    groups = by_harness(results, harness_of or {})
    if json:
        values = [result.model_dump(mode="json") for result in results]
        means = {name: mean_reward(group) for name, group in groups.items()}
        print_json({**origin, **summary_json(results), "by_harness": means, "results": values})
    elif results:
        print_summary(results)
        if len(groups) > 1:
            _print_harnesses(groups)


def by_harness(results: Iterable[SessionResult], harness_of: Mapping[str, str]) -> dict[str, list[SessionResult]]:
    groups = defaultdict[str, list[SessionResult]](list)
    for result in results:
        if result.task_id in harness_of:
            groups[harness_of[result.task_id]].append(result)
    return dict(groups)


def _print_harnesses(groups: Mapping[str, Sequence[SessionResult]]) -> None:
    columns = ("harness", "#sessions", "#mean", "#no reward", "#calls", "#trainable", "#merge rate")
    rows = [
        (
            name,
            str(len(group)),
            number(mean_reward(group), 2),
            str(sum(left_out_of_mean(group).values())),
            str(_total(group, "calls")),
            str(_total(group, "trainable_tokens")),
            number(_merge_rate(group), 2),
        )
        for name, group in groups.items()
    ]
    console().print()
    print_table(columns, rows)


def print_summary(results: Sequence[SessionResult]) -> None:
    by_task: defaultdict[str, list[SessionResult]] = defaultdict(list)
    for result in results:
        by_task[result.task_id].append(result)
    columns = ["task", "rewards", "#mean", "#calls", "#traces", "#trainable", "#merge rate"]
    columns += [f"#{stage.value} s" for stage in LIVE_STAGES]
    rows = [_row(task_id, group) for task_id, group in by_task.items()]
    if len(by_task) > 1:
        rows.append(_row("all", results, with_rewards=False))
    print_table(columns, rows, optional=[*columns[-len(LIVE_STAGES) :], "#traces", "#merge rate"])
    console().print(_account(results))
    for line in left_out_lines(results):
        console().print(line)
    if stale := [result for result in results if result.stale]:
        console().print(_ages(stale))
    if killed := unknown_signals(results):
        console().print(f"ended by a signal whose sender is not known, by task: {counted(killed)}")
    for line in _notes(results):
        console().print(line)


def _notes(results: Sequence[SessionResult]) -> list[str]:
    """Each once, with the number of sessions if it is not for all."""
    counts = Counter(note for result in results for note in result.notes)
    return [
        f"note: {visible(note, newline=' ')}" + (f" ({count} sessions)" if count < len(results) else "")
        for note, count in counts.items()
    ]


def unknown_signals(results: Sequence[SessionResult]) -> dict[str, int]:
    """Sessions of each task that such a signal ended. A task that stands out may kill its own harness."""
    return dict(Counter(r.task_id for r in results if r.failure and r.failure.type == "UnknownSignal"))


def summary_json(results: Sequence[SessionResult]) -> dict[str, Any]:
    return {
        "sessions": len(results),
        "stages": dict(Counter(result.stage.value for result in results)),
        "mean_reward": mean_reward(results),
        "left_out_of_mean": left_out_of_mean(results),
        "trainable_sessions": sum(result.trainable for result in results),
        "not_trainable": not_trainable(results),
        "sampled_tokens": _total(results, "sampled_tokens"),
        "trainable_tokens": _total(results, "trainable_tokens"),
        "dropped_tokens": _total(results, "dropped_tokens"),
        "cut_tokens": _total(results, "cut_tokens"),
        "merge_rate": _merge_rate(results),
        "stale": sum(result.stale for result in results),
        "unknown_signals": unknown_signals(results),
    }


def mean_reward(results: Iterable[SessionResult]) -> float | None:
    """Over the sessions that have a reward; one that failed through infrastructure has none."""
    return _mean([result.reward for result in results if result.reward is not None])


def left_out_of_mean(results: Iterable[SessionResult]) -> dict[str, int]:
    """Number of sessions without a reward, by reason."""
    return dict(Counter(result.untrainable_reason for result in results if result.reward is None))


def not_trainable(results: Iterable[SessionResult]) -> dict[str, int]:
    return dict(Counter(result.untrainable_reason for result in results if not result.trainable))


def _row(task_id: str, group: Sequence[SessionResult], *, with_rewards: bool = True) -> tuple[str, ...]:
    stages = (_mean([r.stage_s[s.value] for r in group if s.value in r.stage_s]) for s in LIVE_STAGES)
    return (
        task_id,
        " ".join(number(r.reward, 1) for r in group) if with_rewards else "",
        number(mean_reward(group), 2),
        str(_total(group, "calls")),
        str(_total(group, "traces")),
        str(_total(group, "trainable_tokens")),
        number(_merge_rate(group), 2),
        *(number(value, 1) for value in stages),
    )


def _account(results: Sequence[SessionResult]) -> str:
    reasons: Counter[str] = Counter()
    for result in results:
        reasons.update(result.statistics.dropped)
    dropped = _total(results, "dropped_tokens")
    why = f" ({counted(reasons)})" if dropped else ""
    cut = _total(results, "cut_tokens")
    return (
        f"{_total(results, 'sampled_tokens')} sampled tokens = {_total(results, 'trainable_tokens')} trainable, "
        f"each in exactly one trace, + {dropped} dropped{why}"
        + (f"; {cut} more were given after the end of a reply and cut off" if cut else "")
    )


def left_out_lines(results: Sequence[SessionResult]) -> list[str]:
    """How many sessions have no reward, and how many may not be trained on, with reasons; nothing if none."""
    no_reward, untrainable = left_out_of_mean(results), not_trainable(results)
    lines = [("have no reward and are in no mean", no_reward)]
    if untrainable != no_reward:
        lines.append(("may not be trained on", untrainable))
    return [f"{sum(why.values())} of {len(results)} sessions {what}: {counted(why)}" for what, why in lines if why]


def _ages(stale: Sequence[SessionResult]) -> str:
    shown = ", ".join(f"{result.session_id} ({result.policy_updates})" for result in stale[:MOST_NAMED])
    more = f" and {len(stale) - MOST_NAMED} more" if len(stale) > MOST_NAMED else ""
    return f"{len(stale)} stale, with the policy updates each has lived through: {shown}{more}"


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _total(results: Sequence[SessionResult], name: str) -> int:
    return sum(getattr(result.statistics, name) for result in results)


def _merge_rate(results: Sequence[SessionResult]) -> float | None:
    pairs = _total(results, "append_only_pairs")
    return _total(results, "merged_pairs") / pairs if pairs else None
