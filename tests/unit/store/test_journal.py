"""The journal keeps what it acknowledged, in order, once."""

from __future__ import annotations

import asyncio
import math
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from polar.errors import PolarError
from polar.store import database
from polar.store.journal import DECODED_AT_ONCE_BYTES, Journal, JournalError, ResultRefused
from polar.types import Call, Failure, Lease, Score, SessionResult, Stage, logprobs, token_ids
from waiting import hang_limit

MakeCall = Callable[..., Call]
MakeLease = Callable[..., Lease]
MakeResult = Callable[..., SessionResult]


async def test_calls_come_back_as_they_were_appended(
    journal: Journal, make_lease: MakeLease, make_call: MakeCall
) -> None:
    await journal.add_session(make_lease())
    first, second = make_call("c1"), make_call("c2", parent_id="c1", continues=True)
    await journal.append_call(first)
    await journal.append_call(second)
    assert await journal.calls("add-0") == [first, second]


async def test_received_is_what_the_column_says(
    journal: Journal, make_lease: MakeLease, make_call: MakeCall
) -> None:
    await journal.add_session(make_lease())
    await journal.append_call(make_call("c1"))
    await journal.append_call(make_call("c2"))
    journal.mark_received("c2")
    assert [call.received for call in await journal.calls("add-0")] == [False, True]


async def test_a_deferred_mark_is_on_disk_soon(
    journal: Journal, make_lease: MakeLease, make_call: MakeCall
) -> None:
    await journal.add_session(make_lease())
    await journal.append_call(make_call("c1"))
    journal.mark_received("c1")
    async with await Journal.open(journal.path, read_only=True) as other, hang_limit():
        while not (await other.calls("add-0"))[0].received:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_locked_disk_delays_a_mark_and_does_not_lose_it(
    journal: Journal, make_lease: MakeLease, make_call: MakeCall, monkeypatch: pytest.MonkeyPatch
) -> None:
    await journal.add_session(make_lease())
    await journal.append_call(make_call("c1"))
    lock(journal, monkeypatch, times=2)
    journal.mark_received("c1")
    with pytest.raises(JournalError, match="locked"):
        await journal.append_call(make_call("c2"))
    assert [(call.call_id, call.received) for call in await journal.calls("add-0")] == [("c1", True)]


async def test_a_call_of_another_shape_is_an_error_that_says_so(
    journal: Journal, make_lease: MakeLease, make_call: MakeCall
) -> None:
    await journal.add_session(make_lease())
    await journal.append_call(make_call("c1"))
    with closing(sqlite3.connect(journal.path)) as other, other:
        other.execute("UPDATE calls SET body = ?", (b"\x81\xa1x\x01",))
    with pytest.raises(JournalError, match="another version of Polar wrote it"):
        await journal.calls("add-0")


async def test_a_mark_is_on_disk_when_the_journal_is_closed(
    tmp_path: Path, make_lease: MakeLease, make_call: MakeCall
) -> None:
    path = tmp_path / "other.db"
    async with await Journal.open(path) as journal:
        await journal.add_session(make_lease())
        await journal.append_call(make_call("c1"))
        journal.mark_received("c1")
    async with await Journal.open(path, read_only=True) as journal:
        assert [call.received for call in await journal.calls("add-0")] == [True]


async def test_an_engine_that_gave_no_logprob_stays_visible(
    journal: Journal, make_lease: MakeLease, make_call: MakeCall
) -> None:
    await journal.add_session(make_lease())
    await journal.append_call(make_call(logprobs=logprobs([-0.5, math.nan])))
    [stored] = await journal.calls("add-0")
    assert stored.logprobs[0] == -0.5
    assert math.isnan(stored.logprobs[1])


async def test_calls_of_sessions_do_not_mix(journal: Journal, make_lease: MakeLease, make_call: MakeCall) -> None:
    for session_id in ("add-0", "add-1"):
        await journal.add_session(make_lease(session_id))
        await journal.append_call(make_call(f"{session_id}-call", session_id))
    assert [call.call_id for call in await journal.calls("add-1")] == ["add-1-call"]
    assert await journal.calls("nobody") == []


async def test_many_appends_at_once_are_all_kept_in_order(
    journal: Journal, make_lease: MakeLease, make_call: MakeCall
) -> None:
    await journal.add_session(make_lease())
    names = [f"c{number:03}" for number in range(200)]
    await asyncio.gather(*(journal.append_call(make_call(name)) for name in names))
    assert [call.call_id for call in await journal.calls("add-0")] == names


