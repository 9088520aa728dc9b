"""The data card as a page: README.md, whose head tells the `datasets` library where the files are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from polar.runs.generate.card import DataCard, RepositoryTally, Spread, Tally

REPOSITORY_COLUMNS = ("repository", "tasks", "attempts", "accepted", "rate", "split")


def page_of(card: DataCard) -> str:
    parts = [*_head(card), "# Confirmed agent sessions", "", _summary(card), ""]
    parts += ["## Repositories", "", *markdown(REPOSITORY_COLUMNS, repository_rows(card)), ""]
    parts += ["## Splits", "", *markdown(*split_table(card)), ""]
    parts += ["## Sessions", "", *markdown(("", "mean", "p50", "p90"), spread_rows(card)), ""]
    parts += ["## Origin", "", *markdown(("", ""), origin_rows(card)), ""]
    parts += ["## Use", "", "```python", *_use(card), "```", ""]
    return "\n".join(parts)


def repository_rows(card: DataCard) -> list[tuple[str, ...]]:
    rows = [_repository_row(each) for each in card.repositories]
    return [*rows, ("all", *_cells(card.all), "")]


def _repository_row(each: RepositoryTally) -> tuple[str, ...]:
    return (each.repository, *_cells(each.tally), each.split or "-")


def _cells(tally: Tally) -> tuple[str, ...]:
    return str(tally.tasks), str(tally.attempts), str(tally.accepted), percent(tally.rate)


def split_table(card: DataCard) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    formats: list[str] = card.plan["formats"]
    columns = ("split", "repositories", "sessions", "share", *(f"{name} rows" for name in formats))
    rows = [
        (
            side,
            str(tally.repositories),
            str(tally.sessions),
            percent(tally.share),
            *(str(tally.rows[name]) for name in formats),
        )
        for side, tally in card.splits.items()
    ]
    return columns, rows


def spread_rows(card: DataCard) -> list[tuple[str, ...]]:
    named = {"turns": card.turns, "sampled tokens": card.sampled_tokens, "tokens": card.tokens}
    return [(name, *_spread(spread)) for name, spread in named.items()]


def origin_rows(card: DataCard) -> list[tuple[str, str]]:
    counted = {
        "harness": card.harnesses,
        "model": card.models,
        "engine": card.engines,
        "Polar": card.polars,
        "evaluator": card.evaluators,
    }
    rows = [
        (name, ", ".join(f"{each} ({count})" for each, count in counts.items()))
        for name, counts in counted.items()
    ]
    tasks = [("task set", card.task_set)] if card.task_set else []
    return [*rows, *tasks, ("command", f"`{card.command}`"), ("run", card.run_id)]


def notes_of(card: DataCard) -> list[str]:
    """What a reader should know beside the numbers."""
    wanted = card.plan["split"]
    test = card.splits["test"]
    notes: list[str] = []
    if card.all.accepted:
        notes.append(
            f"The split is by whole repositories (`metadata.{card.plan['split_by']}`, seed {card.plan['seed']}): "
            f"{wanted} was asked for, {percent(card.splits['train'].share)} and {percent(test.share)} came out."
        )
    if repeated := sum(card.repeated.values()):
        notes.append(f"{repeated} traces repeat others and are left out: {_counted(card.repeated)}.")
    if card.all.failed:
        notes.append(f"{card.all.failed} sessions failed through infrastructure and are not among the attempts.")
    if not card.complete:
        notes.append("The run was interrupted: the same command continues it.")
    return notes


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [_line(columns), _line(["---"] * len(columns)), *map(_line, rows)]


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}%"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _spread(spread: Spread | None) -> tuple[str, ...]:
    return ("-", "-", "-") if spread is None else (f"{spread.mean:g}", f"{spread.p50:g}", f"{spread.p90:g}")


def _counted(reasons: dict[str, int]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in reasons.items())


def _summary(card: DataCard) -> str:
    plan = card.plan
    least = f"at least {plan['min_reward']:g}"
    what = (
        f"{card.all.accepted} of {card.all.attempts} sessions ({percent(card.all.rate)}) got a reward of {least} "
        f"and are exact and trainable; {card.tasks_solved} of {card.all.tasks} tasks have one or more. Each task "
        f"had up to {plan['attempts']} attempts until {plan['wanted']} were confirmed."
    )
    return "\n".join([what, "", *(f"- {note}" for note in notes_of(card))])


def _head(card: DataCard) -> list[str]:
    """YAML that `datasets.load_dataset(folder, format)` reads. A split without rows has no files to name."""
    lines = ["---", "configs:"]
    for name in card.plan["formats"]:
        sides = [side for side, tally in card.splits.items() if tally.rows[name]]
        if sides:
            lines += [f"- config_name: {name}", "  data_files:"]
        for side in sides:
            lines += [f"  - split: {side}", f'    path: "{name}/{side}/data/*"']
    return [*lines, "---", ""] if len(lines) > 2 else []


def _use(card: DataCard) -> list[str]:
    first = card.plan["formats"][0]
    return ["from datasets import load_dataset", f'data = load_dataset("path/to/this/folder", "{first}")']
