"""Whatever is changed in a stored run, field by field, `polar audit` notices; what it cannot notice is listed here
and in docs/audit.md."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from typer.testing import Result

from polar.audit.records import run_findings
from polar.audit.run import audit_session
from polar.store.journal import Journal
from polar.store.paths import RunPaths
from polar.types import Finding

Path = tuple[str | int, ...]
Polar = Callable[..., Result]

DERIVED_FIELDS = {"trainable", "untrainable_reason"}
"""Of a result: computed whenever one is read, so what stands in the file has no effect."""
UNNOTICED_IN_LEASE = {"session.node_id"}
"""The node that ran a session stands nowhere else."""
UNNOTICED_COLUMNS = {
    "calls.call_id",
    "calls.parent_id",
    "calls.kind",
    "calls.prompt_tokens",
    "calls.sampled_tokens",
}
"""Copies of what the body of a call says, which is compared."""


def audited(run: RunPaths) -> list[Finding]:
    async def audit() -> list[Finding]:
        async with await Journal.open(run.journal, read_only=True) as journal:
            return await audit_with(journal, run)

    return asyncio.run(audit())


async def audit_with(journal: Journal, run: RunPaths) -> list[Finding]:
    found = await run_findings(journal, run, run.read_record())
    for session_id in await journal.session_ids():
        found += (await audit_session(journal, run, session_id)).findings
    return found


def execute(run: RunPaths, statement: str, *values: Any) -> list[Any]:
    """By hand, as somebody with an editor for databases would."""
    connection = sqlite3.connect(run.journal)
    with connection:
        rows = connection.execute(statement, values).fetchall()
    connection.close()
    return rows


def leaves(value: Any, path: Path = ()) -> Iterator[Path]:
    """Where each value stands that is no list or map; an empty one counts too."""
    if isinstance(value, dict) and value:
        for key, each in value.items():  # pyright: ignore[reportUnknownVariableType]
            yield from leaves(each, (*path, key))  # pyright: ignore[reportUnknownArgumentType]
    elif isinstance(value, list) and value:
        for index, each in enumerate(value):  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
            yield from leaves(each, (*path, index))
    else:
        yield path


def other(value: Any) -> Any:
    """Something else of the same kind, as far as there is one."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return f"{value}x"
        case bytes():
            return value + b"x"
        case msgspec.msgpack.Ext():
            data = bytes(value.data)
            return msgspec.msgpack.Ext(value.code, bytes([data[0] ^ 1, *data[1:]]))
        case list():
            return ["x"]
        case dict():
            return {"x": 1}
        case _:
            return "x"


def changed(value: Any, path: Path) -> Any:
    if not path:
        return other(value)
    copy: Any = dict(value) if isinstance(value, dict) else list(value)  # pyright: ignore
    copy[path[0]] = changed(value[path[0]], path[1:])
    return copy


def unnoticed(run: RunPaths, whole: Any, write: Callable[[Any], None]) -> set[str]:
    """What no audit saw, of all values changed one after the other. At the end the run is as it was."""

    async def change_all() -> set[str]:
        async with await Journal.open(run.journal, read_only=True) as journal:
            missed: set[str] = set()
            for path in leaves(whole):
                write(changed(whole, path))
                if not await audit_with(journal, run):
                    missed.add(".".join(map(str, path)))
            write(whole)
            assert await audit_with(journal, run) == []
            return missed

    return asyncio.run(change_all())


def test_every_field_of_a_result(run: RunPaths) -> None:
    for session_id in ("add-0", "add-1"):
        [(body,)] = execute(run, "select body from results where session_id = ?", session_id)

        def write(whole: Any, session_id: str = session_id) -> None:
            execute(run, "update results set body = ? where session_id = ?", json.dumps(whole), session_id)

        assert unnoticed(run, json.loads(body), write) == DERIVED_FIELDS


def test_every_field_of_the_traces(run: RunPaths) -> None:
    path = run.session("add-0").traces

    def write(whole: Any) -> None:
        path.write_bytes(msgspec.msgpack.encode(whole))

    assert unnoticed(run, msgspec.msgpack.decode(path.read_bytes()), write) == set()


def test_every_field_of_every_call(run: RunPaths) -> None:
    for call_id, body in execute(run, "select call_id, body from calls"):

        def write(whole: Any, call_id: str = call_id) -> None:
            blob = msgspec.msgpack.encode(whole)
            execute(run, "update calls set body = ? where call_id = ?", blob, call_id)

        # The column overrides what the body says of it.
        assert unnoticed(run, msgspec.msgpack.decode(body), write) <= {"received"}


def test_every_field_of_a_lease(run: RunPaths) -> None:
    [(body,)] = execute(run, "select lease from sessions where session_id = 'add-0'")

    def write(whole: Any) -> None:
        execute(run, "update sessions set lease = ? where session_id = 'add-0'", json.dumps(whole))

    assert unnoticed(run, json.loads(body), write) == UNNOTICED_IN_LEASE


COLUMNS = {
    "sessions.attempt": "update sessions set attempt = 2 where session_id = 'add-0'",
    "sessions.stage": "update sessions set stage = 'FAILED' where session_id = 'add-0'",
    "sessions.stage of one without traces": "update sessions set stage = 'COMPLETED' where session_id = 'add-1'",
    "results.attempt": "update results set attempt = 2 where session_id = 'add-0'",
    "results.session_id": "update results set session_id = 'add-9' where session_id = 'add-1'",
    "calls.attempt": "update calls set attempt = 2 where call_id = 'add-0.1.2'",
    "calls.sequence": "update calls set sequence = 9 where call_id = 'add-0.1.1'",
    "calls.received": "update calls set received = 1 where call_id = 'add-0.1.3'",
    "calls.session_id": "update calls set session_id = 'add-1' where call_id = 'add-0.1.3'",
    "calls.call_id": "update calls set call_id = 'add-0.1.7' where call_id = 'add-0.1.3'",
    "calls.parent_id": "update calls set parent_id = 'add-0.1.1' where call_id = 'add-0.1.3'",
    "calls.kind": "update calls set kind = 'auxiliary'",
    "calls.prompt_tokens": "update calls set prompt_tokens = 1",
    "calls.sampled_tokens": "update calls set sampled_tokens = 99",
}


