"""The last message of a session whose budget is used up, for tasks that want one instead of a refusal.

A harness takes it for the model's last message and ends as after any finished task. It was not sampled: it is not
journalled, appears in no trace, and its id ends in `final`.
"""

from __future__ import annotations

import logging

import msgspec

from polar.gateway.calls.model_call import ModelCall
from polar.gateway.dialects.base import Reply
from polar.gateway.dialects.problems import Problem
from polar.tokens.replies.reply_text import message_of
from polar.types import Delta

LOGGER = logging.getLogger("polar.gateway")
MOST_FINAL_MESSAGES = 16
"""Per session. A harness may have several agents to end; one that never ends gets refusals after these."""


def final_reply(call: ModelCall, refusal: Problem, model: str) -> Reply | None:
    """The reply in place of a refusal; None if the refusal stands. A reply that must match a schema cannot be a
    plain message."""
    slot = call.slot
    wanted = slot.lease.task.budgets.on_exhausted == "final_message" and not call.request.json_schema
    if refusal.code != "budget_exhausted" or not wanted or slot.final_messages >= MOST_FINAL_MESSAGES:
        return None
    slot.final_messages += 1
    LOGGER.info("session %s gets a final message: %s is used up", slot.session_id, slot.refused_for)
    session = slot.lease.session
    reply_id = f"{session.session_id}.{session.attempt}.{slot.final_messages}final"
    deltas = (Delta(content=f"I stop here: the budget of this session is used up ({slot.refused_for})."),)
    reply = Reply(reply_id, int(call.arrived), model, prompt_tokens=0, captured=False)
    call.admitted(reply)
    call.say(deltas)
    return msgspec.structs.replace(reply, message=message_of(deltas), deltas=deltas, finish_reason="stop")
