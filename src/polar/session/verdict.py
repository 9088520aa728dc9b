"""Who caused a failure: from the facts of a run's end to a `Failure`, or to none. docs/verdicts.md has the table.

What the session's own processes did, or a limit of its task, is caused by the agent: the reward is 0.0. What node,
runtime, machine or engine did is infrastructure: there is no reward. The same holds for a signal whose sender is
not known. As long as no call was captured the model has done nothing, so the agent caused nothing.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Literal

import msgspec

from polar.types import Budgets, CallsOutcome, Failure, Refusal, Waits

SILENT_S = 30.0
"""An engine that gives a session's calls no token for this long has stalled."""
SHOWN_OUTPUT = 500


def _signals(names: str) -> frozenset[int]:
    return frozenset(signal.Signals[f"SIG{name}"] for name in names.split())


HARMLESS = _signals("CHLD CONT STOP TSTP TTIN TTOU URG WINCH")
"""These end no process, so 128 plus one of them is an ordinary exit code."""
OWN_FAULTS = _signals("ABRT ALRM BUS FPE ILL PIPE PROF SEGV SYS TRAP VTALRM XCPU XFSZ")
"""The kernel sends these to a process for its own actions."""
OVERFLOW, GAVE_UP = "context_length_exceeded", "client_gave_up"
"""Error codes of the gateway: no room for a reply; the harness disconnected before the first token."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended."""

    exit_code: int | None = None
    """From the runtime; None: we ended the harness, or it never started."""
    memory_kills: int = 0
    """Processes of the session that the kernel killed at the task's memory limit."""
    spent: Literal["", "run_s", "wait_s"] = ""
    """The time budget that ended the run."""
    waits: Waits = Waits()
    """At the end of the run."""
    calls: CallsOutcome = CallsOutcome()
    reached_model: bool = False
    """At least one call was captured."""
    workspace_fault: str = ""
    """What in the workspace keeps it from being judged."""
    last_output: str = ""
    """The end of the harness's output."""
    budgets: Budgets = Budgets()


def verdict(outcome: Outcome) -> Failure | None:
    """The first rule that applies decides."""
    rules: tuple[Callable[[Outcome], Failure | None], ...] = (
        _failed_calls,
        _out_of_time,
        _signalled,
        _refused,
        _exited,
        _silent_harness,
        _workspace,
    )
    return next((failure for rule in rules if (failure := rule(outcome)) is not None), None)


def signal_of(exit_code: int | None) -> int:
    """The signal that ended a process: -n, or 128 + n from a shell or a container; 0: none."""
    if exit_code is None:
        return 0
    number = -exit_code if exit_code < 0 else exit_code - 128
    is_ending = number in signal.valid_signals() and number < signal.SIGRTMIN and number not in HARMLESS
    return number if exit_code < 0 or is_ending else 0


def _failed_calls(outcome: Outcome) -> Failure | None:
    """Whatever the harness did next, it did after an error on our side."""
    return outcome.calls.failures[0] if outcome.calls.failures else None


def _out_of_time(outcome: Outcome) -> Failure | None:
    if not outcome.spent:
        return None
    waits = outcome.waits
    if outcome.spent == "wait_s":
        went = f"paused for {waits.paused_s:.0f} s, without a token from the engine for {waits.engine_s:.0f} s"
        message = f"its calls waited longer than {outcome.budgets.wait_s:g} s (budgets.wait_s): {went}"
        if waits.paused_s > waits.engine_s:
            return Failure(where="run", type="PausedTooLong", message=message)
        return Failure(where="engine", type="EngineStalled", message=message)
    if waits.silent_s >= SILENT_S:
        return _stalled(outcome, "its time was up")
    if _is_ours(outcome.calls.refusal):
        return _refusal(outcome, "its time was up")
    message = f"the harness was still running after {outcome.budgets.run_s:g} s (budgets.run_s)"
    waited = f", {waits.total_s:.0f} s of waiting for its model not counted" if waits.total_s >= 1 else ""
    return Failure(where="run", type="TimedOut", message=message + waited, agent=outcome.reached_model)


