"""The server as a source of sessions, against a server that misbehaves on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from fake_rollout_server import TOKEN, FakeRolloutServer, a_lease

from node_abilities import able
from polar.errors import ConfigError
from polar.node import server_source
from polar.node.server_source import Controls, ServerSource
from polar.node.uplink import Uplink
from polar.types import (
    Call,
    Failure,
    HandBack,
    Policy,
    Registration,
    SessionResult,
    Stage,
    Trajectory,
)
from waiting import HANG_S, hang_limit, until


class Bench:
    """A source at its server, with a node that only takes notes."""

    def __init__(self, server: FakeRolloutServer, uplink: Uplink) -> None:
        self.server = server
        self.source = ServerSource(uplink, Registration(name="here:1", slots=4, abilities=able()), give_up_s=0.3)
        self.cancelled: list[str] = []
        self.reasons: list[str] = []
        self.policies: list[Policy] = []
        self.generating = 0
        controls = Controls(self._cancel, self.policies.append, lambda: self.generating, self._calls)
        self.source.attach(controls)
        self.beating = asyncio.create_task(self.source.beat())

    def _cancel(self, session_id: str, why: str) -> bool:
        self.cancelled.append(session_id)
        self.reasons.append(why)
        return True

    async def _calls(self, _: str) -> list[Call]:
        return []

    async def report(
        self,
        session_id: str,
        stage: Stage = Stage.COMPLETED,
        attempt: int = 1,
        failure: Failure | None = None,
    ) -> None:
        result = SessionResult(
            session_id=session_id, task_id="t", index=0, attempt=attempt, stage=stage, failure=failure
        )
        trajectory = Trajectory(session_id=session_id, traces=(), builder="b")
        async with hang_limit():
            await self.source.report(result, trajectory)

    def beaten(self) -> list[tuple[str, int, Stage]]:
        return [(s.session_id, s.attempt, s.stage) for s in self.server.beats[-1].sessions]


@pytest.fixture
async def server() -> AsyncIterator[FakeRolloutServer]:
    fake = FakeRolloutServer()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def bench(server: FakeRolloutServer) -> AsyncIterator[Bench]:
    async with Uplink(server.base_url, TOKEN) as uplink:
        made = Bench(server, uplink)
        yield made
        made.beating.cancel()
        await asyncio.gather(made.beating, return_exceptions=True)


async def leased(bench: Bench, *session_ids: str, room: int = 8) -> None:
    bench.server.queue += [a_lease(session_id) for session_id in session_ids]
    async with hang_limit():
        leases = await bench.source.lease(room)
    assert [lease.session.session_id for lease in leases] == list(session_ids)


async def test_it_registers_once_and_asks_for_as_much_as_there_is_room(bench: Bench) -> None:
    await leased(bench, "a", "b", room=7)
    await leased(bench, "c", room=5)
    assert [(r.name, r.slots) for r in bench.server.registrations] == [("here:1", 4)]
    assert [request.room for request in bench.server.requests] == [7, 5]


async def test_a_wrong_token_is_an_error_and_not_retried(server: FakeRolloutServer) -> None:
    async with Uplink(server.base_url, "wrong") as uplink:
        bench = Bench(server, uplink)
        with pytest.raises(ConfigError, match="refuses this node's token"):
            await bench.source.lease(1)
        bench.beating.cancel()


async def test_heartbeats_tell_the_stage_of_each_session_but_never_a_final_one(bench: Bench) -> None:
    await leased(bench, "a", "b")
    bench.source.stage_changed("a", Stage.RUNNING, 0.0)
    bench.source.stage_changed("b", Stage.POSTRUN, 0.0)
    bench.source.stage_changed("b", Stage.COMPLETED, 0.0)
    bench.source.stage_changed("stranger", Stage.RUNNING, 0.0)
    bench.server.beats.clear()
    await until(lambda: bench.server.beats)
    assert bench.beaten() == [("a", 1, Stage.RUNNING), ("b", 1, Stage.POSTRUN)]


async def test_a_result_is_uploaded_and_the_session_let_go(bench: Bench) -> None:
    await leased(bench, "a")
    await bench.report("a")
    ((session_id, attempt, upload),) = bench.server.uploads
    assert (session_id, attempt) == ("a", 1)
    assert SessionResult.model_validate_json(upload.result).stage is Stage.COMPLETED
    assert upload.trajectory and upload.trajectory.session_id == "a"
    bench.server.beats.clear()
    await until(lambda: bench.server.beats and bench.beaten() == [])  # one may have been on its way


async def test_the_policy_comes_with_leases_and_heartbeats(bench: Bench) -> None:
    bench.server.policy = first = Policy(version="1", updates=1, revision=1)
    await leased(bench, "a")
    assert bench.policies == [first]
    bench.server.policy = second = Policy(version="2", paused=True, updates=2, revision=2)
    await until(lambda: bench.policies == [first, second])


async def test_heartbeats_tell_what_is_generated_and_which_policy_is_followed(bench: Bench) -> None:
    bench.server.policy = Policy(paused=True, revision=3)
    bench.generating = 2
    await leased(bench, "a")
    await until(lambda: bench.server.beats and bench.server.beats[-1].revision == 3)
    assert bench.server.beats[-1].generating == 2
    bench.generating = 0
    await until(lambda: bench.server.beats[-1].generating == 0)


async def test_a_policy_that_comes_late_takes_nothing_back(bench: Bench) -> None:
    bench.server.policy = newest = Policy(version="2", paused=True, updates=2, revision=2)
    await leased(bench, "a")
    bench.server.policy = Policy(version="1", updates=1, revision=1)
    await leased(bench, "b")
    bench.server.beats.clear()
    await until(lambda: len(bench.server.beats) > 2)
    assert bench.policies == [newest] and bench.server.beats[-1].revision == 2


async def test_a_server_that_counts_anew_is_followed_once_the_node_is_registered_again(bench: Bench) -> None:
    bench.server.policy = Policy(version="9", updates=9, revision=9)
    await leased(bench, "a")
    bench.server.forgotten, bench.server.policy = True, Policy(version="1", updates=1, revision=1)
    async with hang_limit():
        leasing = asyncio.create_task(bench.source.lease(1))
        await until(lambda: len(bench.server.registrations) == 2)
        bench.server.queue.append(a_lease("b"))
        await leasing
    assert bench.policies[-1].version == "1"


class TestTheServerIsAway:
    async def test_a_lease_waits_for_it(self, bench: Bench) -> None:
        bench.server.down = True
        leasing = asyncio.create_task(bench.source.lease(1))
        await asyncio.sleep(0.1)
        assert not leasing.done()
        bench.server.queue.append(a_lease("a"))
        bench.server.down = False
        async with hang_limit():
            assert len(await leasing) == 1

    async def test_a_result_is_kept_until_it_is_back_and_its_lease_renewed(self, bench: Bench) -> None:
        await leased(bench, "a")
        bench.server.down = True
        reporting = asyncio.create_task(bench.report("a"))
        await asyncio.sleep(0.1)
        assert not reporting.done()
        bench.server.beats.clear()
        bench.server.down = False
        await reporting
        assert [upload[0] for upload in bench.server.uploads] == ["a"]
        assert bench.cancelled == []

    async def test_results_that_pile_up_stop_the_leasing(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(server_source, "MAX_UNSENT", 2)
        await leased(bench, "a", "b", "c")
        bench.server.refuse_uploads = lambda _: 500
        reports = [asyncio.create_task(bench.report(name)) for name in "ab"]
        await until(lambda: bench.server.attempted_uploads >= 2)
        bench.server.queue.append(a_lease("d"))
        leasing = asyncio.create_task(bench.source.lease(1))
        await asyncio.sleep(0.1)
        assert not leasing.done() and len(bench.server.requests) == 1
        bench.server.refuse_uploads = lambda _: 204
        await asyncio.gather(*reports)
        assert len(await leasing) == 1

    async def test_a_server_that_never_was_there_does_not_keep_a_node_from_stopping(self) -> None:
        async with Uplink("http://127.0.0.1:9", TOKEN) as uplink:
            bench = Bench(FakeRolloutServer(), uplink)
            leasing = asyncio.create_task(bench.source.lease(1))
            await asyncio.sleep(0.05)
            bench.source.stop()
            async with hang_limit():
                assert await leasing == []
                await bench.source.leave()
            bench.beating.cancel()


class TestRefusals:
    async def test_an_old_attempt_is_dropped(self, bench: Bench) -> None:
        await leased(bench, "a")
        bench.server.refuse_uploads = lambda _: 409
        await bench.report("a")
        assert bench.server.attempted_uploads == 1

    @pytest.mark.parametrize("status", [400, 413, 422])
    async def test_what_can_never_be_taken_becomes_a_failed_result(self, bench: Bench, status: int) -> None:
        await leased(bench, "a")
        bench.server.refuse_uploads = lambda _: status if bench.server.attempted_uploads == 1 else 204
        await bench.report("a")
        ((_, _, upload),) = bench.server.uploads
        result = SessionResult.model_validate_json(upload.result)
        assert (result.stage, upload.trajectory, upload.calls) == (Stage.FAILED, None, ())
        assert result.failure and result.failure.where == "upload" and str(status) in result.failure.message

    async def test_a_server_that_takes_nothing_at_all_does_not_hold_the_node(self, bench: Bench) -> None:
        await leased(bench, "a")
        bench.server.refuse_uploads = lambda _: 422
        await bench.report("a")
        assert bench.server.attempted_uploads == 2


class TestLostAndCancelled:
    async def test_a_lost_session_is_broken_off_and_not_reported(self, bench: Bench) -> None:
        await leased(bench, "a")
        bench.server.lost = ["a"]
        await until(lambda: bench.cancelled == ["a"])
        await bench.report("a", Stage.CANCELLED)
        assert bench.server.attempted_uploads == 0
        assert bench.cancelled == ["a"], "it is broken off once"

    async def test_a_cancelled_session_is_broken_off_and_reported(self, bench: Bench) -> None:
        await leased(bench, "a")
        bench.server.cancel = ["a"]
        await until(lambda: bench.cancelled == ["a"])
        await bench.report("a", Stage.CANCELLED)
        assert [upload[0] for upload in bench.server.uploads] == ["a"]

    async def test_the_next_attempt_waits_until_the_lost_one_has_ended_here(self, bench: Bench) -> None:
        await leased(bench, "a")
        bench.server.lost = ["a"]
        await until(lambda: bench.cancelled == ["a"])
        bench.server.lost = []
        bench.server.queue = [a_lease("a", attempt=2), a_lease("b")]
        assert [lease.session.session_id for lease in await bench.source.lease(8)] == ["b"]
        bench.server.beats.clear()
        held = [("b", 1, Stage.QUEUED), ("a", 2, Stage.QUEUED)]
        await until(lambda: bench.server.beats and bench.beaten() == held)  # one may have been on its way
        leasing = asyncio.create_task(bench.source.lease(8))
        await asyncio.sleep(0.05)
        assert not leasing.done()
        await bench.report("a", Stage.CANCELLED)
        async with hang_limit():
            (lease,) = await leasing
        assert (lease.session.session_id, lease.session.attempt) == ("a", 2)
        await bench.report("a", attempt=2)
        assert [(name, attempt) for name, attempt, _ in bench.server.uploads] == [("a", 2)]

    async def test_a_lease_of_the_next_attempt_says_that_the_one_here_is_lost(self, bench: Bench) -> None:
        await leased(bench, "a")
        bench.server.queue = [a_lease("a", attempt=2)]
        leasing = asyncio.create_task(bench.source.lease(8))
        await until(lambda: bench.cancelled == ["a"])
        bench.server.beats.clear()
        await until(lambda: bench.server.beats)
        assert bench.beaten() == [("a", 2, Stage.QUEUED)]
        await bench.report("a", Stage.COMPLETED)
        assert bench.server.attempted_uploads == 0
        async with hang_limit():
            assert [lease.session.attempt for lease in await leasing] == [2]

    async def test_a_session_leased_but_not_begun_is_broken_off_as_it_begins(self, bench: Bench) -> None:
        await leased(bench, "a")
        bench.server.lost = ["a"]
        await until(lambda: bench.cancelled == ["a"])
        bench.source.stage_changed("a", Stage.INIT, 0.0)
        assert bench.cancelled == ["a", "a"]

    async def test_a_node_the_server_forgot_registers_again_and_its_sessions_are_lost(self, bench: Bench) -> None:
        await leased(bench, "a")
        bench.server.forgotten = True
        await until(lambda: bench.cancelled == ["a"])
        await leased(bench, "b")
        assert len(bench.server.registrations) == 2
        await bench.report("a", Stage.COMPLETED)
        await bench.report("b")
        assert [upload[0] for upload in bench.server.uploads] == ["b"]


class TestStop:
    async def test_what_runs_is_handed_back_and_what_is_done_uploaded(self, bench: Bench) -> None:
        await leased(bench, "a", "b")
        bench.source.stop()
        assert bench.cancelled == ["a", "b"]
        await bench.report("a", Stage.CANCELLED)
        await bench.report("b", Stage.COMPLETED)
        await bench.source.leave()
        assert bench.server.handbacks == [HandBack(session_id="a", attempt=1)]
        assert [upload[0] for upload in bench.server.uploads] == ["b"]
        assert bench.server.left == 1

    async def test_it_ends_a_lease_that_waits(self, bench: Bench) -> None:
        leasing = asyncio.create_task(bench.source.lease(1))
        await until(lambda: bench.server.requests)
        bench.source.stop()
        bench.source.stop()
        async with hang_limit():
            assert await leasing == []
            assert await bench.source.lease(1) == []

    async def test_what_the_server_cancelled_is_not_handed_back(self, bench: Bench) -> None:
        await leased(bench, "a")
        bench.server.cancel = ["a"]
        await until(lambda: bench.cancelled)
        bench.source.stop()
        await bench.report("a", Stage.CANCELLED)
        assert bench.server.handbacks == [] and len(bench.server.uploads) == 1

    async def test_what_the_bound_of_its_task_ended_is_not_handed_back(self, bench: Bench) -> None:
        await leased(bench, "old", "failed")
        bench.source.stop()
        await bench.report("old", Stage.CANCELLED, failure=Failure(where="policy", type="Stale", message="old"))
        await bench.report("failed", Stage.CANCELLED, failure=Failure(where="engine", type="X", message="gone"))
        assert [upload[0] for upload in bench.server.uploads] == ["old"], "it has its result, and runs no more"
        assert [given.session_id for given in bench.server.handbacks] == ["failed"]

    async def test_a_server_that_is_away_is_waited_for_only_so_long(self, bench: Bench) -> None:
        await leased(bench, "a")
        bench.server.down = True
        bench.source.stop()
        async with hang_limit():
            await bench.report("a", Stage.CANCELLED)
            await bench.source.leave()
        assert bench.server.handbacks == [] and bench.server.left == 0


async def test_beats_end_when_told_to_even_as_news_comes_in(bench: Bench) -> None:
    await leased(bench, "a")
    for turns in (0, 1, 2, 3) * 5:
        beating = asyncio.create_task(bench.source.beat())
        await asyncio.sleep(0.01)
        bench.source.stage_changed("a", Stage.RUNNING, 0.0)
        for _ in range(turns):
            await asyncio.sleep(0)
        beating.cancel()
        done, _ = await asyncio.wait([beating], timeout=HANG_S)
        assert done and beating.cancelled(), turns


async def test_an_answer_that_is_no_polar_servers_is_not_taken(bench: Bench) -> None:
    await leased(bench, "a")
    bench.server.cancel = ["not an id!"]
    bench.server.beats.clear()
    await until(lambda: len(bench.server.beats) >= 2)
    assert bench.cancelled == []


async def test_a_server_of_another_version_is_an_error_that_names_both(server: FakeRolloutServer) -> None:
    server.refuse_registration = "this node is Polar 9, the server is Polar 8: upgrade the server"
    async with Uplink(server.base_url, TOKEN) as uplink:
        bench = Bench(server, uplink)
        with pytest.raises(ConfigError, match=r"refuses this node: this node is Polar 9.*upgrade the server"):
            await bench.source.lease(1)
        bench.beating.cancel()


async def test_a_heartbeat_carries_other_abilities_until_the_server_has_them(bench: Bench) -> None:
    await leased(bench, "a")
    assert bench.server.registrations[0].abilities == able()
    await until(lambda: bench.server.beats)
    assert {beat.abilities for beat in bench.server.beats} == {None}
    bench.server.down = True
    bench.source.can(able(labels=["new"]))
    bench.server.down = False
    await until(lambda: any(beat.abilities for beat in bench.server.beats))
    sent = len(bench.server.beats)
    await until(lambda: len(bench.server.beats) > sent + 2)
    assert next(beat.abilities for beat in bench.server.beats if beat.abilities) == able(labels=["new"])
    assert bench.server.beats[-1].abilities is None


async def test_the_servers_reason_for_a_cancel_reaches_the_pipeline(bench: Bench) -> None:
    await leased(bench, "a", "b")
    bench.server.cancel_reasons["a"] = "enough"
    bench.server.cancel += ["a", "b"]
    await until(lambda: len(bench.cancelled) == 2)
    assert dict(zip(bench.cancelled, bench.reasons, strict=True)) == {"a": "enough", "b": ""}
