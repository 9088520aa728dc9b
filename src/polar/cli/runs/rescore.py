"""`polar rescore`: scores the sessions of a stored run again with another evaluator, before and after."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polar.cli.options import JsonOption, options_of
from polar.cli.output import (
    console,
    error_console,
    number,
    one_line,
    print_json,
    print_table,
    progress_bar,
    visible,
)

if TYPE_CHECKING:
    from polar.runs.rescore import Rescored, RescorePlan
    from polar.runs.stored import StoredRun, StoredSession

EXIT_UNSCORED = 1
LEFT_WORDS = 90


def rescore(  # noqa: PLR0913 - each is an option of the command
    ctx: typer.Context,
    run: Annotated[str | None, typer.Argument(help="A run's id, or the beginning of it; else the latest.")] = None,
    evaluator: Annotated[
        str | None, typer.Option(help="NAME, module:Class or module:function; by default each task's own.")
    ] = None,
    option: Annotated[list[str] | None, typer.Option(help="An option of the evaluator, as key=value.")] = None,
    session: Annotated[
        list[str] | None, typer.Option(help="Only this session, by its id or the beginning of it.")
    ] = None,
    at_once: Annotated[int, typer.Option(min=1, help="Sessions that are scored at once.")] = 2,
    write: Annotated[bool, typer.Option("--write", help="Store the scores beside the run's results.")] = False,
    json: JsonOption = False,
) -> None:
    """Score stored sessions again, with another evaluator or other options.

    The sessions' own results are never changed. An evaluator that looks at the
    workspace needs tasks that kept it: keep.artifacts = ["."] or keep.patch =
    true. Exit code 1 if a session could not be scored.
    """
    from polar import config
    from polar.runs.rescore import RescorePlan
    from polar.runs.stored import load_run

    stored = load_run(run, runs_dir=ctx.obj)
    chosen = [stored[each] for each in dict.fromkeys(session or ())] or list(stored)
    plan = RescorePlan(evaluator, options_of(option or []), at_once, write, config.load().permits)
    done = _rescore(stored, chosen, plan, quiet=json)
    report = _report(stored, plan, done)
    print_json(report) if json else _print(report)
    if report["unscored"]:
        raise typer.Exit(EXIT_UNSCORED)


def _rescore(stored: StoredRun, chosen: list[StoredSession], plan: RescorePlan, *, quiet: bool) -> list[Rescored]:
    from polar.runs.event_loop import run_apart
    from polar.runs.rescore import rescore as score_again

    with progress_bar(error_console(quiet=quiet)) as bar:
        task = bar.add_task("Scoring", total=len(chosen))
        return run_apart(score_again(stored, chosen, plan, lambda _: bar.advance(task)))


def _report(stored: StoredRun, plan: RescorePlan, done: list[Rescored]) -> dict[str, Any]:
    later = [each for each in done if each.later is not None]
    both = [(each.before, each.after) for each in later if each.before is not None and each.after is not None]
    return {
        "run_id": stored.run_id,
        "evaluator": plan.evaluator or "each task's own",
        "options": plan.options or {},
        "sessions": [_row(each) for each in done],
        "scored": sum(each.after is not None for each in later),
        "changed": sum(each.changed for each in later),
        "mean_before": fmean(before for before, _ in both) if both else None,
        "mean_after": fmean(after for _, after in both) if both else None,
        "compared": len(both),
        "without_reward_before": sum(each.before is None for each in done),
        "without_reward_after": sum(each.after is None for each in later),
        "unscored": sum(each.failed for each in later),
        "skipped": len(done) - len(later),
        "written": _written(stored, later) if plan.write else None,
    }


def _row(each: Rescored) -> dict[str, Any]:
    return {
        "session_id": each.session.session_id,
        "before": each.before,
        "after": each.after,
        "changed": each.changed,
        "skipped": each.skipped,
        "score": each.later.model_dump(mode="json") if each.later else None,
    }


def _written(stored: StoredRun, later: list[Rescored]) -> str | None:
    return str(stored.paths.rescores) if later else None


def _print(report: dict[str, Any]) -> None:
    out = console()
    options = "".join(f" {visible(f'{key}={value}')}" for key, value in report["options"].items())
    out.print(f"run {report['run_id']}  evaluator {visible(report['evaluator'])}{options}\n")
    print_table(["session", "#before", "#after", "#change", ""], [_cells(row) for row in report["sessions"]])
    out.print(
        f"\n{report['scored']} sessions have a new reward, {report['changed']} changed; "
        f"mean {number(report['mean_before'])} before, {number(report['mean_after'])} after "
        f"({report['compared']} with a reward in both)"
    )
    if report["without_reward_before"] or report["without_reward_after"]:
        out.print(
            f"without a reward: {report['without_reward_before']} before, {report['without_reward_after']} after"
        )
    if report["unscored"] or report["skipped"]:
        out.print(f"{report['unscored']} could not be scored, {report['skipped']} were not judged at all")
    if report["written"]:
        out.print(f"stored in {report['written']}; the sessions' own results are unchanged")


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    before, after = row["before"], row["after"]
    change = f"{after - before:+.3f}" if row["changed"] and None not in (before, after) else ""
    return (row["session_id"], number(before), number(after), change, one_line(_why(row), LEFT_WORDS))


def _why(row: dict[str, Any]) -> str:
    if row["score"] is None:
        return row["skipped"]
    later = row["score"]
    failure = later["failure"]
    if failure is not None:
        return f"{failure['type']}: {failure['message']}"
    return "; ".join([*later["score"]["reasons"], *later["notes"]])
