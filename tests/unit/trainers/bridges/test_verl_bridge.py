"""verl's side: a row of its data set in, outputs of the agent loop out."""

from __future__ import annotations

from typing import Any

import pytest
from stored_groups import StoredClient, a_group, a_session, a_trace
from trainer_types import provide_verl

from polar.credit.group import Group
from polar.errors import ConfigError
from polar.trainers.bridges.verl import AgentLoop
from polar.types import Span

SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
ROW: dict[str, Any] = {
    "uid": "7c1e",
    "session_id": 0,
    "global_steps": 3,
    "raw_prompt": [{"role": "user", "content": "Do it."}],
    "polar": {"files": {"a.txt": "b"}},
}


@pytest.fixture(autouse=True)
def verl_package(monkeypatch: pytest.MonkeyPatch) -> None:
    provide_verl(monkeypatch)


def a_loop(client: StoredClient, **fields: Any) -> AgentLoop:
    return AgentLoop({"task": {"harness": "pi"}, **fields}, connect=lambda: client, tokenizer=None, processor=None)


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
    assert last.extra_fields["reward_extra_info"] == {"acc": 0.5}, "verl copies it to the other outputs"
    assert (last.extra_fields["min_global_steps"], last.extra_fields["max_global_steps"]) == (2, 3)
    (task,) = client.submitted
    assert (task.instruction, task.files, task.num_samples) == ("Do it.", {"a.txt": "b"}, 1)
    assert (task.sampling.temperature, task.sampling.top_k) == (1.0, 0)


async def test_a_lost_session_has_no_output_and_does_not_raise() -> None:
    assert await a_loop(StoredClient(a_group("a", None))).run(SAMPLING, **ROW) == []


async def test_versions_that_are_not_steps_are_left_out() -> None:
    client = StoredClient(Group("a", (a_session("a-0", 1.0, a_trace("a-0", version="sha-1")),)))
    (output,) = await a_loop(client).run(SAMPLING, **ROW)
    assert "min_global_steps" not in output.extra_fields


async def test_a_uid_that_verl_would_split_is_refused() -> None:
    with pytest.raises(ConfigError, match="splits it at `_`"):
        await a_loop(StoredClient()).run(SAMPLING, **{**ROW, "uid": "row_7"})


async def test_the_tasks_own_sampling_wins() -> None:
    client = StoredClient(a_group("a", 1.0))
    loop = a_loop(client, task={"harness": "pi", "sampling": {"temperature": 0.7}})
    await loop.run(SAMPLING, **ROW)
    assert client.submitted[0].sampling.temperature == 0.7
