"""`atif`: ATIF-v1.8 documents of a session.

The first trace of the agent is the session's document. A later one, after the harness rewrote its history, is a
document of its own that the one before names as its continuation. Every other trace is embedded: sub-agents,
summaries, and branches that ran beside the agent's last one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from polar.data.export.atif_steps import Steps, refer, totals
from polar.data.export.chat import Conversation, conversation_of, openai_tools
from polar.data.export.plan import ExportPlan
from polar.data.export.selection import ChosenSession, ChosenTrace

SCHEMA = "ATIF-v1.8"


class _Document:
    """One trace as a document."""

    def __init__(self, chosen: ChosenSession, item: ChosenTrace, conversation: Conversation) -> None:
        self.kind = item.trace.kind
        self.steps = Steps(item.trace, conversation)
        ends = [end for end, _ in self.steps.ends]
        calls = {span.call_id for span in item.trace.spans}
        own = [turn.call for turn in conversation.turns if turn.call.call_id in calls]
        self.began = min((call.times.arrived for call in own), default=0.0)
        self.ended = max(ends, default=self.began)
        self.trajectory_id = f"{chosen.session_id}.trace-{item.number}"
        self.embedded: list[_Document] = []
        self.value: dict[str, Any] = {
            "schema_version": SCHEMA,
            "session_id": chosen.session_id,
            "trajectory_id": self.trajectory_id,
            "agent": _agent(chosen, conversation),
            "steps": self.steps.made,
            "final_metrics": totals(self.steps.made),
            "extra": _extra(chosen, item),
        }

    def embed(self, other: _Document) -> None:
        """With a reference from the last step before the other began."""
        self.embedded.append(other)
        before = [step for end, step in self.steps.ends if end <= other.began]
        if before:
            refer(before[-1], other.trajectory_id, other.kind)

    def finished(self) -> dict[str, Any]:
        if self.embedded:
            self.value["subagent_trajectories"] = [each.finished() for each in self.embedded]
        return self.value


def atif_documents(chosen: ChosenSession, _: ExportPlan) -> Iterator[dict[str, Any]]:
    """Each with the name of its file."""
    calls = {call.call_id: call for call in chosen.session.calls}
    made = [_Document(chosen, item, conversation_of(item.trace, calls)) for item in chosen.traces]
    documents = _arranged(made)
    names = [f"{chosen.session_id}{f'.{number}' if number else ''}.json" for number in range(len(documents))]
    for document, following in zip(documents, [*names[1:], None], strict=True):
        if following is not None:
            document.value["continued_trajectory_ref"] = following
    for name, document in zip(names, documents, strict=True):
        yield {"name": name, "value": document.finished()}


def _arranged(made: list[_Document]) -> list[_Document]:
    """The documents of the agent in order, with all others embedded in the one that was the latest when they
    began."""
    main = _agents(made)
    for other in made:
        if other not in main:
            earlier = [each for each in main if each.began <= other.began]
            (earlier[-1] if earlier else main[0]).embed(other)
    return main


def _agents(made: list[_Document]) -> list[_Document]:
    """The agent's traces, each of which began after the one before had ended. Without any, the first of all."""
    main: list[_Document] = []
    for each in sorted(made, key=lambda each: each.began):
        if each.kind == "agent" and (not main or each.began >= main[-1].ended):
            main.append(each)
    return main or made[:1]


def _agent(chosen: ChosenSession, conversation: Conversation) -> dict[str, Any]:
    versions = chosen.session.result.versions
    return {
        "name": chosen.session.task.harness.name,
        "version": versions.get("harness", "unknown"),
        "model_name": versions.get("model", "unknown"),
        "tool_definitions": openai_tools(conversation.tools),
        "extra": {name: value for name, value in versions.items() if name not in ("harness", "model")},
    }


def _extra(chosen: ChosenSession, item: ChosenTrace) -> dict[str, Any]:
    result = chosen.session.result
    trajectory = chosen.session.trajectory
    return {
        "task_id": result.task_id,
        "group_id": chosen.group_id,
        "sample": result.index,
        "attempt": result.attempt,
        "kind": item.trace.kind,
        "reward": item.reward,
        "advantage": item.advantage,
        "context_exact": item.trace.context_exact,
        "trainable": result.trainable,
        "failure": item.trace.failure,
        "dropped_tokens": sum(drop.length for drop in trajectory.dropped) if trajectory else 0,
    }
