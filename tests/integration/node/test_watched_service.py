"""What a person watches is what happened: a real server, a real node, and an engine that follows a script."""

from __future__ import annotations

import logging

import aiohttp
import pytest
from served_node import AGENT, Service, agent_task, results_of

from polar.node.uplink import ServerAway
from polar.types import Heartbeat, HeartbeatReply, LogLine, Overview, SessionFilter, SessionUpload, Stage
from polar.types.codec import decode
from waiting import hang_limit, until


async def test_the_overview_tells_what_the_sessions_did(patient: Service) -> None:
    await patient.add_node(running=2)
    await patient.client.submit(agent_task(task_id="good", num_samples=2))
    await patient.client.submit(agent_task(f"{AGENT}; exit 3", task_id="fails"))
    await patient.client.submit(agent_task("true", task_id="lazy", group_id="g"))
    results = await results_of(patient, "good", "fails", "lazy")
    tokens = sum(result.statistics.sampled_tokens for result in results.values())
    calls = sum(result.statistics.calls for result in results.values())
    assert calls == 6

    async def all_told() -> Overview | None:
        """The node's counts come with its heartbeats, a rate with the second of them."""
        seen = await patient.client.overview()
        return seen if seen.rate.calls_per_s or seen.rate.over_s > 1 else None

    seen: Overview = await until(all_told)
    assert seen.stages["COMPLETED"] + seen.stages["FAILED"] == 4
    assert (seen.window, seen.slots, seen.busy) == (4, 2, 0)
    [shell] = seen.harnesses
    assert (shell.harness, shell.sessions, shell.sampled_tokens) == ("shell", 4, tokens)
    rewards = [result.reward for result in results.values() if result.reward is not None]
    assert shell.mean_reward == sum(rewards) / len(rewards)
    assert shell.trainable == sum(result.trainable for result in results.values())
    assert shell.merge_rate == 1.0, "each second call continues the first"
    kinds = {(each.where, each.type, each.agent): each.session_id for each in seen.failures}
    failed = {r.session_id: r.failure for r in results.values() if r.failure is not None}
    assert kinds == {(f.where, f.type, f.agent): session_id for session_id, f in failed.items()}
    assert (seen.contrast.groups, seen.contrast.without_contrast) == (3, 3)

    page = await patient.client.session_list(SessionFilter(text="good"))
    assert [(row.session_id, row.reward, row.calls) for row in page.sessions] == [
        ("good-1", 1.0, 2),
        ("good-0", 1.0, 2),
    ]
    page = await patient.client.session_list(SessionFilter(failed_by="agent"))
    assert {row.session_id for row in page.sessions} == {s for s, f in failed.items() if f.agent}
    page = await patient.client.session_list(SessionFilter(group_id="g"))
    assert [(row.session_id, row.stage) for row in page.sessions] == [("lazy-0", results["lazy-0"].stage)]


async def test_a_node_counts_its_calls_and_tokens(patient: Service) -> None:
    served = await patient.add_node()
    await patient.client.submit(agent_task(task_id="t", num_samples=3))
    results = await results_of(patient, "t")
    use = served.node.calls.use.read()
    assert (use.calls, use.sampled_calls, use.failed_calls) == (6, 6, 0)
    assert use.sampled_tokens == sum(result.statistics.sampled_tokens for result in results.values())
    calls = [call for session_id in results for call in await served.node.journal.calls(session_id)]
    assert use.prompt_tokens == sum(call.prompt_tokens for call in calls)
    assert 0 < use.first_token_s <= use.call_s


async def test_calls_that_an_engine_fails_are_counted_as_failed(patient: Service) -> None:
    served = await patient.add_node()
    served.engine.outage_for_sessions = "no more memory"
    await patient.client.submit(agent_task(task_id="t"))
    counted = served.node.calls.use
    use = await until(lambda: counted.read() if counted.read().failed_calls else None)
    assert use.failed_calls == use.calls > 0
    assert (use.sampled_calls, use.sampled_tokens, use.prompt_tokens) == (0, 0, 0)
    served.engine.outage_for_sessions = ""
    assert (await results_of(patient, "t"))["t-0"].stage is Stage.COMPLETED


async def test_a_warning_of_a_node_reaches_the_servers_log(patient: Service) -> None:
    served = await patient.add_node()
    await until(lambda: served.uplink.registered)  # a lost answer would make it register twice
    served.uplink.cut()
    logging.getLogger("polar.session").error("session t-0: it broke", extra={"session_id": "t-0"})
    served.uplink.mend()

    async def lines() -> list[LogLine] | None:
        page = await patient.client.log()
        return list(page.lines) if any(line.session_id == "t-0" for line in page.lines) else None

    found = [line for line in await until(lines) if line.session_id == "t-0"]
    [status] = await patient.client.nodes()
    assert [(line.source, line.level, line.message) for line in found] == [
        (status.name, "error", "session t-0: it broke")
    ]


@pytest.mark.parametrize("answered", [True, False])
async def test_a_line_is_not_lost_with_the_answer_to_its_heartbeat(
    patient: Service, monkeypatch: pytest.MonkeyPatch, answered: bool
) -> None:
    served = await patient.add_node()
    await until(patient.client.nodes)
    heartbeat, lost = served.uplink.heartbeat, list[Heartbeat]()

    async def first_answer_lost(beat: Heartbeat) -> HeartbeatReply:
        reply = await heartbeat(beat)
        if beat.log and not answered and not lost:
            lost.append(beat)
            raise ServerAway("the line is cut")
        return reply

    monkeypatch.setattr(served.uplink, "heartbeat", first_answer_lost)
    for number in range(120):  # more than one heartbeat carries
        logging.getLogger("polar.session").warning("line %d", number)

    async def messages() -> list[str] | None:
        page = await patient.client.log(limit=1000)
        found = [line.message for line in page.lines if line.message.startswith("line ")]
        return found if len(found) >= 120 else None

    assert await until(messages) == [f"line {number}" for number in range(120)]
    assert bool(lost) is not answered


async def test_a_session_is_seen_while_it_runs(patient: Service) -> None:
    served = await patient.add_node()
    command, here, go = patient.held_up("t")
    await patient.client.submit(agent_task(f"echo key $OPENAI_API_KEY; {command}", task_id="t"))
    await until(here.exists)
    url, headers = f"{patient.server.base_url}/v1/sessions/t-0/live", {"authorization": "Bearer control"}
    seen: list[SessionUpload] = []
    version = "0"
    async with aiohttp.ClientSession(headers=headers) as http, hang_limit():
        while not seen or len(seen[-1].calls) < 2:
            async with http.get(url, params={"after": version, "wait_s": "10"}) as answer:
                assert answer.status in (200, 204)
                if answer.status == 200:
                    version = answer.headers["Polar-Version"]
                    seen.append(decode(await answer.read(), SessionUpload))
        assert [call.session_id for call in seen[-1].calls] == ["t-0", "t-0"]
        assert seen[-1].result == b"" and seen[-1].trajectory is None
        [stdout] = [file.content for file in seen[-1].files if file.path == "logs/harness.stdout"]
        key = served.node.slots.key_of("t-0")
        assert key is not None and key.encode() not in stdout and b"key <key>" in stdout
        go.touch()
        await results_of(patient, "t")
        async with http.get(url) as answer:
            assert (answer.status, answer.headers["Polar-Ended"]) == (204, "yes")
    final = await patient.client.upload("t-0")
    assert [call.call_id for call in final.calls] == [call.call_id for call in seen[-1].calls]
