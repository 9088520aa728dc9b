"""Makes the page of a session: calls, tokens with what became of each, and the proof of `polar.audit`."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from polar import __version__
from polar.audit.run import SessionAudit
from polar.dashboard.forks import Relation, Relations
from polar.dashboard.material import PageMaterial
from polar.dashboard.page import (
    PackedTokens,
    PageCall,
    PageFile,
    PageMessage,
    PageProof,
    SessionPage,
    TokenKind,
)
from polar.dashboard.spelled import SpelledTokens
from polar.dashboard.spelling import Spelling
from polar.tokens.chains import chains_of
from polar.types import Call, Message, SessionFile, Trajectory

PATCH = "patch.diff"
MISSING_TRACES = Trajectory(session_id="", builder="")


def page_of(material: PageMaterial, spell: Spelling, note: str = "") -> SessionPage:
    """Slow with a long session: call it in a thread. `note` stands at the head of the page."""
    calls = _Calls(material.calls, material.trajectory or MISSING_TRACES, spell)
    session, result = material.lease.session, material.result
    return SessionPage(
        session_id=session.session_id,
        run_id=material.run_id,
        made_by=__version__,
        task=material.lease.task.model_dump(mode="json"),
        stage=session.stage.value,
        attempt=session.attempt,
        stages=[(stage.value, at) for stage, at in material.stages],
        result=None if result is None else result.model_dump(mode="json"),
        reward=None if result is None else result.reward,
        proof=proof_of(material.audit),
        calls=calls.pages,
        tokens=calls.packed(),
        files=[_file(each) for each in material.files],
        note=note,
    )


def proof_of(audit: SessionAudit) -> PageProof:
    findings = [str(each) for each in audit.findings]
    made = audit.certificate
    if findings:
        return PageProof("wrong", f"{len(findings)} findings: calls, traces and result do not agree", findings)
    if made is None:
        return PageProof("none", audit.note or "there are no traces to prove", [])
    if not made.exact:
        return PageProof("inexact", f"{made.inexact_traces} traces are marked as not exact", [])
    summary = f"every one of {made.sampled_tokens} sampled tokens stands once, in the context it was sampled in"
    return PageProof("exact", f"{summary}; {audit.note}" if audit.note else summary, [])


class _Calls:
    """The calls of one session as pages, and their tokens, collected in one pass."""

    def __init__(self, calls: Sequence[Call], trajectory: Trajectory, spell: Spelling) -> None:
        self._calls = calls
        self._numbers = {call.call_id: index + 1 for index, call in enumerate(calls)}
        self._kinds = _kinds_of(calls, trajectory)
        self._drops = defaultdict[str, list[tuple[int, int, str]]](list)
        for drop in trajectory.dropped:
            self._drops[drop.call_id].append((drop.start, drop.length, drop.reason))
        self._places = {
            span.call_id: (index, span.start)
            for index, trace in reversed(list(enumerate(trajectory.traces)))
            for span in trace.spans
        }
        self._spelled = SpelledTokens(spell)
        self._words, self._all_kinds, self._logprobs = array("I"), bytearray(), array("f")
        self._chains = {
            call.call_id: number for number, chain in enumerate(chains_of(calls)) for call in chain.calls
        }
        reasons = {each.call_id: each.reason for each in trajectory.breaks}
        relations = Relations(calls, reasons, spell)
        self.pages = [self._page(index, call, relations.of(index)) for index, call in enumerate(calls)]

    def packed(self) -> PackedTokens:
        return PackedTokens(
            vocabulary=self._spelled.texts,
            vocabulary_ids=self._spelled.ids.tobytes(),
            words=self._words.tobytes(),
            kinds=bytes(self._all_kinds),
            logprobs=self._logprobs.tobytes(),
        )

    def _page(self, index: int, call: Call, relation: Relation) -> PageCall:
        start = len(self._words)
        self._words.extend(self._spelled.words(relation.own_prompt_ids))
        self._words.extend(self._spelled.words(call.completion_ids))
        self._all_kinds += bytes(len(relation.own_prompt_ids)) + self._kinds[call.call_id]
        self._logprobs.extend(call.logprobs)
        trace, trace_start = self._places.get(call.call_id, (None, 0))
        parent = self._numbers.get(call.parent_id or "")
        return PageCall(
            call_id=call.call_id,
            number=index + 1,
            kind=call.kind,
            parent=parent,
            continues=call.continues,
            chain=self._chains[call.call_id],
            trace=trace,
            trace_start=trace_start,
            base=None if relation.base is None else relation.base + 1,
            common=relation.common,
            start=start,
            prompt=len(relation.own_prompt_ids),
            sampled=len(call.completion_ids),
            prompt_tokens=call.prompt_tokens,
            messages=self._messages(call, parent),
            reply=_message(call.response),
            finish_reason=call.finish_reason,
            fork=relation.fork,
            drops=self._drops[call.call_id],
            policy=[(span.start, span.length, span.version) for span in call.policy_spans]
            or [(0, len(call.completion_ids), call.policy_version)],
            times=(call.times.arrived, call.times.rendered, call.times.sampled),
            notes=_notes(call),
            raw=_raw(call),
        )

    def _messages(self, call: Call, parent: int | None) -> list[PageMessage]:
        shown = [_message(each) for each in call.new_messages]
        if call.echo is None or parent is None:
            return shown
        same = shown[0] == _message(self._calls[parent - 1].response)
        return [msgspec.structs.replace(shown[0], echo="same" if same else "changed"), *shown[1:]]


def _kinds_of(calls: Sequence[Call], trajectory: Trajectory) -> dict[str, bytearray]:
    """The kind of every sampled token, by call."""
    kinds = {call.call_id: bytearray([TokenKind.UNPLACED]) * len(call.completion_ids) for call in calls}
    for drop in trajectory.dropped:
        of_call = kinds.get(drop.call_id, bytearray())
        for position in range(max(drop.start, 0), min(drop.start + drop.length, len(of_call))):
            of_call[position] = TokenKind.DROPPED
    for trace in trajectory.traces:
        for span in trace.spans:
            of_call = kinds.get(span.call_id, bytearray())
            for position, trained in enumerate(trace.loss_mask[span.start : span.start + span.length]):
                if trained and position < len(of_call):
                    of_call[position] = TokenKind.TRAINED
    return kinds


def _message(message: Message) -> PageMessage:
    return PageMessage(
        role=message.role,
        content=message.content,
        reasoning=message.reasoning,
        tool_calls=[(call.name, call.arguments, call.call_id) for call in message.tool_calls],
        tool_call_id=message.tool_call_id,
        images=[_image(each.url) for each in message.images],
        is_error=message.is_error,
    )


def _image(url: str) -> str:
    """An image may be megabytes, and an address may be anybody's."""
    head, comma, data = url.partition(",")
    return f"{head}, {len(data)} characters" if head.startswith("data:") and comma else url


