"""POSTRUN: whether a session's data can be relied on, from its calls, its certificate and the harness's own log.

`health_of` is a function of these alone, so a stored session can be examined again. It never fails a session.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import cast

import msgspec

from polar import registry
from polar.errors import SessionError
from polar.harnesses.base import LoggingHarness
from polar.session.files.keep import HARNESS_HOME
from polar.session.live import LiveSession
from polar.session.plugins import call, expect
from polar.types import (
    Call,
    Certificate,
    HarnessUsage,
    Health,
    HealthFinding,
    HealthProblem,
    Spec,
    verdict_of,
)

LOGGER = logging.getLogger("polar.session")
LOOP_LENGTH = 3
"""The same tool call so often in a row is a loop."""
FEWEST_RESULTS = 4
"""With fewer tool results, a large share of errors says nothing."""
READ_S = 30.0
"""How long reading the harness's log may take."""
SHOWN_CHARS = 300


class HealthFacts(msgspec.Struct, frozen=True):
    """What the health of a session is made of."""

    calls: Sequence[Call] = ()
    """All captured calls, oldest first."""
    certificate: Certificate | None = None
    own: HarnessUsage | None = None
    """None: the harness keeps no log of its usage, or none was kept."""
    own_problem: str = ""
    """Why its log could not be read."""
    ended_itself: bool = True
    """False: the harness was killed, and may have had no time to write its last reply down."""
    refusals: int = 0
    """Requests that the gateway answered with an error."""
    ended_by: str = ""
    """Name of the exhausted budget that ended it."""


def health_of(facts: HealthFacts) -> Health:
    received = [each for each in facts.calls if each.received and each.finish_reason != "aborted"]
    checks: tuple[Callable[[HealthFacts], Iterable[HealthFinding]], ...] = (
        _capture,
        _own_log,
        _refusals,
        _tools,
        _loops,
        _truncation,
        _budget,
    )
    findings = tuple(finding for check in checks for finding in check(facts))
    return Health(
        verdict=verdict_of(findings),
        findings=findings,
        calls=len(received),
        own_calls=None if facts.own is None else _counted_by(facts.own).total(),
    )


def _finding(what: HealthProblem, count: int, detail: str) -> HealthFinding:
    return HealthFinding(what=what, count=count, detail=detail[:SHOWN_CHARS])


def _capture(facts: HealthFacts) -> Iterable[HealthFinding]:
    certificate = facts.certificate
    if certificate is None:
        if facts.calls:
            yield _finding("capture_missing", len(facts.calls), "calls were captured and no traces were built")
    elif not certificate.exact:
        reasons = ", ".join(f"{reason} {count}" for reason, count in certificate.reasons.items())
        inexact = certificate.inexact_traces
        yield _finding("capture_inexact", max(1, certificate.findings + inexact), reasons or f"{inexact} traces")


def _own_log(facts: HealthFacts) -> Iterable[HealthFinding]:
    """Each reply in its log must be a call of ours with the same numbers of tokens, and each of the agent's calls
    must be in its log. Calls of other kinds need not: harnesses do not log all of those."""
    if facts.own_problem:
        yield _finding("own_log_unreadable", 1, facts.own_problem)
    if facts.own is None:
        return
    ended = [each for each in facts.calls if each.finish_reason != "aborted"]
    if any(_counted(each) is None for each in ended):  # an endpoint that does not report them
        return
    theirs = _counted_by(facts.own)
    captured = _counts(ended)
    more = theirs - captured
    for prompt, completion in list(more):
        if any(_is_half_of(each, prompt, completion) for each in facts.calls):
            del more[prompt, completion]
    if shared := Counter({pair: count for pair, count in more.items() if pair in captured}):
        yield _finding(
            "reply_shared", shared.total(), f"its log has {_shown(shared)} more often than we captured it"
        )
    if unknown := more - shared:
        yield _finding("not_captured", unknown.total(), f"its log has {_shown(unknown)}, which we did not capture")
    missing = _counts(each for each in ended if each.kind == "agent" and each.received) - theirs
    if facts.ended_itself and missing:
        yield _finding("not_in_own_log", missing.total(), f"we captured {_shown(missing)}, which its log lacks")


def _counted_by(own: HarnessUsage) -> Counter[tuple[int, int]]:
    """Without messages that the gateway wrote itself at the end of a budget: these have no tokens."""
    pairs = ((reply.prompt_tokens, reply.completion_tokens) for reply in own.replies)
    return Counter(pair for pair in pairs if any(pair))


