"""What a person watches is what happened: a real server, a real node, and an engine that follows a script."""

from __future__ import annotations

import logging

import pytest
from served_node import AGENT, Service, agent_task, results_of

from polar.types import LogLine, Overview, SessionFilter, Stage
from waiting import until


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
    use = served.node.use.read()
    assert (use.calls, use.sampled_calls, use.failed_calls) == (6, 6, 0)
    assert use.sampled_tokens == sum(result.statistics.sampled_tokens for result in results.values())
    calls = [call for session_id in results for call in await served.node.journal.calls(session_id)]
    assert use.prompt_tokens == sum(call.prompt_tokens for call in calls)
    assert 0 < use.first_token_s <= use.call_s


async def test_calls_that_an_engine_fails_are_counted_as_failed(patient: Service) -> None:
    served = await patient.add_node()
    served.engine.outage_for_sessions = "no more memory"
    await patient.client.submit(agent_task(task_id="t"))
    use = await until(lambda: served.node.use.read() if served.node.use.read().failed_calls else None)
    assert use.failed_calls == use.calls > 0
    assert (use.sampled_calls, use.sampled_tokens, use.prompt_tokens) == (0, 0, 0)
    served.engine.outage_for_sessions = ""
    assert (await results_of(patient, "t"))["t-0"].stage is Stage.COMPLETED


async def test_a_warning_of_a_node_reaches_the_servers_log(patient: Service) -> None:
    served = await patient.add_node()
    await until(patient.client.nodes)
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
async def test_a_line_is_not_lost_with_the_answer_to_its_heartbeat(patient: Service, answered: bool) -> None:
    served = await patient.add_node()
    await until(patient.client.nodes)
    for number in range(120):  # more than one heartbeat carries
        logging.getLogger("polar.session").warning("line %d", number)
    if not answered:
        served.uplink.cut()
        served.uplink.mend()

    async def messages() -> list[str] | None:
        page = await patient.client.log(limit=1000)
        found = [line.message for line in page.lines if line.message.startswith("line ")]
        return found if len(found) >= 120 else None

    assert await until(messages) == [f"line {number}" for number in range(120)]
