"""verl's side: a row of its data set in, outputs of the agent loop out."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from stored_groups import GONE, StoredClient, a_group, a_session, a_trace
from trainer_types import provide_verl

from polar.credit.advantages import FinishedSession
from polar.credit.group import Group
from polar.errors import ConfigError, PolarError
from polar.trainers.bridges.verl import AgentLoop
from polar.types import Span, TrajectoryStatistics, logprobs, loss_mask

SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
ROW: dict[str, Any] = {
    "uid": "7c1e",
    "session_id": 0,
    "global_steps": 3,
    "raw_prompt": [{"role": "user", "content": "Do it."}],
    "polar": {"files": {"a.txt": "b"}},
}
GREEDY = {**SAMPLING, "temperature": 0}
VERLS_DEFAULTS = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "val_kwargs": {"temperature": 0}}


@pytest.fixture(autouse=True)
def verl_package(monkeypatch: pytest.MonkeyPatch) -> None:
    provide_verl(monkeypatch)


def a_loop(client: StoredClient, **fields: Any) -> AgentLoop:
    return AgentLoop({"task": {"harness": "pi"}, **fields}, connect=lambda: client, tokenizer=None, processor=None)


def without_trainable_tokens(name: str, reward: float) -> FinishedSession:
    """Three tokens were sampled, none from the plain distribution."""
    trace = a_trace(name, loss_mask=loss_mask([0] * 4), logprobs=logprobs([0.0] * 4), spans=())
    statistics = TrajectoryStatistics(calls=2, sampled_tokens=3, dropped={"sampling_not_plain": 3})
    return a_session(name, reward, trace, statistics=statistics)


def lost(name: str) -> FinishedSession:
    return a_session(name, None, failure=GONE)


async def run_prompt(*sessions: FinishedSession, params: dict[str, Any] = SAMPLING) -> list[Any]:
    """The sessions of one prompt as verl starts them, each with a loop of its own. Errors stand for themselves."""
    runs = [
        a_loop(StoredClient(Group(session.result.task_id, (session,)))).run(
            params, **{**ROW, "session_id": number}
        )
        for number, session in enumerate(sessions)
    ]
    return await asyncio.gather(*runs, return_exceptions=True)


async def test_one_output_for_each_trace_and_the_main_trace_last() -> None:
    main = a_trace("a-0", [5, 6, 7], spans=(Span("c", 0, 2, "2"), Span("d", 2, 1, "3")))
    helper = a_trace("a-0", [8] * 9, kind="subagent", version="2")
    client = StoredClient(Group("a", (a_session("a-0", 0.5, main, helper),)))
    outputs = await a_loop(client).run(SAMPLING, **ROW)
    assert [output.response_ids[0] for output in outputs] == [8, 5]
    last = outputs[-1]
    assert (last.prompt_ids, last.response_ids) == ([1, 2], [5, 6, 7, 3])
    assert (last.response_mask, last.response_logprobs) == ([1, 1, 1, 0], [-0.5, -0.5, -0.5, 0.0])
    assert [output.reward_score for output in outputs] == [0.5, 0.5]
    assert last.extra_fields["reward_extra_info"] == {}, "verl copies it, and counts a lost session's `acc` as 0"
    assert (last.extra_fields["min_global_steps"], last.extra_fields["max_global_steps"]) == (2, 3)
    (task,) = client.submitted
    assert (task.instruction, task.files, task.num_samples) == ("Do it.", {"a.txt": "b"}, 1)
    assert (task.sampling.temperature, task.sampling.top_k) == (1.0, 0)


async def test_a_lost_session_has_no_output_and_the_others_are_trained_on() -> None:
    first, none, second = await run_prompt(a_session("a-0", 1.0), lost("b-0"), a_session("c-0", 0.0))
    assert none == []
    assert [output.response_mask for output in (*first, *second)] == [[1, 1, 1, 0]] * 2


async def test_a_session_that_is_left_alone_keeps_its_reward_and_trains_nothing() -> None:
    """verl's GRPO takes mean 0 and deviation 1 for a group of one: its raw reward would be the advantage."""
    two_traces = a_session("b-0", 1.0, a_trace("b-0"), a_trace("b-0", [8], kind="subagent"))
    *none, outputs = await run_prompt(lost("a-0"), lost("c-0"), two_traces)
    assert none == [[], []]
    assert [output.reward_score for output in outputs] == [1.0, 1.0]
    assert [output.response_mask for output in outputs] == [[0, 0], [0, 0, 0, 0]]