async def test_a_bad_write_does_not_take_its_neighbours_with_it(
    journal: Journal, make_lease: MakeLease, make_call: MakeCall
) -> None:
    await journal.add_session(make_lease())
    calls = [make_call("c1"), make_call("c1"), make_call("c2", "nobody"), make_call("c3")]
    outcomes = await asyncio.gather(*(journal.append_call(call) for call in calls), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None), JournalError, JournalError, type(None)]
    assert [call.call_id for call in await journal.calls("add-0")] == ["c1", "c3"]


async def test_an_append_whose_caller_is_cancelled_is_kept(
    journal: Journal, make_lease: MakeLease, make_call: MakeCall
) -> None:
    await journal.add_session(make_lease())
    appending = asyncio.ensure_future(journal.append_call(make_call("c1")))
    await asyncio.sleep(0)
    appending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await appending
    assert [call.call_id for call in await journal.calls("add-0")] == ["c1"]


async def test_stages_are_kept_in_the_order_in_which_they_were_recorded(
    journal: Journal, make_lease: MakeLease
) -> None:
    await journal.add_session(make_lease())
    journal.stage_changed("add-0", Stage.INIT, 1.0)
    journal.stage_changed("add-0", Stage.READY, 2.0)
    await journal.record_stage("add-0", Stage.RUNNING, 3.0)
    assert await journal.stages("add-0") == [(Stage.INIT, 1.0), (Stage.READY, 2.0), (Stage.RUNNING, 3.0)]
    assert (await journal.lease("add-0")).session.stage is Stage.RUNNING


async def test_a_deferred_stage_is_on_disk_after_close(tmp_path: Path, make_lease: MakeLease) -> None:
    journal = await Journal.open(tmp_path / "journal.db")
    await journal.add_session(make_lease())
    journal.stage_changed("add-0", Stage.INIT, 1.0)
    await journal.close()
    async with await Journal.open(tmp_path / "journal.db") as again:
        assert await again.stages("add-0") == [(Stage.INIT, 1.0)]


