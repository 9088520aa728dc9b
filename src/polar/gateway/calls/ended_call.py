"""What those who watch a node learn of a model call that has ended."""

from __future__ import annotations

import time

from polar.gateway.calls.model_call import ModelCall
from polar.types import CallOutcome, EndedCall


def ended_call(call: ModelCall, engine: str) -> EndedCall:
    reply, wait, session = call.reply, call.wait, call.slot.lease.session
    reported = 0 if call.usage is None else call.usage.completion_tokens or 0
    return EndedCall(
        session_id=session.session_id,
        attempt=session.attempt,
        dialect=call.dialect,
        kind=call.kind,
        outcome=_outcome(call),
        arrived=call.arrived,
        ended=time.time(),
        call_id="" if reply is None else reply.reply_id,
        problem="" if call.problem is None else call.problem.code,
        first_token_s=None if wait.first_s is None else wait.first_s - wait.arrived_s,
        call_s=None if wait.first_s is None else wait.heard_s - wait.arrived_s,
        prompt_tokens=0 if reply is None else reply.prompt_tokens,
        evaluated_tokens=call.evaluated_tokens,
        sampled_tokens=call.given or reported,
        finish_reason=_finish_reason(call),
        policy_version=call.versions.first,
        policy_updates=call.versions.start_updates,
        engine=engine,
    )


def _outcome(call: ModelCall) -> CallOutcome:
    if call.problem is not None:
        return "refused" if call.problem.failure is None else "failed"
    return "answered" if call.reply is not None and call.reply.captured else "final_message"


def _finish_reason(call: ModelCall) -> str:
    if call.reply is not None and call.problem is None:
        return call.reply.finish_reason
    return "aborted" if call.given else ""
