"""`sft`: conversations in chat form, for supervised fine-tuning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from polar.data.export.chat import (
    Conversation,
    conversation_of,
    conversations_of,
    openai_messages,
    openai_tools,
)
from polar.data.export.plan import ExportPlan
from polar.data.export.selection import ChosenSession


def sft_rows(chosen: ChosenSession, plan: ExportPlan) -> Iterator[dict[str, Any]]:
    """One for each branch of the conversation."""
    calls = {call.call_id: call for call in chosen.session.calls}
    if not chosen.traces:
        for conversation in conversations_of(calls):
            labels = {"kind": conversation.turns[-1].call.kind, "reward": chosen.session.result.reward}
            yield _row(chosen, conversation, plan) | labels
    for item in chosen.traces:
        labels = {"kind": item.trace.kind, "reward": item.reward}
        yield _row(chosen, conversation_of(item.trace, calls), plan) | labels


def _row(chosen: ChosenSession, conversation: Conversation, plan: ExportPlan) -> dict[str, Any]:
    return {
        "messages": openai_messages(conversation, object_arguments=plan.object_arguments),
        "tools": openai_tools(conversation.tools),
        "session_id": chosen.session_id,
        "task_id": chosen.session.result.task_id,
    }
