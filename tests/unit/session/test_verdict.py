"""The table of docs/verdicts.md, row by row: how a run ended, what it is called, and whose doing it was."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from polar.session.verdict import SILENT_S, Outcome, signal_of, verdict
from polar.types import Budgets, CallsOutcome, Failure, Refusal, Waits

AGENT, INFRASTRUCTURE = True, False
DOCS = Path(__file__).parents[3] / "docs" / "verdicts.md"


def calls(*failures: Failure, refusal: Refusal | None = None, exhausted: str = "") -> CallsOutcome:
    return CallsOutcome(failures, refusal, exhausted)


def refused(code: str, cause: Failure | None = None) -> CallsOutcome:
    return calls(refusal=Refusal(code, "no", cause))


BROKEN = Failure(where="engine", type="EngineError", message="broke off")
STALLED = Waits(engine_s=SILENT_S, silent_s=SILENT_S)

# How the run ended; type and whose doing of the failure, or None.
TABLE: list[tuple[dict[str, Any], tuple[str, bool] | None]] = [
    ({"exit_code": 0}, None),
    # its own exit
    ({"exit_code": 1}, ("HarnessExit", AGENT)),
    ({"exit_code": 1, "memory_kills": 1}, ("HarnessExit", AGENT)),
    ({"exit_code": 1, "calls": calls(exhausted="max_calls")}, None),
    ({"exit_code": 1, "calls": refused("context_length_exceeded")}, ("ContextOverflow", AGENT)),
    ({"exit_code": 0, "calls": refused("context_length_exceeded")}, None),
    # signals
    ({"exit_code": -signal.SIGSEGV}, ("HarnessCrashed", AGENT)),
    ({"exit_code": 128 + signal.SIGABRT}, ("HarnessCrashed", AGENT)),
    ({"exit_code": -signal.SIGKILL, "memory_kills": 1}, ("MemoryLimit", AGENT)),
    ({"exit_code": 128 + signal.SIGKILL, "memory_kills": 3}, ("MemoryLimit", AGENT)),
    ({"exit_code": -signal.SIGTERM, "memory_kills": 1}, ("UnknownSignal", INFRASTRUCTURE)),
    ({"exit_code": -signal.SIGKILL}, ("UnknownSignal", INFRASTRUCTURE)),
    ({"exit_code": 128 + signal.SIGKILL}, ("UnknownSignal", INFRASTRUCTURE)),
    ({"exit_code": 128 + signal.SIGHUP}, ("UnknownSignal", INFRASTRUCTURE)),
    ({"exit_code": 137, "calls": calls(exhausted="max_calls")}, ("UnknownSignal", INFRASTRUCTURE)),
    ({"exit_code": 128 + signal.SIGCHLD}, ("HarnessExit", AGENT)),
    ({"exit_code": 255}, ("HarnessExit", AGENT)),
    # time
    ({"spent": "run_s"}, ("TimedOut", AGENT)),
    ({"spent": "run_s", "waits": Waits(engine_s=500.0, silent_s=1.0)}, ("TimedOut", AGENT)),
    ({"spent": "run_s", "calls": refused("context_length_exceeded")}, ("TimedOut", AGENT)),
    ({"spent": "run_s", "waits": STALLED}, ("EngineStalled", INFRASTRUCTURE)),
    ({"spent": "run_s", "calls": refused("not_supported")}, ("RequestRefused", INFRASTRUCTURE)),
    ({"spent": "wait_s", "waits": Waits(engine_s=3600.0)}, ("EngineStalled", INFRASTRUCTURE)),
    ({"spent": "wait_s", "waits": Waits(paused_s=3600.0)}, ("PausedTooLong", INFRASTRUCTURE)),
    # calls
    ({"exit_code": 0, "calls": calls(BROKEN)}, ("EngineError", INFRASTRUCTURE)),
    ({"exit_code": 1, "calls": calls(BROKEN, exhausted="max_calls")}, ("EngineError", INFRASTRUCTURE)),
    ({"exit_code": -signal.SIGSEGV, "calls": calls(BROKEN)}, ("EngineError", INFRASTRUCTURE)),
    ({"spent": "run_s", "calls": calls(BROKEN)}, ("EngineError", INFRASTRUCTURE)),
    ({"exit_code": 1, "calls": refused("not_supported")}, ("RequestRefused", INFRASTRUCTURE)),
    ({"exit_code": 0, "calls": refused("not_renderable")}, ("RequestRefused", INFRASTRUCTURE)),
    ({"exit_code": 1, "calls": refused("gateway_error", BROKEN)}, ("EngineError", INFRASTRUCTURE)),
    ({"exit_code": 1, "calls": refused("client_gave_up")}, ("EngineStalled", INFRASTRUCTURE)),
    ({"exit_code": 0, "calls": refused("client_gave_up")}, None),
    ({"exit_code": 1, "waits": STALLED}, ("EngineStalled", INFRASTRUCTURE)),
    # what it left behind
    ({"exit_code": 0, "workspace_fault": "'a' is not a file"}, ("WorkspaceUnusable", AGENT)),
    # a model that was never asked has done nothing
    ({"exit_code": 0, "reached_model": False}, ("NoCalls", INFRASTRUCTURE)),
    ({"exit_code": 1, "reached_model": False}, ("HarnessExit", INFRASTRUCTURE)),
    ({"exit_code": -11, "reached_model": False}, ("HarnessCrashed", INFRASTRUCTURE)),
    ({"exit_code": 137, "memory_kills": 1, "reached_model": False}, ("MemoryLimit", INFRASTRUCTURE)),
    ({"spent": "run_s", "reached_model": False}, ("TimedOut", INFRASTRUCTURE)),
    (
        {"exit_code": 0, "calls": refused("not_supported"), "reached_model": False},
        ("RequestRefused", INFRASTRUCTURE),
    ),
]


@pytest.mark.parametrize(("run", "expected"), TABLE, ids=[str(run) for run, _ in TABLE])
def test_whose_doing_it_was(run: dict[str, Any], expected: tuple[str, bool] | None) -> None:
    failure = verdict(msgspec.structs.replace(Outcome(reached_model=True), **run))
    assert (failure and (failure.type, failure.agent)) == expected


def test_each_type_of_the_table_is_documented_with_whose_doing_it_is() -> None:
    types = {expected[0] for _, expected in TABLE if expected} - {"EngineError"}
    documented = dict(re.findall(r"^\| `(\w+)` \| (agent|infrastructure)", DOCS.read_text(), re.MULTILINE))
    by_agent = {expected[0] for _, expected in TABLE if expected and expected[1] is AGENT}
    assert types <= documented.keys()
    assert {name for name in types if documented[name] == "agent"} == by_agent


@pytest.mark.parametrize("number", [1, 2, 6, 9, 11, 13, 15])
def test_a_signal_is_the_same_told_as_a_negative_number_or_by_a_shell(number: int) -> None:
    assert signal_of(-number) == signal_of(128 + number) == number


@pytest.mark.parametrize("code", [None, 0, 1, 127, 128, 128 + 17, 128 + 28, 200, 255])
def test_what_is_no_signal(code: int | None) -> None:
    assert signal_of(code) == 0


def test_a_message_tells_what_the_time_went_to() -> None:
    waits = Waits(paused_s=120.0, engine_s=30.0)
    timed_out = verdict(Outcome(spent="run_s", waits=waits, reached_model=True, budgets=Budgets(run_s=60)))
    assert timed_out and "60 s" in timed_out.message and "150 s of waiting" in timed_out.message
    waited = verdict(Outcome(spent="wait_s", waits=waits, budgets=Budgets(wait_s=140)))
    assert waited and "paused for 120 s" in waited.message and "engine for 30 s" in waited.message
