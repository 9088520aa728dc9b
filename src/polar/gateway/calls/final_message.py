"""The last message of a session whose budget is used up, where its task wants one in place of a refusal.

A harness takes it for the model's last word and ends as it does after any finished task. Nobody sampled it: it is
no call, stands in no journal and no trace, and its id ends in `final`.
"""

from __future__ import annotations

import logging

from polar.gateway.calls.generation import Generation
from polar.gateway.dialects.base import Problem, Reply, ReplyHead
from polar.gateway.slots import OpenSlot
from polar.tokens.replies.reply_text import message_of
from polar.types import Delta

LOGGER = logging.getLogger("polar.gateway")
MOST_FINAL_MESSAGES = 16
"""Of one session: some harnesses have several agents to end, and one that never ends is refused at last."""
BUDGET_EXHAUSTED = "budget_exhausted"


def final_reply(slot: OpenSlot, generation: Generation, refusal: Problem, model: str) -> Reply | None:
    """What answers a request in place of a refusal, and is told to everyone who listens; None where the refusal
    stands. A reply that has to follow a schema cannot be a plain message."""
    budgets, request = slot.lease.task.budgets, generation.asked.request
    if refusal.code != BUDGET_EXHAUSTED or budgets.on_exhausted != "final_message" or request.json_schema:
        return None
    if slot.final_messages >= MOST_FINAL_MESSAGES:
        return None
    slot.final_messages += 1
    LOGGER.info("session %s gets a final message: %s is used up", slot.session_id, slot.refused_for)
    session = slot.lease.session
    reply_id = f"{session.session_id}.{session.attempt}.{slot.final_messages}final"
    said = (Delta(content=f"I stop here: the budget of this session is used up ({slot.refused_for})."),)
    head = ReplyHead(reply_id, int(generation.arrived), model, prompt_tokens=0)
    generation.admitted(head)
    generation.say(said)
    return Reply(
        head=head,
        message=message_of(said),
        deltas=said,
        finish_reason="stop",
        completion_tokens=0,
        cached_tokens=0,
        captured=False,
    )