def _file(file: SessionFile) -> PageFile:
    """An artefact may be anything, so only the texts of logs and of the patch are shown."""
    readable = file.path.startswith("logs/") or file.path == PATCH
    text = file.content.decode(errors="replace") if readable else ""
    return PageFile(file.path, file.size_bytes, text, cut=readable and len(file.content) < file.size_bytes)


def _notes(call: Call) -> list[str]:
    notes = [*call.tolerant]
    notes += [] if call.received else ["not received by the harness"]
    notes += [f"{call.cut_tokens} more tokens cut off after the end"] if call.cut_tokens else []
    notes += [f"{call.lone_surrogates} lone surrogates as U+FFFD"] if call.lone_surrogates else []
    notes += ["the policy was updated while it was sampled"] if call.updated_within else []
    if call.drift is not None:
        notes.append(f"{call.drift.kind} at token {call.drift.position} of its parent")
    return notes


def _raw(call: Call) -> dict[str, Any]:
    """All but the messages, which the page has already."""
    request = {
        "dialect": call.dialect,
        "sampling": call.sampling,
        "tools": None if call.tools is None else [msgspec.to_builtins(tool) for tool in call.tools],
        "items_as_in_parent": call.shared_items,
        "digests_of_new_items": [item.hex() for item in call.new_items],
        "prompt_digest": call.prompt_digest.hex(),
    }
    reply = {
        "finish_reason": call.finish_reason,
        "engine": call.engine,
        "logprob_mode": call.logprob_mode,
        "evaluated_tokens": call.evaluated_tokens,
        "usage": None if call.usage is None else msgspec.to_builtins(call.usage),
    }
    return {"request": request, "reply": reply}
