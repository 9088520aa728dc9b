"""NeMo Gym's side: a run request in, a verify response with one chain of token ids out."""

from __future__ import annotations

from typing import Any

import pytest
from stored_calls import LAST, PROMPT, REPLY, RESULT, called_session, session_calls, untaught_session
from stored_groups import StoredClient, a_group, a_session, a_trace

from polar.client.retries import ServerError
from polar.credit.group import Group
from polar.trainers.bridges.config import BridgeConfig
from polar.trainers.bridges.nemo_gym import chain_of, run_request
from polar.trainers.bridges.nemo_gym.answers import answer_run
from polar.trainers.bridges.nemo_gym.capture import rollout_id_of
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


def an_untaught_client() -> StoredClient:
    """The agent failed, sampled, and has no token that may be trained on."""
    client = StoredClient(Group("t", (untaught_session(),)))
    client.calls = session_calls()
    return client


def nemo_rl_reads(answer: dict[str, Any]) -> tuple[list[list[int]], bool]:
    """As NeMo RL reads an answer (main of 2026-08-22): the generated tokens, and whether they are masked."""
    seen: list[int] = []
    generated: list[list[int]] = []
    for item in answer["response"]["output"]:
        if item.get("generation_token_ids"):
            assert item["prompt_token_ids"][: len(seen)] == seen, "Non-contiguous messages found!"
            seen = [*item["prompt_token_ids"], *item["generation_token_ids"]]
            generated.append(item["generation_token_ids"])
    if not generated:
        raise ValueError("NeMo Gym returned a result with no generation data")
    return generated, bool((answer.get("instance_config") or {}).get("mask_sample", False))


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
    assert nemo_rl_reads(answer) == ([REPLY, LAST], False)


async def test_a_lost_session_is_an_answer_with_a_failure_class() -> None:
    answer = await run_request(StoredClient(a_group("t", None)), CONFIG, a_body())
    assert (answer["reward"], answer["_ng_failure_class"]) == (0.0, "polar_infrastructure")
    assert answer["response"]["output"] == [] and answer["error"] == "the engine is gone"
    assert "_ng_failure_terminal" not in answer
    with pytest.raises(ValueError, match="no generation data"):
        nemo_rl_reads(answer)


@pytest.mark.parametrize(("policy", "masked"), [("main", False), ("mask", True)])
async def test_several_traces_are_never_joined(policy: Any, masked: bool) -> None:
    answer = await run_request(a_client(), CONFIG, a_body(), policy)
    assert answer.get("mask_sample", False) is masked
    generated, nemo_rl_masks = nemo_rl_reads(answer)
    assert [15] not in generated, "the helper's own trace"
    assert nemo_rl_masks is masked


async def test_a_failed_agent_without_trainable_tokens_is_in_the_baseline_and_masked() -> None:
    answer = await run_request(an_untaught_client(), CONFIG, a_body())
    assert answer["reward"] == 0.0 and "_ng_failure_class" not in answer
    assert nemo_rl_reads(answer) == ([REPLY[:1]], True)
    (item,) = [item for item in answer["response"]["output"] if "generation_token_ids" in item]
    assert item["prompt_token_ids"] == PROMPT, "as in the runs that it is compared with"


async def test_a_session_that_is_longer_than_the_trainers_sequences_keeps_its_reward() -> None:
    answer = await run_request(a_client(), CONFIG.model_copy(update={"max_tokens": 2}), a_body())
    assert answer["reward"] == 0.5 and "_ng_failure_class" not in answer
    assert nemo_rl_reads(answer) == ([REPLY[:1]], True)


async def test_the_task_has_the_rows_fields_and_the_rollouts_id() -> None:
    client = a_client()
    await run_request(client, CONFIG, a_body(polar={"files": {"a": "b"}}, _ng_rollout_id="3-1"))
    (task,) = client.submitted
    assert (task.instruction, task.files, task.group_id) == ("Do it.", {"a": "b"}, "3-1")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"polar": {"file": {"a": "b"}}}, "polar.file: unknown field; did you mean 'files'"),
        ({"polar": "files"}, "a row has fields of its task there"),
        ({"polar": {"group_id": "g"}}, "remove group_id"),
        ({"_ng_rollout_id": "3:1"}, "polar.group_id: letters, digits"),
    ],
    ids=["unknown field", "no mapping", "a group", "a rollout id of other characters"],
)
async def test_a_wrong_row_is_a_failure_that_is_not_run_again(fields: dict[str, Any], message: str) -> None:
    answer = await answer_run(CONFIG, a_body(**fields))
    assert (answer["_ng_failure_class"], answer["_ng_failure_terminal"]) == ("polar_row", True)
    assert message in answer["error"]


@pytest.mark.parametrize(("status", "terminal"), [(422, True), (503, False), (None, False)])
async def test_a_servers_refusal_of_a_task_is_the_rows_mistake(
    status: int | None, terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(StoredClient):
        async def submit_many(self, tasks: Any) -> Any:
            raise ServerError("the task has an unknown harness", status=status)

    monkeypatch.setattr(BridgeConfig, "client", lambda _: Refusing())
    answer = await answer_run(CONFIG, a_body())
    assert answer["_ng_failure_class"] == ("polar_row" if terminal else "polar_server")
    assert answer.get("_ng_failure_terminal", False) is terminal and "unknown harness" in answer["error"]


def test_the_id_of_a_run_is_the_rows_own_or_its_place() -> None:
    place = {"_ng_task_index": 3, "_ng_rollout_index": 0}
    assert rollout_id_of(place) == "3-0" and rollout_id_of({**place, "_ng_attempt_index": 2}) == "3-0-a2"
    assert rollout_id_of({**place, "_ng_rollout_id": "mine", "_ng_attempt_index": 1}) == "mine-a1"
    assert rollout_id_of({}) == ""


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
