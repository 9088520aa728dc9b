"""Checks of this machine: how `polar doctor` and `polar harness check` run and print them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import typer

from polar.cli.output import console, one_line, print_json

LABELS = {"ok": "ok  ", "noted": "note", "failed": "FAIL"}
STYLES = {"ok": None, "noted": "yellow", "failed": "red"}


class CheckOutcome(NamedTuple):
    text: str
    details: list[dict[str, str]] = []
    """One for each thing that was tried, as `about`, `probe`, `state` and `detail`."""
    ok: bool = True
    noted: bool = False
    """Something is missing that the user did not ask for."""


Check = tuple[str, Callable[[], Awaitable[str | CheckOutcome]]]
"""A name and the check itself, which returns its outcome or raises."""
Row = dict[str, Any]


async def run_checks(
    checks: Sequence[Check], show: Callable[[Row], None], *, stop_at_failure: bool = False, **fields: str
) -> list[Row]:
    """`fields` go into every row. `stop_at_failure`: later checks would fail for the same reason."""
    rows: list[Row] = []
    for name, check in checks:
        try:
            found = await check()
        except Exception as error:  # these checks are there to find broken plug-ins
            found = CheckOutcome(str(error) or type(error).__name__, ok=False)
        outcome = found if isinstance(found, CheckOutcome) else CheckOutcome(found)
        row: Row = {**fields, "check": name, "ok": outcome.ok, "found": outcome.text}
        row |= {"noted": True} if outcome.noted else {}
        rows.append(row | ({"details": outcome.details} if outcome.details else {}))
        show(rows[-1])
        if stop_at_failure and not outcome.ok:
            break
    return rows


def print_verdict(rows: Sequence[Row]) -> None:
    """One line before all others: whether sessions can run here, and what cannot be used."""
    failed = [row["check"] for row in rows if not row["ok"]]
    noted = [row["check"] for row in rows if row.get("noted")]
    out = console()
    if failed:
        out.print(f"NOT READY: {', '.join(failed)} failed; the lines marked FAIL say what to do", style="bold red")
    else:
        out.print("READY: sessions can run on this machine", style="bold green")
    if noted:
        out.print(f"not usable here, needed only by tasks that name them: {', '.join(noted)}", style="yellow")
    out.print()


def print_check(row: Row, prefix: str = "", *, every_detail: bool = True) -> None:
    """`every_detail`: also those that are well."""
    out, state = console(), "noted" if row.get("noted") else "ok" if row["ok"] else "failed"
    out.print(f"{LABELS[state]} {prefix}{row['check']}: {one_line(row['found'], 400)}", style=STYLES[state])
    for detail in row.get("details", ()):
        if detail["state"] == "ok" and not every_detail:
            continue
        text = f": {one_line(detail['detail'], 400)}" if detail["detail"] else ""
        line = f"     {detail['about']:9}{detail['state']:7}{detail['probe']}{text}"
        out.print(line, style=STYLES[detail["state"]])


def end_checks(rows: Sequence[Row], *, json: bool) -> None:
    """Exit code 1 if one failed."""
    ok = all(row["ok"] for row in rows)
    if json:
        print_json({"ok": ok, "checks": rows})
    if not ok:
        raise typer.Exit(1)
