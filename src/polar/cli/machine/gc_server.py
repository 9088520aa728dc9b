"""`polar gc --at-server`: what the server would remove, and its removal."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from polar.cli.machine.removing import ask_to_remove, megabytes
from polar.cli.options import age_s
from polar.cli.output import console, print_json, print_table
from polar.cli.service.remote import ask

if TYPE_CHECKING:
    from polar.client import PolarClient
    from polar.types import GcReport, GcRequest, StorageStatus

DAY_S = 86400.0
COUNTED = ("groups", "sessions", "blobs", "blob_bytes", "events", "orphans", "orphan_bytes")


class ServerRules(NamedTuple):
    older_than: str | None
    unfetched: bool


def collect_at_server(server: str | None, rules: ServerRules, *, dry_run: bool, yes: bool, json: bool) -> None:
    from polar.types import GcRequest

    days = None if rules.older_than is None else age_s(rules.older_than, "--older-than") / DAY_S
    wanted = GcRequest(results_days=days, unfetched=rules.unfetched)
    stored, seen = ask(server, lambda client: _look(client, wanted))
    if not json:
        _show(stored, seen)
    removed = None
    if not dry_run and any(getattr(seen, name) for name in COUNTED):
        ask_to_remove(2, yes=yes)
        removed = ask(server, lambda client: _remove(client, wanted), patient=True)
    if json:
        found = {"stored": stored.model_dump(), "found": seen.model_dump()}
        print_json(found | {"removed": None if removed is None else removed.model_dump()})
    elif removed is not None:
        freed = megabytes(removed.blob_bytes + removed.orphan_bytes)
        console().print(
            f"removed {removed.sessions} sessions and {removed.events} events, {freed} MB of uploads freed"
        )


async def _look(client: PolarClient, wanted: GcRequest) -> tuple[StorageStatus, GcReport]:
    return await client.storage(), await client.gc(wanted)


async def _remove(client: PolarClient, wanted: GcRequest) -> GcReport:
    """The server removes for a while at each request."""
    total = dict.fromkeys(COUNTED, 0)
    while True:
        part = await client.gc(wanted.model_copy(update={"dry_run": False}))
        total = {name: count + getattr(part, name) for name, count in total.items()}
        if part.complete:
            return part.model_copy(update=total)


def _show(stored: StorageStatus, seen: GcReport) -> None:
    rules = {name: value for name, value in stored.retention.items() if value is not None}
    console().print(f"{stored.blobs} uploads in {stored.place}, {megabytes(stored.blob_bytes)} MB")
    said = ", ".join(f"{name} {value:g}" for name, value in rules.items())
    console().print(f"retention of the server: {said or 'none (set server.retention in its polar.toml)'}")
    rows = [
        ("groups", str(seen.groups), ""),
        ("sessions", str(seen.sessions), ""),
        ("uploads", str(seen.blobs), megabytes(seen.blob_bytes)),
        ("events", str(seen.events), ""),
        ("uploads that no result has", str(seen.orphans), megabytes(seen.orphan_bytes)),
    ]
    print_table(["to remove", "#number", "#MB"], rows)