async def test_a_prompt_of_one_session_is_trained_on() -> None:
    ((output,),) = await run_prompt(a_session("a-0", 1.0))
    assert sum(output.response_mask) == 3


async def test_a_prompt_that_lost_all_of_its_sessions_fails_for_verl_to_replace_it() -> None:
    errors = await run_prompt(lost("a-0"), lost("b-0"))
    assert [(type(error), str(error)) for error in errors] == [
        (PolarError, "prompt 7c1e has lost all of its sessions (infrastructure)")
    ] * 2


async def test_a_session_that_fails_does_not_keep_the_others_waiting() -> None:
    def server_is_gone() -> StoredClient:
        raise PolarError("no server")

    broken = AgentLoop({"task": {"harness": "pi"}}, connect=server_is_gone)
    whole = a_loop(StoredClient(a_group("a", 1.0)))
    error, outputs = await asyncio.gather(
        broken.run(SAMPLING, **ROW), whole.run(SAMPLING, **ROW), return_exceptions=True
    )
    assert isinstance(error, PolarError) and len(outputs) == 1


async def test_a_session_without_trainable_tokens_is_in_the_baseline() -> None:
    (masked,), (trained,) = await run_prompt(without_trainable_tokens("a-0", 0.0), a_session("b-0", 1.0))
    assert (masked.response_mask, masked.reward_score, masked.num_turns) == ([0], 0.0, 4)
    assert (sum(trained.response_mask), trained.reward_score) == (3, 1.0)


async def test_versions_that_are_not_steps_give_way_to_the_weights_of_the_rows_step() -> None:
    """verl makes whole numbers of both in every step's metrics."""
    for version in ("", "sha-1"):
        client = StoredClient(Group("a", (a_session("a-0", 1.0, a_trace("a-0", version=version)),)))
        (output,) = await a_loop(client).run(SAMPLING, **ROW)
        fields = output.extra_fields
        assert (fields["min_global_steps"], fields["max_global_steps"]) == (2, 2), "step 3 began with 2 updates"


async def validated(*sessions: FinishedSession, rollout: dict[str, Any]) -> list[Any]:
    config = SimpleNamespace(config={"actor_rollout_ref": {"rollout": rollout}})
    client = StoredClient(*(Group(session.result.task_id, (session,)) for session in sessions))
    loop = AgentLoop({"task": {"harness": "pi"}}, connect=lambda: client, trainer_config=config)
    found = [await loop.run(GREEDY, **{**ROW, "uid": str(number)}) for number in range(len(sessions))]
    assert {task.sampling.temperature for task in client.submitted} == {0.0}
    return found


async def test_validation_has_the_reward_of_every_verdict() -> None:
    stale = a_session("b-0", 0.5, stale=True)
    greedy, other, none = await validated(
        without_trainable_tokens("a-0", 1.0), stale, lost("c-0"), rollout=VERLS_DEFAULTS
    )
    assert [(output.reward_score, output.response_mask) for output in (*greedy, *other)] == [
        (1.0, [0]),
        (0.5, [0]),
    ]
    assert none == []


async def test_training_refuses_to_sample_otherwise_than_plainly() -> None:
    with pytest.raises(ConfigError, match=r"samples with temperature 0, .* set temperature and top_p to 1"):
        await validated(a_session("a-0", 1.0), rollout={**VERLS_DEFAULTS, "temperature": 0})
    with pytest.raises(ConfigError, match=r"top_p 0\.9, top_k 50"):
        await a_loop(StoredClient()).run({**SAMPLING, "top_p": 0.9, "top_k": 50}, **ROW)


async def test_a_uid_that_verl_would_split_is_refused() -> None:
    with pytest.raises(ConfigError, match="splits it at `_`"):
        await a_loop(StoredClient()).run(SAMPLING, **{**ROW, "uid": "row_7"})


async def test_the_tasks_own_sampling_wins() -> None:
    client = StoredClient(a_group("a", 1.0))
    loop = a_loop(client, task={"harness": "pi", "sampling": {"temperature": 0.7}})
    await loop.run(SAMPLING, **ROW)
    assert client.submitted[0].sampling.temperature == 0.7


@pytest.mark.parametrize("own", [{"sampling": {"temperature": 0.7}}, '{"sampling": {"temperature": 0.7}}'])
async def test_a_rows_own_sampling_wins(own: Any) -> None:
    """Also as JSON: a column of a parquet file has one type for all rows."""
    client = StoredClient(a_group("a", 1.0))
    await a_loop(client).run(SAMPLING, **{**ROW, "polar": own})
    assert client.submitted[0].sampling.temperature == 0.7
