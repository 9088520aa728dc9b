"""`sft`: conversations in chat form, for supervised fine-tuning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from polar.data.export.chat import conversation_of, openai_messages, openai_tools
from polar.data.export.plan import ExportPlan
from polar.data.export.selection import ChosenSession


def sft_rows(chosen: ChosenSession, plan: ExportPlan) -> Iterator[dict[str, Any]]:
    """One for each branch of the conversation."""
    calls = {call.call_id: call for call in chosen.session.calls}
    for item in chosen.traces:
        conversation = conversation_of(item.trace, calls)
        yield {
            "messages": openai_messages(conversation, object_arguments=plan.object_arguments),
            "tools": openai_tools(conversation.tools),
            "session_id": chosen.session_id,
            "task_id": chosen.session.result.task_id,
            "kind": item.trace.kind,
            "reward": item.reward,
        }