def test_every_column_of_the_journal(a_run: Callable[[str], RunPaths]) -> None:
    missed: set[str] = set()
    for number, (name, statement) in enumerate(COLUMNS.items()):
        run = a_run(f"run-{number}")
        execute(run, statement)
        if not audited(run):
            missed.add(name)
    assert missed == UNNOTICED_COLUMNS


def without(statement: str) -> Callable[[RunPaths], object]:
    return lambda run: execute(run, statement)


def drop_key(name: str, value: Any) -> Callable[[RunPaths], object]:
    def drop(run: RunPaths) -> None:
        [(body,)] = execute(run, "select body from results where session_id = 'add-0'")
        execute(
            run,
            "update results set body = ? where session_id = 'add-0'",
            json.dumps(json.loads(body) | {name: value}),
        )

    return drop


LOSSES: list[tuple[str, Callable[[RunPaths], object], str]] = [
    ("result", without("delete from results where session_id = 'add-0'"), "result_missing"),
    ("result without traces", without("delete from results where session_id = 'add-1'"), "result_missing"),
    ("certificate", drop_key("certificate", None), "certificate_missing"),
    ("seal", drop_key("seal", ""), "result_differs"),
    ("one call", without("delete from calls where call_id = 'add-0.1.3'"), "certificate_differs"),
    ("all calls", without("delete from calls"), "certificate_differs"),
    ("session's row", without("delete from sessions where session_id = 'add-0'"), "session_missing"),
    ("traces", lambda run: run.session("add-0").traces.unlink(), "traces_missing"),
    ("session's folder", lambda run: shutil.rmtree(run.session("add-0").root), "traces_missing"),
    ("a folder more", lambda run: run.session("add-7").create(), "session_missing"),
]


@pytest.mark.parametrize(("lose", "what"), [loss[1:] for loss in LOSSES], ids=[loss[0] for loss in LOSSES])
def test_what_is_missing_is_missed(run: RunPaths, lose: Callable[[RunPaths], object], what: str) -> None:
    assert audited(run) == []
    lose(run)
    assert what in {finding.what for finding in audited(run)}


def test_a_session_of_which_nothing_is_left_is_missed_by_its_number(run: RunPaths, polar: Polar) -> None:
    for table in ("stages", "calls", "results", "sessions"):
        execute(run, f"delete from {table} where session_id = 'add-0'")
    shutil.rmtree(run.session("add-0").root)
    assert ["2 sessions by run.json"] == [finding.expected for finding in audited(run)]
    report = polar("audit")
    assert report.exit_code == 1 and "journal: session_missing" in report.stdout


class TestARunOfAnOlderPolar:
    """As the version before wrote it: no seals, labels, digests of records, no group on a result."""

    @pytest.fixture
    def older(self, run: RunPaths) -> RunPaths:
        for session_id in ("add-0", "add-1"):
            [(body,)] = execute(run, "select body from results where session_id = ?", session_id)
            result = json.loads(body)
            for name in ("group_id", "seal", *DERIVED_FIELDS):
                del result[name]
            del result["statistics"]["cut_tokens"]
            if result["certificate"]:
                del result["certificate"]["records_digest"]
            execute(run, "update results set body = ? where session_id = ?", json.dumps(result), session_id)
        path = run.session("add-0").traces
        trajectory = msgspec.msgpack.decode(path.read_bytes())
        del trajectory["statistics"]["cut_tokens"]
        for trace in trajectory["traces"]:
            for name in ("task_id", "group_id", "sample", "attempt", "failure"):
                del trace[name]
        path.write_bytes(msgspec.msgpack.encode(trajectory))
        record = json.loads(run.record.read_bytes())
        del record["sessions"]
        run.record.write_text(json.dumps(record))
        return run

    def test_it_opens_and_is_proven_as_far_as_it_can_be(self, older: RunPaths, polar: Polar) -> None:
        report = polar("audit")
        assert report.exit_code == 0, report.output
        assert "made by an older Polar" in report.stdout
        listed = json.loads(polar("ls", older.run_id, "--json").stdout)["sessions"]
        assert [row["untrainable_reason"] for row in listed] == ["", "infrastructure"]
        shown = json.loads(polar("show", "add-0", "--json").stdout)
        assert (shown["result"]["group_id"], shown["result"]["trainable"]) == ("add", True)

    def test_what_its_certificate_covers_is_still_noticed(self, older: RunPaths) -> None:
        execute(older, "delete from calls where call_id = 'add-0.1.3'")
        assert "certificate_differs" in {finding.what for finding in audited(older)}

    def test_a_reward_that_was_given_although_infrastructure_failed_is_in_no_mean(
        self, older: RunPaths, polar: Polar
    ) -> None:
        [(body,)] = execute(older, "select body from results where session_id = 'add-1'")
        result = json.loads(body) | {"score": {"reward": 0.0}}
        execute(older, "update results set body = ? where session_id = 'add-1'", json.dumps(result))
        [row] = json.loads(polar("ls", "--json").stdout)["runs"]
        assert (row["mean_reward"], row["left_out_of_mean"]) == (1.0, {"infrastructure": 1})
