"""`polar health`: whether the data of a run can be relied on, by harness."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from polar.cli.options import JsonOption
from polar.cli.output import console, counted, one_line, print_json, print_table

if TYPE_CHECKING:
    from polar.runs.health import HarnessHealth, SessionHealth

EXIT_BROKEN = 1
LEFT_WORDS = 100


def health(
    ctx: typer.Context,
    run: Annotated[str | None, typer.Argument(help="A run's id, or the beginning of it; else the latest.")] = None,
    sessions: Annotated[bool, typer.Option("--sessions", help="List every session that is not ok.")] = False,
    json: JsonOption = False,
) -> None:
    """Show whether the data of a run can be relied on, by harness.

    It says nothing about rewards: exact capture, agreement with the harness's own
    log, refused calls, failing tools, loops, cut replies. Exit code 1 if a
    session is broken.
    """
    from polar.runs.health import health_of_run
    from polar.runs.stored import load_run

    stored = load_run(run, runs_dir=ctx.obj)
    found = health_of_run(stored)
    report: dict[str, Any] = {"run_id": stored.run_id, "harnesses": [_row(each) for each in found]}
    print_json(report) if json else _print(stored.run_id, found, sessions=sessions)
    if any(each.verdicts()["broken"] for each in found):
        raise typer.Exit(EXIT_BROKEN)


def _row(each: HarnessHealth) -> dict[str, Any]:
    return {
        "harness": each.harness,
        "trust": each.trust,
        "sessions": len(each.sessions),
        "verdicts": each.verdicts(),
        "compared": each.compared,
        "problems": each.counts(),
        "by_session": [_session(session) for session in each.sessions],
    }


def _session(each: SessionHealth) -> dict[str, Any]:
    return {
        "session_id": each.session_id,
        "examined_now": each.examined_now,
        **each.health.model_dump(mode="json"),
    }


def _print(run_id: str, found: list[HarnessHealth], *, sessions: bool) -> None:
    out = console()
    out.print(f"run {run_id}\n")
    if not found:
        out.print("no session has ended with a call")
        return
    columns = ["harness", "trust", "#sessions", "#ok", "#suspect", "#broken", "#own log agrees", "problems"]
    print_table(columns, [_cells(each) for each in found])
    unwell = [session for each in found for session in each.sessions if session.health.findings]
    if sessions and unwell:
        out.print()
        print_table(["session", "verdict", "findings"], [_session_cells(session) for session in unwell])


def _cells(each: HarnessHealth) -> tuple[str, ...]:
    verdicts = each.verdicts()
    agreeing = sum(
        health.own_calls is not None and not health.has("not_captured", "not_in_own_log", "reply_shared")
        for health in each.with_calls
    )
    counts = (str(verdicts[name]) for name in ("ok", "suspect", "broken"))
    problems = counted(each.counts()) or "none"
    return (each.harness, each.trust, str(len(each.sessions)), *counts, str(agreeing), problems)


def _session_cells(each: SessionHealth) -> tuple[str, ...]:
    told = "; ".join(f"{finding.what} {finding.count}: {finding.detail}" for finding in each.health.findings)
    return (each.session_id, each.health.verdict, one_line(told, LEFT_WORDS))
