"""NeMo Gym: an agent server whose runs are sessions, and a source of captured tokens for NeMo RL.

NeMo RL takes one contiguous chain of model calls for each run: the prompt of each begins with prompt and reply of
the one before. That is what the main trace is. Other traces of a session are dropped, or the whole run is masked
(`several_traces`); they are never joined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, NamedTuple

from pydantic import ConfigDict

from polar.credit.advantages import FinishedSession
from polar.credit.group import Group
from polar.errors import PolarError
from polar.trainers.bridges.config import BridgeConfig
from polar.trainers.bridges.packages import load
from polar.trainers.bridges.sessions import GroupClient, SessionTraces, run_session, sessions_of
from polar.types import Call, Message, SessionResult

INSTALL = "'nemo-gym==0.4.0' (Python 3.13 or newer)"
FAILURE_CLASS = "_ng_failure_class"
"""Set by agents, read by Gym's collection: the run goes to the failures and is dispatched again."""
SeveralTraces = Literal["main", "mask"]
"""What becomes of a session with more than one trace: only its main trace is trained on, or nothing of it."""


class ChainLink(NamedTuple):
    """One model call of the main trace, of which all tokens may be trained on."""

    call_id: str
    prompt_ids: list[int]
    generation_ids: list[int]
    logprobs: list[float]


def chain_of(session: SessionTraces) -> list[ChainLink]:
    """The main trace, call by call. NeMo RL trains on everything that was generated, so a call with tokens that
    may not be trained on is no link: its tokens are context in the prompt of the next."""
    if not session.traces:
        return []
    trace = session.main.trace
    ids, prompt = trace.response_ids.tolist(), trace.prompt_ids.tolist()
    return [
        ChainLink(
            span.call_id,
            [*prompt, *ids[: span.start]],
            ids[span.start : span.start + span.length],
            trace.logprobs[span.start : span.start + span.length].tolist(),
        )
        for span in trace.spans
        if span.length and all(trace.loss_mask[span.start : span.start + span.length])
    ]


def output_of(chain: Sequence[ChainLink], calls: Mapping[str, Call]) -> list[dict[str, Any]]:
    """The output items of a Responses API reply. Token fields stand on the last item of each call."""
    items: list[dict[str, Any]] = []
    for number, link in enumerate(chain):
        call = calls[link.call_id]
        if number:
            items += [_result(message) for message in call.new_messages if message.role == "tool"]
        said = reply_items(call)
        said[-1] |= {
            "prompt_token_ids": link.prompt_ids,
            "generation_token_ids": link.generation_ids,
            "generation_log_probs": link.logprobs,
        }
        items += said
    return items


def reply_items(call: Call) -> list[dict[str, Any]]:
    """A reply as items of the Responses API; an empty one is a message without text."""
    reply = call.response
    items: list[dict[str, Any]] = []
    if reply.reasoning:
        summary = [{"type": "summary_text", "text": reply.reasoning}]
        items.append({"id": f"rs_{call.call_id}", "type": "reasoning", "summary": summary})
    if reply.content or not reply.tool_calls:
        text: dict[str, Any] = {"type": "output_text", "text": reply.content, "annotations": []}
        message = {"id": f"msg_{call.call_id}", "type": "message", "role": "assistant", "status": "completed"}
        items.append({**message, "content": [text]})
    items += [
        {
            "id": f"fc_{call.call_id}_{number}",
            "type": "function_call",
            "call_id": made.call_id,
            "name": made.name,
            "arguments": made.arguments,
            "status": "completed",
        }
        for number, made in enumerate(reply.tool_calls)
    ]
    return items


def _result(message: Message) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": message.tool_call_id, "output": message.content}


async def run_request(
    client: GroupClient, config: BridgeConfig, body: Mapping[str, Any], several_traces: SeveralTraces = "main"
) -> dict[str, Any]:
    """One run as Gym asks for it, and its answer. A session that may not be trained on is an answer with reward 0
    and a failure class, as Gym wants it, and not an error."""
    params = body["responses_create_params"]
    task = config.task_for(params["input"], body)
    if body.get("_ng_rollout_id"):
        # So `TokenSource` finds it. Gym may use an id again: then the newest task of the group counts.
        task = task.model_copy(update={"group_id": body["_ng_rollout_id"]})
    session = await run_session(client, config, task)
    chain = chain_of(session)
    if not chain:
        return failed_answer(params, session.left_out or "no_trainable_tokens", session.result.session_id)
    upload = await client.upload(session.result.session_id)
    output = output_of(chain, {call.call_id: call for call in upload.calls})
    answer = _answer(params, session.result.session_id, output, session.reward)
    if several_traces == "mask" and len(session.traces) > 1:
        answer["mask_sample"] = True
    return answer