async def test_stages_cost_no_transaction_of_their_own(
    journal: Journal, make_lease: MakeLease, make_result: MakeResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = count_transactions(journal, monkeypatch)
    await journal.add_sessions([make_lease(f"add-{number}") for number in range(3)])
    for stage in (Stage.INIT, Stage.READY, Stage.RUNNING, Stage.POSTRUN, Stage.COMPLETED):
        journal.stage_changed("add-0", stage, 1.0)
    await journal.save_result(make_result())
    assert len(begun) == 2
    assert len(await journal.stages("add-0")) == 5


def count_transactions(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    kept = journal._writer._database  # pyright: ignore[reportPrivateUsage]
    begin, begun = kept.begin, list[Any]()

    def counted(connection: Any) -> None:
        begun.append(connection)
        begin(connection)

    monkeypatch.setattr(kept, "begin", counted)
    return begun


async def test_sessions_that_come_together_are_taken_in_together_or_not_at_all(
    journal: Journal, make_lease: MakeLease
) -> None:
    await journal.add_session(make_lease("known"))
    with pytest.raises(JournalError, match="already in the journal"):
        await journal.add_sessions([make_lease("new"), make_lease("known")])
    assert await journal.session_ids() == ["known"]


async def test_a_stage_that_waited_for_the_disk_does_not_replace_the_results(
    journal: Journal, make_lease: MakeLease, make_result: MakeResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    await journal.add_session(make_lease())
    lock(journal, monkeypatch, times=1)
    journal.stage_changed("add-0", Stage.RUNNING, 1.0)
    await journal.save_result(make_result(stage=Stage.COMPLETED))
    assert await journal.stages("add-0") == [(Stage.RUNNING, 1.0)]
    assert (await journal.lease("add-0")).session.stage is Stage.COMPLETED


def lock(journal: Journal, monkeypatch: pytest.MonkeyPatch, *, times: int) -> None:
    """The disk is locked for the next transactions."""
    kept = journal._writer._database  # pyright: ignore[reportPrivateUsage]
    begin, locked = kept.begin, [True] * times

    def begin_unless_locked(connection: Any) -> None:
        if locked:
            locked.pop()
            raise sqlite3.OperationalError("database is locked")
        begin(connection)

    monkeypatch.setattr(kept, "begin", begin_unless_locked)


async def test_writes_keep_their_order_whether_somebody_waits_or_not(
    journal: Journal, make_lease: MakeLease, make_call: MakeCall
) -> None:
    await journal.add_session(make_lease())
    writer_is_free = threading.Event()
    busy = asyncio.ensure_future(journal._writer.read(lambda connection: writer_is_free.wait()))
    await asyncio.sleep(0)
    appending = asyncio.ensure_future(journal.append_call(make_call("c1")))
    await asyncio.sleep(0)
    journal.mark_received("c1")
    writer_is_free.set()
    await asyncio.gather(busy, appending)
    assert [call.received for call in await journal.calls("add-0")] == [True]


async def test_calls_of_any_size_come_back(journal: Journal, make_lease: MakeLease, make_call: MakeCall) -> None:
    await journal.add_session(make_lease())
    long = make_call("c1", new_prompt_ids=token_ids(range(DECODED_AT_ONCE_BYTES)))
    await journal.append_call(long)
    assert await journal.calls("add-0") == [long]


async def test_a_result_is_taken_exactly_once(
    journal: Journal, make_lease: MakeLease, make_result: MakeResult
) -> None:
    await journal.add_session(make_lease())
    await journal.save_result(make_result(score=Score(reward=1.0)))
    with pytest.raises(ResultRefused, match="attempt 1 already has its result"):
        await journal.save_result(make_result(score=Score(reward=0.0)))
    assert [result.score for result in await journal.results()] == [Score(reward=1.0)]


async def test_two_results_at_once_are_one_result(
    journal: Journal, make_lease: MakeLease, make_result: MakeResult
) -> None:
    await journal.add_session(make_lease())
    saves = (journal.save_result(make_result(score=Score(reward=float(n)))) for n in range(5))
    outcomes = await asyncio.gather(*saves, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None)] + [ResultRefused] * 4
    assert (await journal.results())[0].score == Score(reward=0.0)


async def test_a_result_of_an_older_attempt_is_refused(
    journal: Journal, make_lease: MakeLease, make_result: MakeResult
) -> None:
    await journal.add_session(make_lease(attempt=1))
    await journal.add_session(make_lease(attempt=2))
    with pytest.raises(ResultRefused, match="not the newest, which is 2"):
        await journal.save_result(make_result(attempt=1))
    await journal.save_result(make_result(attempt=2))


async def test_a_later_attempt_does_not_see_the_calls_and_stages_of_the_earlier(
    journal: Journal, make_lease: MakeLease, make_call: MakeCall, make_result: MakeResult
) -> None:
    await journal.add_session(make_lease(attempt=1))
    await journal.append_call(make_call("lost"))
    await journal.record_stage("add-0", Stage.INIT, 1.0)
    await journal.save_result(make_result(attempt=1, stage=Stage.FAILED))
    await journal.add_session(make_lease(attempt=2))
    await journal.append_call(make_call("kept"))
    assert [call.call_id for call in await journal.calls("add-0")] == ["kept"]
    assert await journal.stages("add-0") == []
    assert await journal.result("add-0") is None
    assert [(row.calls, row.lease.session.attempt) for row in await journal.sessions()] == [(1, 2)]


async def test_a_result_keeps_every_value_even_a_metric_that_is_no_number(
    journal: Journal, make_lease: MakeLease, make_result: MakeResult
) -> None:
    await journal.add_session(make_lease())
    failure = Failure(where="evaluator", type="ValueError", message="snowman ☃ and \x00")
    result = make_result(
        score=Score(reward=None, metrics={"loss": math.inf}, reasons=("broken",)),
        failure=failure,
        stage_s={"RUNNING": 1.5},
    )
    await journal.save_result(result)
    stored = await journal.result("add-0")
    assert stored is not None
    assert stored.failure == failure
    assert stored.score is not None
    assert stored.score.reward is None
    assert stored.score.metrics == {"loss": math.inf}


async def test_sessions_are_listed_with_their_stage_and_calls(
    journal: Journal, make_lease: MakeLease, make_call: MakeCall, make_result: MakeResult
) -> None:
    for session_id in ("b", "a"):
        await journal.add_session(make_lease(session_id))
    await journal.append_call(make_call("c1", "b"))
    await journal.append_call(make_call("c2", "b"))
    await journal.save_result(make_result("b", stage=Stage.TIMED_OUT))
    rows = await journal.sessions()
    assert [(row.lease.session.session_id, row.lease.session.stage) for row in rows] == [
        ("b", Stage.TIMED_OUT),
        ("a", Stage.QUEUED),
    ]
    assert [(row.calls, row.sampled_tokens) for row in rows] == [(2, 4), (0, 0)]
    assert await journal.session_ids() == ["b", "a"]


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda j, call, lease, result: j.append_call(call("c1", "nobody")), "no session 'nobody'"),
        (lambda j, call, lease, result: j.record_stage("nobody", Stage.INIT, 0.0), "no session 'nobody'"),
        (lambda j, call, lease, result: j.save_result(result("nobody")), "no session 'nobody'"),
        (lambda j, call, lease, result: j.add_session(lease()), "attempt 1 is already in the journal"),
        (lambda j, call, lease, result: j.lease("nobody"), "no session 'nobody'"),
    ],
)
async def test_nonsense_is_refused_by_name(
    journal: Journal,
    make_call: MakeCall,
    make_lease: MakeLease,
    make_result: MakeResult,
    write: Callable[..., asyncio.Future[None]],
    message: str,
) -> None:
    await journal.add_session(make_lease())
    with pytest.raises(JournalError, match=message):
        await write(journal, make_call, make_lease, make_result)