def _is_half_of(each: Call, prompt: int, completion: int) -> bool:
    """Whether a harness may have written this down of a reply that broke off."""
    return (
        each.finish_reason == "aborted" and each.prompt_tokens == prompt and completion <= len(each.completion_ids)
    )


def _counts(calls: Iterable[Call]) -> Counter[tuple[int, int]]:
    return Counter(pair for pair in map(_counted, calls) if pair is not None)


def _counted(each: Call) -> tuple[int, int] | None:
    """The tokens as the harness was told them. None: it was told none."""
    if each.usage is None:
        return each.prompt_tokens, len(each.completion_ids)
    prompt, completion = each.usage.prompt_tokens, each.usage.completion_tokens
    return None if prompt is None or completion is None else (prompt, completion)


def _shown(counts: Counter[tuple[int, int]]) -> str:
    shown = [f"{prompt} + {completion} tokens" for prompt, completion in counts.elements()]
    return ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")


def _refusals(facts: HealthFacts) -> Iterable[HealthFinding]:
    if facts.refusals:
        yield _finding("calls_refused", facts.refusals, "requests that the gateway answered with an error")


def _tools(facts: HealthFacts) -> Iterable[HealthFinding]:
    """By the field of the harness's own dialect, never by the text of a result."""
    failed: dict[tuple[str, str], bool] = {}
    for each in facts.calls:
        for message in each.new_messages:
            if message.role == "tool":  # the same result may come again, after a history was rewritten
                failed[message.tool_call_id, message.content] = message.is_error
    errors = sum(failed.values())
    if not errors:
        return
    often = len(failed) >= FEWEST_RESULTS and 2 * errors >= len(failed)
    yield _finding("tools_failing" if often else "tool_errors", errors, f"{errors} of {len(failed)} tool results")


def _loops(facts: HealthFacts) -> Iterable[HealthFinding]:
    """The same tool with the same arguments several times in a row."""
    asked = [
        (tool.name, tool.arguments)
        for each in facts.calls
        if each.kind == "agent" and each.finish_reason != "aborted"
        for tool in each.response.tool_calls
    ]
    runs = [(tool, len(list(group))) for tool, group in groupby(asked)]
    if loops := [(tool, length) for tool, length in runs if length >= LOOP_LENGTH]:
        (name, arguments), length = max(loops, key=lambda run: run[1])
        yield _finding("tool_loop", len(loops), f"{length} times in a row: {name} {arguments}")


def _truncation(facts: HealthFacts) -> Iterable[HealthFinding]:
    if cut := sum(each.finish_reason == "length" for each in facts.calls):
        yield _finding("truncated", cut, "replies that a limit cut off")


def _budget(facts: HealthFacts) -> Iterable[HealthFinding]:
    if facts.ended_by:
        yield _finding("budget_end", 1, facts.ended_by)


def own_usage(spec: Spec, logs: Path) -> HarnessUsage | None:
    """What the harness's own log counts; None: the harness or its log says nothing. It is a plug-in, and the agent
    could write to the log: any error may come."""
    harness = registry.make("harness", spec)
    if not hasattr(harness, "usage_of") or not logs.is_dir():
        return None
    found = cast("LoggingHarness", harness).usage_of(logs)
    return None if found is None else expect(HarnessUsage, found, f"harness {spec.name!r}: usage_of()")


async def examine_health(live: LiveSession) -> None:
    """Leaves a note in the log if it cannot be done, and never fails the session."""
    if live.slot is None:
        return
    try:
        own, problem = await _own_of(live)
        outcome = live.services.slots.outcome(live.session_id)
        facts = HealthFacts(
            calls=live.calls,
            certificate=live.certificate,
            own=own,
            own_problem=problem,
            ended_itself=live.outcome.exit_code is not None,
            refusals=outcome.refusals,
            ended_by=outcome.exhausted,
        )
        live.health = await asyncio.to_thread(health_of, facts)
    except Exception:
        extra = {"session_id": live.session_id}
        LOGGER.exception("session %s: its health cannot be examined", live.session_id, extra=extra)


async def _own_of(live: LiveSession) -> tuple[HarnessUsage | None, str]:
    home = f"logs/{HARNESS_HOME}"
    if cut := next((line for line in live.left_out if line.startswith(home)), ""):
        return None, f"not all of it was kept: {cut}"
    try:
        async with asyncio.timeout(READ_S):
            return await call("harness", own_usage, live.task.harness, live.paths.logs / HARNESS_HOME), ""
    except TimeoutError:
        return None, f"not read within {READ_S:g} s"
    except SessionError as error:
        return None, f"{error.failure.type}: {error.failure.message}"
