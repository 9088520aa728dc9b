"""A run of Gym: its row as a task, the session, and the answer.

Every answer is an HTTP success, because Gym's collection ends at an error. What a trainer may not compare has a
failure class; what it may compare and not train on is masked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

from polar.client.retries import ServerError
from polar.errors import ConfigError, FieldsRefused, PolarError, field_problems
from polar.trainers.bridges.config import TASK_FIELD, BridgeConfig
from polar.trainers.bridges.nemo_gym.capture import RunCapture, explicit_id
from polar.trainers.bridges.nemo_gym.chain import ChainLink, chain_of, output_of, placeholder_of
from polar.trainers.bridges.sessions import GroupClient, SessionTraces, run_session
from polar.types import Call, TaskRequest

FAILURE_CLASS = "_ng_failure_class"
"""Set by agents, read by Gym's collection: the run goes to the file of failures. A later collection with
`resume_from_cache` runs its row again."""
TERMINAL = "_ng_failure_terminal"
"""With a failure class: no collection runs the row again."""
MASKED: dict[str, Any] = {"mask_sample": True, "instance_config": {"mask_sample": True}}
"""Not trained on, and its reward counts in the baseline. Gym reads the first, NeMo RL the second."""
WRONG_ROW = (400, 404, 413, 422)
"""Status of a rollout server that refuses a task."""
SeveralTraces = Literal["main", "mask"]
"""What becomes of a session with more than one trace: only its main trace is trained on, or nothing of it."""


class Run(NamedTuple):
    """A session whose reward counts."""

    calls: Mapping[str, Call]
    chain: list[ChainLink]
    masked: bool


async def answer_run(
    config: BridgeConfig,
    body: Mapping[str, Any],
    several_traces: SeveralTraces = "main",
    capture: RunCapture | None = None,
) -> dict[str, Any]:
    """The answer to a request, whatever happens to the session. Other rows are not concerned, so this one's
    mistakes and a server that is away are failure classes too."""
    try:
        task_of(config, body)
    except ConfigError as error:
        return {**failed_answer(body, "row", error=str(error)), TERMINAL: True}
    try:
        async with config.client() as client:
            return await run_request(client, config, body, several_traces, capture)
    except PolarError as error:
        if isinstance(error, ServerError) and error.status in WRONG_ROW:
            return {**failed_answer(body, "row", error=str(error)), TERMINAL: True}
        return failed_answer(body, "server", error=str(error))


async def run_request(
    client: GroupClient,
    config: BridgeConfig,
    body: Mapping[str, Any],
    several_traces: SeveralTraces = "main",
    capture: RunCapture | None = None,
) -> dict[str, Any]:
    """One run as Gym asks for it, and its answer. A session that is in no baseline is an answer with reward 0 and
    a failure class, as Gym wants it, and not an error."""
    session = await run_session(client, config, task_of(config, body))
    if not session.result.in_baseline:
        if capture is not None:
            await capture.lose(body)
        failure = session.result.failure
        return failed_answer(body, session.left_out, session.result.session_id, failure.message if failure else "")
    upload = await client.upload(session.result.session_id)
    run = _run_of(session, {call.call_id: call for call in upload.calls}, several_traces, config.max_tokens)
    if capture is not None:
        await (capture.lose(body) if run.masked else capture.put(body, run.chain, run.calls))
    answer = _answer(body, session.result.session_id, output_of(run.chain, run.calls), session.reward)
    return answer | MASKED if run.masked else answer


def task_of(config: BridgeConfig, body: Mapping[str, Any]) -> TaskRequest:
    """The row's task, or an error that names the field which is wrong."""
    if not isinstance(body.get(TASK_FIELD) or {}, Mapping):
        raise ConfigError(f"{TASK_FIELD}: a row has fields of its task there, such as {{'files': {{'a': '1'}}}}")
    try:
        task = config.task_for(body["responses_create_params"]["input"], body)
        if not (group_id := explicit_id(body)):
            return task
        # So `TokenSource` finds it. Gym may use an id again: then the newest task of the group counts.
        return TaskRequest.model_validate({**task.model_dump(exclude_unset=True), "group_id": group_id})
    except ValidationError as error:
        raise FieldsRefused(field_problems(error, TaskRequest, (TASK_FIELD,))) from error


def failed_answer(
    body: Mapping[str, Any], reason: str, session_id: str = "none", error: str = ""
) -> dict[str, Any]:
    return {**_answer(body, session_id, [], 0.0), FAILURE_CLASS: f"polar_{reason}", "error": error}


def _run_of(
    session: SessionTraces, calls: Mapping[str, Call], several_traces: SeveralTraces, max_tokens: int | None
) -> Run:
    chain = chain_of(session)
    if not chain:
        return Run(calls, placeholder_of(calls, max_tokens), masked=True)
    return Run(calls, chain, masked=several_traces == "mask" and len(session.traces) > 1)


def _answer(
    body: Mapping[str, Any], session_id: str, output: list[dict[str, Any]], reward: float
) -> dict[str, Any]:
    response = {
        "id": f"resp_{session_id}",
        "created_at": 0.0,
        "model": "polar",
        "object": "response",
        "output": output,
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
    }
    return {"responses_create_params": body["responses_create_params"], "response": response, "reward": reward}