def failed_answer(params: Any, reason: str, session_id: str = "none") -> dict[str, Any]:
    return {**_answer(params, session_id, [], 0.0), FAILURE_CLASS: f"polar_{reason}"}


def _answer(params: Any, session_id: str, output: list[dict[str, Any]], reward: float) -> dict[str, Any]:
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
    return {"responses_create_params": params, "response": response, "reward": reward}


def agent_class() -> Any:
    """The agent server. In `responses_api_agents/polar_agent/app.py` of a Gym project:

        PolarAgent = agent_class()
        if __name__ == "__main__":
            PolarAgent.run_webserver()

    Its config has `polar` with the fields of a `BridgeConfig`, and `several_traces`."""
    agents = load("nemo_gym.base_responses_api_agent", INSTALL)
    resources = load("nemo_gym.base_resources_server", INSTALL)
    open_model = {"model_config": ConfigDict(extra="allow"), "__module__": __name__}
    request_type = type("PolarRunRequest", (resources.BaseRunRequest,), open_model)
    answer_type = type("PolarVerifyResponse", (resources.BaseVerifyResponse,), open_model)

    class PolarAgentConfig(agents.BaseResponsesAPIAgentConfig):
        polar: dict[str, Any] = {}
        several_traces: SeveralTraces = "main"

    async def run(self: Any, body: Any) -> Any:
        config = BridgeConfig.model_validate(self.config.polar)
        asked = body.model_dump(mode="json", exclude_unset=True)
        try:
            async with config.client() as client:
                answer = await run_request(client, config, asked, self.config.several_traces)
        except PolarError as error:
            answer = {**failed_answer(asked["responses_create_params"], "server"), "error": str(error)}
        return answer_type.model_validate(answer)

    async def responses(self: Any) -> Any:
        raise NotImplementedError("a session of Polar is a whole run: POST /run")

    # FastAPI reads the types of the routes from these.
    run.__annotations__ = {"body": request_type, "return": answer_type}
    responses.__annotations__ = {}
    fields = {"config": PolarAgentConfig}
    return type(
        "PolarAgent",
        (agents.SimpleResponsesAPIAgent,),
        {"__annotations__": fields, "run": run, "responses": responses, "__module__": __name__},
    )


class TokenSource:
    """Captured tokens by Gym's rollout id, as `TokenSource` of `nemo_gym.token_id_capture`: for NeMo RL with
    `token_id_capture.rebuild_response: false`. Polar has captured them, so no sink is needed."""

    def __init__(
        self,
        config: BridgeConfig,
        connect: Callable[[], AbstractAsyncContextManager[GroupClient]] | None = None,
    ) -> None:
        self._config = config
        self._connect = connect or config.client

    async def freeze(self, rollout_id: str) -> Any:
        """A session at its end never changes, so every snapshot is frozen. `incomplete`: do not train on it."""
        capture = load("nemo_gym.token_id_capture", INSTALL)
        async with self._connect() as client:
            task_id = (await client.group(rollout_id)).task_ids[-1]
            upload = await client.upload(f"{task_id}-0")
        result = SessionResult.model_validate_json(upload.result)
        group = Group(rollout_id, (FinishedSession(result, upload.trajectory),))
        (session,) = sessions_of(group, self._config)
        calls = {call.call_id: call for call in upload.calls}
        entries = tuple(
            capture.TokenEntry(
                rollout_id=rollout_id,
                model_call_id=link.call_id,
                prompt_token_ids=link.prompt_ids,
                generation_token_ids=link.generation_ids,
                generation_log_probs=link.logprobs,
                output_items=(items := reply_items(calls[link.call_id])),
                token_item_index=len(items) - 1,
                created_at=calls[link.call_id].times.sampled,
            )
            for link in chain_of(session)
        )
        return capture.TokenCaptureSnapshot(
            rollout_id=rollout_id,
            entries=entries,
            incomplete=not entries,
            snapshot_id=result.session_id,
            version=result.attempt,
        )

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        """Polar keeps its sessions."""
        return True

    async def close(self) -> None: ...
