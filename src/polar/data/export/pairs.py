"""Preference pairs: two sessions of a group with the same first prompt and different rewards.

A session is in at most one pair: the best goes with the worst, the second best with the second worst, and so on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from polar.data.export.chat import conversation_of, openai_messages, openai_tools
from polar.data.export.plan import ExportPlan
from polar.data.export.selection import ChosenSession, ChosenTrace, LeftOut
from polar.data.export.tokens import response_labels
from polar.types import Trace

PAIR_TOKEN_COLUMNS = (
    *("prompt_ids", "chosen_ids", "chosen_labels", "rejected_ids", "rejected_labels"),
    *("chosen_reward", "rejected_reward", "chosen_session_id", "rejected_session_id", "task_id", "group_id"),
)


class Side(NamedTuple):
    """A session that may stand in a pair."""

    session: ChosenSession
    item: ChosenTrace
    reward: float

    @property
    def trace(self) -> Trace:
        return self.item.trace


def pair_rows(chosen: Sequence[ChosenSession], plan: ExportPlan, left_out: LeftOut) -> Iterator[dict[str, Any]]:
    """The pairs of one group."""
    if not chosen:
        return
    sides = [side for session in chosen if (side := _side(session, left_out)) is not None]
    by_prompt: dict[bytes, list[Side]] = {}
    for side in sides:
        by_prompt.setdefault(side.trace.prompt_ids.tobytes(), []).append(side)
    made = 0
    for alike in by_prompt.values():
        for better, worse in matched(alike):
            made += 1
            if plan.min_reward is not None and better.reward < plan.min_reward:
                left_out.pairs["below_min_reward"] += 1
                continue
            yield _token_pair(better, worse) if plan.to == "tokens" else _chat_pair(better, worse, plan)
    if not made and len(by_prompt) > 1 and _contrast(sides):
        left_out.pairs["first_prompt_differs"] += 1
    elif not made:
        left_out.pairs["no_contrast"] += 1


def matched(sides: Sequence[Side]) -> Iterator[tuple[Side, Side]]:
    """The best with the worst, as long as their rewards differ."""
    order = sorted(sides, key=lambda side: -side.reward)
    for better, worse in zip(order[: len(order) // 2], reversed(order), strict=False):
        if better.reward > worse.reward:
            yield better, worse


def _contrast(sides: Sequence[Side]) -> bool:
    return len({side.reward for side in sides}) > 1


def _side(session: ChosenSession, left_out: LeftOut) -> Side | None:
    """None if one trace is not the whole way of its agent to the reward."""
    agent = [item for item in session.traces if item.trace.kind == "agent"]
    if len(agent) != 1:
        left_out.pairs["several_agent_traces" if agent else "no_agent_trace"] += 1
        return None
    reward = session.session.result.reward
    if reward is None:
        left_out.pairs["no_reward"] += 1
        return None
    return Side(session, agent[0], reward)


def _labels(better: Side, worse: Side) -> dict[str, Any]:
    return {
        "chosen_reward": better.reward,
        "rejected_reward": worse.reward,
        "chosen_session_id": better.session.session_id,
        "rejected_session_id": worse.session.session_id,
        "task_id": better.session.session.result.task_id,
        "group_id": better.session.group_id,
    }


def _token_pair(better: Side, worse: Side) -> dict[str, Any]:
    return {
        "prompt_ids": better.trace.prompt_ids.tolist(),
        "chosen_ids": better.trace.response_ids.tolist(),
        "chosen_labels": response_labels(better.trace),
        "rejected_ids": worse.trace.response_ids.tolist(),
        "rejected_labels": response_labels(worse.trace),
        **_labels(better, worse),
    }


def _chat_pair(better: Side, worse: Side, plan: ExportPlan) -> dict[str, Any]:
    prompt, chosen, tools = _split(better, plan)
    _, rejected, _ = _split(worse, plan)
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected, "tools": tools, **_labels(better, worse)}


def _split(side: Side, plan: ExportPlan) -> tuple[list[Any], list[Any], list[Any]]:
    """Messages before the first reply of the trace, those from it on, and the tools."""
    calls = {call.call_id: call for call in side.session.session.calls}
    conversation = conversation_of(side.trace, calls)
    messages = openai_messages(conversation, object_arguments=plan.object_arguments)
    first_call = side.trace.spans[0].call_id
    replies = (turn.is_reply and turn.call.call_id == first_call for turn in conversation.turns)
    first = next((position for position, found in enumerate(replies) if found), len(messages))
    return messages[:first], messages[first:], openai_tools(conversation.tools)
