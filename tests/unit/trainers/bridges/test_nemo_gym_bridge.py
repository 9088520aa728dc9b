"""NeMo Gym's side: a run request in, a verify response with one chain of token ids out."""

from __future__ import annotations

from typing import Any

import pytest
from stored_calls import LAST, PROMPT, REPLY, RESULT, called_session, session_calls
from stored_groups import StoredClient, a_group, a_session, a_trace

from polar.credit.group import Group
from polar.trainers.bridges.config import BridgeConfig
from polar.trainers.bridges.nemo_gym import chain_of, run_request
from polar.trainers.bridges.sessions import sessions_of
from polar.types import Span, logprobs, loss_mask, token_ids

CONFIG = BridgeConfig(task={"harness": "pi"})
TOKENS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")


def a_body(**fields: Any) -> dict[str, Any]:
    params = {"input": [{"role": "user", "content": "Do it."}], "metadata": {"row": "7"}}
    agent = {"type": "responses_api_agents", "name": "polar"}
    return {"responses_create_params": params, "agent_ref": agent, **fields}


def a_client() -> StoredClient:
    client = StoredClient(Group("t", (called_session(0.5),)))
    client.calls = session_calls()
    return client


async def test_the_main_trace_is_one_contiguous_chain() -> None:
    answer = await run_request(a_client(), CONFIG, a_body())
    assert answer["reward"] == 0.5 and "_ng_failure_class" not in answer
    output = answer["response"]["output"]
    assert [item["type"] for item in output] == ["function_call", "function_call_output", "message"]
    first, last = [item for item in output if "generation_token_ids" in item]
    assert (first["prompt_token_ids"], first["generation_token_ids"]) == (PROMPT, REPLY)
    assert (last["prompt_token_ids"], last["generation_token_ids"]) == ([*PROMPT, *REPLY, *RESULT], LAST)
    assert len(last["generation_log_probs"]) == len(LAST) and all(v < 0 for v in last["generation_log_probs"])
    assert answer["responses_create_params"] == a_body()["responses_create_params"]


async def test_a_lost_session_is_an_answer_with_a_failure_class() -> None:
    answer = await run_request(StoredClient(a_group("t", None)), CONFIG, a_body())
    assert (answer["reward"], answer["_ng_failure_class"]) == (0.0, "polar_infrastructure")
    assert answer["response"]["output"] == []


@pytest.mark.parametrize(("policy", "masked"), [("main", False), ("mask", True)])
async def test_several_traces_are_never_joined(policy: Any, masked: bool) -> None:
    answer = await run_request(a_client(), CONFIG, a_body(), policy)
    assert answer.get("mask_sample", False) is masked
    generated = [item["generation_token_ids"] for item in answer["response"]["output"] if TOKENS[1] in item]
    assert [15] not in generated, "the helper's own trace"


async def test_the_task_has_the_rows_fields_and_the_rollouts_id() -> None:
    client = a_client()
    await run_request(client, CONFIG, a_body(polar={"files": {"a": "b"}}, _ng_rollout_id="3-1"))
    (task,) = client.submitted
    assert (task.instruction, task.files, task.group_id) == ("Do it.", {"a": "b"}, "3-1")


def test_a_call_with_masked_tokens_is_context_and_no_link() -> None:
    """NeMo RL would train on all that a link generated."""
    trace = a_trace(
        "t-0",
        response_ids=token_ids([5, 6, 4, 7]),
        loss_mask=loss_mask([1, 0, 0, 1]),
        logprobs=logprobs([-1.0, 0.0, 0.0, -1.0]),
        spans=(Span("first", 0, 2), Span("second", 3, 1)),
    )
    (session,) = sessions_of(Group("t", (a_session("t-0", 1.0, trace),)), CONFIG)
    (link,) = chain_of(session)
    assert (link.call_id, link.prompt_ids, link.generation_ids) == ("second", [1, 2, 5, 6, 4], [7])
