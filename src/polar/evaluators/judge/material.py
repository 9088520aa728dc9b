"""What the judge sees of a session, as texts within a limit. What is left out is marked in its place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from polar.errors import EvaluatorError
from polar.evaluators.base import Evidence
from polar.evaluators.judge.options import JudgeOptions
from polar.types import Call, Message

LEAST_CHARS = 400
"""Of one call, however many there are."""


class Exhibit(NamedTuple):
    """One part of what the judge sees."""

    name: str
    text: str


class Material(NamedTuple):
    exhibits: tuple[Exhibit, ...]
    calls: tuple[str, ...] = ()
    """Ids of the calls that are scored one by one, in the order of their numbers; empty: the session is."""


def material_of(evidence: Evidence, options: JudgeOptions) -> Material:
    """Raises `EvaluatorError` if the session has nothing of what the judge is to see."""
    by_call = options.per == "call"
    calls = tuple(call for call in evidence.calls if call.kind == "agent") if by_call else ()
    if by_call and not calls:
        raise EvaluatorError("the judge is to score the agent's calls, and there are none")
    shown = [Exhibit("instruction", shortened(evidence.task.instruction, options.cap_chars))]
    for name in dict.fromkeys(options.sees):
        match name:
            case "transcript" if by_call:
                text = _numbered(calls, options.cap_chars)
            case "transcript":
                text = shortened("\n\n".join(map(_told, evidence.transcript)), options.cap_chars)
            case "answer":
                text = shortened(evidence.answer, options.cap_chars)
            case "patch":
                text = shortened(_patch(evidence.patch), options.cap_chars)
            case "output":
                text = _output(evidence, options.cap_chars)
        shown.append(Exhibit(name, text))
    return Material(tuple(shown), tuple(call.call_id for call in calls))


def shortened(text: str, limit: int) -> str:
    """Its beginning and its end, and between them how much is missing."""
    if len(text) <= limit:
        return text
    head, tail = limit // 3, limit - limit // 3
    return f"{text[:head]}\n[... {len(text) - limit} characters left out here ...]\n{text[-tail:]}"


def _numbered(calls: Sequence[Call], limit: int) -> str:
    """Each call with what it saw first, and the agent's reply."""
    share = max(LEAST_CHARS, limit // len(calls))
    return "\n\n".join(
        f"=== call {number} ===\n{shortened(_one_call(call), share)}" for number, call in enumerate(calls, start=1)
    )


def _one_call(call: Call) -> str:
    # The parent's reply comes first among the new messages, and was shown as such.
    new = call.new_messages[1:] if call.parent_id and call.new_messages else call.new_messages
    return "\n\n".join([*map(_told, new), f"reply of the agent:\n{_told(call.response)}"])


def _told(message: Message) -> str:
    lines = [f"[{message.role}{' error' if message.is_error else ''}]"]
    if message.reasoning:
        lines.append(f"(thinking) {message.reasoning}")
    if message.content:
        lines.append(message.content)
    lines += [f"(calls {call.name} with {call.arguments})" for call in message.tool_calls]
    lines += ["(an image)"] * len(message.images)
    return "\n".join(lines)


def _patch(path: Path | None) -> str:
    if path is None:
        raise EvaluatorError(
            "the judge is to see the patch, and there is none: set keep.patch, or see left_out of the result"
        )
    return path.read_text(encoding="utf-8", errors="replace") or "(the workspace is unchanged)"


def _output(evidence: Evidence, limit: int) -> str:
    output = evidence.output
    parts: Iterable[tuple[str, str]] = (("stdout", output.stdout_tail), ("stderr", output.stderr_tail))
    told = [f"{name}, its end:\n{text}" for name, text in parts if text.strip()]
    return shortened("\n\n".join(told) or "(the harness printed nothing)", limit)