async def test_a_reader_sees_a_live_journal_without_disturbing_it(
    tmp_path: Path, make_lease: MakeLease, make_call: MakeCall
) -> None:
    path = tmp_path / "a run?#%.db"
    async with await Journal.open(path) as live:
        await live.add_session(make_lease())
        await live.append_call(make_call("c1"))
        async with await Journal.open(path, read_only=True) as reader:
            assert len(await reader.calls("add-0")) == 1
            await live.append_call(make_call("c2"))
            assert len(await reader.calls("add-0")) == 2
            with pytest.raises(JournalError, match="readonly"):
                await reader.append_call(make_call("c3"))
    async with await Journal.open(path, read_only=True) as reader:
        assert len(await reader.calls("add-0")) == 2


async def test_a_journal_of_a_newer_polar_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    await (await Journal.open(path)).close()
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("PRAGMA user_version = 99")
    raw.close()
    with pytest.raises(PolarError, match=r"newer Polar .* upgrade"):
        await Journal.open(path)


async def test_what_is_no_journal_is_refused_and_left_alone(tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.db"
    garbage.write_bytes(b"not a database at all" * 100)
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as raw, raw:
        raw.execute("CREATE TABLE theirs (a)")
    raw.close()
    for path in (garbage, other, tmp_path / "no" / "folder.db"):
        with pytest.raises(JournalError, match=path.name):
            await Journal.open(path)
    for path in (other, tmp_path / "missing.db"):
        with pytest.raises(JournalError, match="journal"):
            await Journal.open(path, read_only=True)
    assert garbage.read_bytes() == b"not a database at all" * 100


async def test_a_full_disk_is_an_error_that_says_so(
    journal: Journal, make_lease: MakeLease, make_call: MakeCall
) -> None:
    await journal.add_session(make_lease())
    pages = await journal._writer.read(lambda c: c.execute("PRAGMA page_count").fetchone()[0])
    await journal._writer.read(lambda c: c.execute(f"PRAGMA max_page_count = {pages + 1}").fetchall())
    with pytest.raises(JournalError, match="full"):
        await asyncio.gather(*(journal.append_call(make_call(f"c{n}")) for n in range(100)))
    await journal._writer.read(lambda c: c.execute("PRAGMA max_page_count = 100000").fetchall())
    await journal.append_call(make_call("after"))
    assert (await journal.calls("add-0"))[-1].call_id == "after"


async def test_a_locked_disk_is_an_error_and_does_not_hold_the_loop_up(
    tmp_path: Path, make_lease: MakeLease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.5)
    async with await Journal.open(tmp_path / "journal.db") as journal:
        other = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        adding = asyncio.ensure_future(journal.add_session(make_lease()))
        turns = 0
        while not adding.done():
            turns += 1
            await asyncio.sleep(0.001)
        assert turns > 2, "the loop goes on while the writer waits"
        with pytest.raises(JournalError, match="locked"):
            await adding
        other.execute("ROLLBACK")
        other.close()
        await journal.add_session(make_lease())


async def test_a_closed_journal_refuses_and_closes_twice(tmp_path: Path, make_lease: MakeLease) -> None:
    journal = await Journal.open(tmp_path / "journal.db")
    await journal.close()
    await journal.close()
    with pytest.raises(JournalError, match="closed"):
        await journal.add_session(make_lease())
    with pytest.raises(JournalError, match="closed"):
        await journal.results()