def _signalled(outcome: Outcome) -> Failure | None:
    number = signal_of(outcome.exit_code)
    if not number:
        return None
    message = f"the harness was ended by signal {number} ({_name(number)})"
    if number == signal.SIGKILL and outcome.memory_kills:
        message = f"{message}, at the task's memory limit{_output(outcome)}"
        return Failure(where="harness", type="MemoryLimit", message=message, agent=outcome.reached_model)
    if number in OWN_FAULTS:
        message += _output(outcome)
        return Failure(where="harness", type="HarnessCrashed", message=message, agent=outcome.reached_model)
    return Failure(where="harness", type="UnknownSignal", message=f"{message}; its sender is not known")


def _refused(outcome: Outcome) -> Failure | None:
    """The gateway's last answer was an error on our side; a used-up budget is none."""
    if outcome.exit_code is None or outcome.calls.exhausted or not _is_ours(outcome.calls.refusal):
        return None
    if outcome.calls.refusal and outcome.calls.refusal.code == GAVE_UP and outcome.exit_code == 0:
        return None
    return _refusal(outcome, f"the harness exited with code {outcome.exit_code}")


def _exited(outcome: Outcome) -> Failure | None:
    """An exit code above 0 after a used-up budget is no failure: most harnesses end so when they are refused."""
    if not outcome.exit_code or outcome.calls.exhausted:
        return None
    how = f"the harness exited with code {outcome.exit_code}"
    if outcome.waits.silent_s >= SILENT_S:
        return _stalled(outcome, how)
    refusal = outcome.calls.refusal
    if refusal is not None and refusal.code == OVERFLOW:
        message = f"{how} when its conversation no longer fitted: {refusal.message}"
        return Failure(where="harness", type="ContextOverflow", message=message, agent=outcome.reached_model)
    killed = f", {outcome.memory_kills} processes killed at the memory limit" if outcome.memory_kills else ""
    message = f"{how}{killed}{_output(outcome)}"
    return Failure(where="harness", type="HarnessExit", message=message, agent=outcome.reached_model)


def _silent_harness(outcome: Outcome) -> Failure | None:
    if outcome.exit_code != 0 or outcome.reached_model:
        return None
    message = "the harness ended without a model call; does it use the base URL of its slot?"
    return Failure(where="harness", type="NoCalls", message=message)


def _workspace(outcome: Outcome) -> Failure | None:
    if not outcome.workspace_fault:
        return None
    return Failure(where="workspace", type="WorkspaceUnusable", message=outcome.workspace_fault, agent=True)


def _is_ours(refusal: Refusal | None) -> bool:
    """Infrastructure's, unless the conversation had become too long."""
    return refusal is not None and refusal.code != OVERFLOW


def _refusal(outcome: Outcome, then: str) -> Failure:
    refusal = outcome.calls.refusal
    assert refusal is not None
    if refusal.code == GAVE_UP:
        return _stalled(outcome, then)
    if refusal.cause is not None:
        return refusal.cause
    message = f"the gateway refused a request ({refusal.code}: {refusal.message}); then {then}"
    return Failure(where="gateway", type="RequestRefused", message=message)


def _stalled(outcome: Outcome, then: str) -> Failure:
    waits = outcome.waits
    waited = f"its calls were without a token for {max(waits.silent_s, waits.total_s):.0f} s; then {then}"
    return Failure(where="engine", type="EngineStalled", message=waited)


def _name(number: int) -> str:
    return signal.Signals(number).name if number in signal.valid_signals() else "unknown"


def _output(outcome: Outcome) -> str:
    return f": {outcome.last_output[-SHOWN_OUTPUT:]}" if outcome.last_output else ""
