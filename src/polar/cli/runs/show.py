"""`polar show`: one session with its stages and calls over time, its verdict and its traces."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polar.cli.options import JsonOption, RunOption, ServerOption, SessionArgument
from polar.cli.output import clock, console, counted, number, one_line, print_json, print_table, seconds, visible
from polar.cli.service.remote import ask

if TYPE_CHECKING:
    from pathlib import Path

    from polar.cli.service.remote_sessions import ServerSession
    from polar.runs.state import RunState
    from polar.runs.stored import StoredSession
    from polar.types import Call, Score, SessionResult, Staleness, Trace

    ShownSession = StoredSession | ServerSession

USAGE = "prompt_tokens completion_tokens cached_tokens reasoning_tokens"


def show(
    ctx: typer.Context,
    session: SessionArgument,
    run: RunOption = None,
    server: ServerOption = None,
    tokens: Annotated[bool, typer.Option("--tokens", help="Show the traces, trainable tokens marked.")] = False,
    json: JsonOption = False,
) -> None:
    """Show one session: its stages and calls over time, its score and its traces.

    Looks in the local runs; with --server at a rollout server, which needs the
    whole id.
    """
    from polar.cli.runs.tokens import print_traces

    stored = _load(ctx, session, run, server)
    traces = stored.traces
    if json:
        print_json(_as_json(stored, traces, with_tokens=tokens))
        return
    _print_head(stored)
    _print_walk(stored)
    _print_why_open(stored)
    if stored.result is not None:
        _print_verdict(stored.result)
        _print_age(stored.result, stored.lease.task.staleness)
        _print_certificate(stored.result)
        _print_health(stored.result)
        _print_files(stored.result, stored.folder)
    _print_traces(traces)
    if tokens:
        print_traces(stored.renderer, traces)


def _load(ctx: typer.Context, session: str, run: str | None, server: str | None) -> ShownSession:
    """A run is always local, even if POLAR_SERVER is set."""
    from polar.cli.service.remote_sessions import load_from_server
    from polar.runs.stored import load_session, runs_dir_of

    if server is not None and run is None:
        return ask(server, lambda client: load_from_server(client, session))
    return load_session(runs_dir_of(ctx.obj), run, session)


def _as_json(stored: ShownSession, traces: tuple[Trace, ...], *, with_tokens: bool) -> dict[str, Any]:
    result = stored.result
    return {
        **stored.origin,
        "run_state": _run_state(stored),
        "folder": str(stored.folder) if stored.folder else None,
        "session": stored.lease.session.model_dump(mode="json"),
        "task": stored.lease.task.model_dump(mode="json"),
        "stages": [{"stage": stage.value, "at": at, "took_s": took} for stage, at, took in _timed(stored)],
        "calls": [_call_json(call) for call in stored.calls],
        "result": result.model_dump(mode="json") if result else None,
        "traces": [_trace_json(trace, with_tokens=with_tokens) for trace in traces],
    }


def _fields(value: object, names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names.split()}


def _call_json(call: Call) -> dict[str, Any]:
    return {
        **_fields(call, "call_id parent_id continues break_reason kind"),
        **_fields(call.times, "arrived rendered sampled"),
        **_fields(call, "prompt_tokens evaluated_tokens"),
        "sampled_tokens": len(call.completion_ids),
        "usage": None if call.usage is None else _fields(call.usage, USAGE),
        **_fields(call, "cut_tokens finish_reason received tolerant lone_surrogates policy_version"),
        "policy_spans": [(span.version, span.start, span.length) for span in call.policy_spans],
        "updated_within": call.updated_within,
    }


def _trace_json(trace: Trace, *, with_tokens: bool) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "kind": trace.kind,
        "prompt_tokens": len(trace.prompt_ids),
        "response_tokens": len(trace.response_ids),
        "trainable_tokens": trace.trainable_tokens,
        "calls": [span.call_id for span in trace.spans],
        **_fields(trace, "policy_versions context_exact reward task_id group_id sample attempt failure"),
    }
    if not with_tokens:
        return summary
    arrays = ("prompt_ids", "response_ids", "loss_mask", "logprobs")
    return summary | {name: list(getattr(trace, name)) for name in arrays}


def _timed(stored: ShownSession) -> list[tuple[Any, float, float | None]]:
    """Stages with the seconds until the next one; the last has no end."""
    took = [*(end - at for (_, at), (_, end) in pairwise(stored.stages)), None]
    return [(stage, at, duration) for (stage, at), duration in zip(stored.stages, took, strict=False)]


def _print_head(stored: ShownSession) -> None:
    session, task = stored.lease.session, stored.lease.task
    out = console()
    origin = "  ".join(f"{name.removesuffix('_id')} {value}" for name, value in stored.origin.items())
    out.print(f"session {session.session_id}  {origin}  attempt {session.attempt}  {session.stage}")
    plugins = ("harness", "runtime", "builder", "evaluator")
    out.print("  ".join(f"{kind} {getattr(task, kind).name}" for kind in plugins))
    out.print(f"task {session.task_id}: {one_line(task.instruction)}\n")


def _print_why_open(stored: ShownSession) -> None:
    """Why a session of this machine has no result, and whether one will come."""
    state = _run_state(stored)
    if state is None or stored.result is not None:
        return
    resume = f"`polar run --resume {stored.origin['run_id']}` runs the session again"
    goes_on = f"; {resume}" if state.goes_on else ""
    console().print(f"\nno result: its run is {state}{goes_on}", style="yellow", soft_wrap=True)


def _run_state(stored: ShownSession) -> RunState | None:
    """None: the session is a server's."""
    from polar.runs.state import state_of
    from polar.runs.stored import StoredSession

    return state_of(stored.run, stored.run.read_record()) if isinstance(stored, StoredSession) else None


def _print_walk(stored: ShownSession) -> None:
    """Stages and calls in the order of time, in seconds since the first."""
    steps = [(at, _stage_cells(stage.value, took)) for stage, at, took in _timed(stored)]
    steps += [(call.times.arrived, _call_cells(call, stored.session_id)) for call in stored.calls]
    steps.sort(key=lambda step: step[0])
    start = steps[0][0] if steps else 0.0
    columns = ["#at", "#took", "step", "#prompt", "#evaluated", "#sampled", "finish", "kind", "note"]
    rows = [(seconds(at - start), *cells) for at, cells in steps]
    print_table(columns, rows, title=f"from {clock(start)}" if steps else "nothing is recorded yet")


def _stage_cells(stage: str, took: float | None) -> tuple[str, ...]:
    return (seconds(took), stage, "", "", "", "", "", "")


def _call_cells(call: Call, session_id: str) -> tuple[str, ...]:
    return (
        seconds(call.times.sampled - call.times.arrived),
        f"  call {_short(call.call_id, session_id)}",
        str(call.prompt_tokens) if call.usage is None else number(call.usage.prompt_tokens),
        number(call.evaluated_tokens),
        str(len(call.completion_ids)) if call.usage is None else number(call.usage.completion_tokens),
        call.finish_reason,
        call.kind,
        visible(_note(call, session_id)),
    )


def _note(call: Call, session_id: str) -> str:
    parent = _short(call.parent_id, session_id) if call.parent_id else ""
    relation = f"continues {parent}" if call.continues else f"after {parent}" if parent else "starts"
    notes = [relation, call.break_reason and f"break: {call.break_reason}", *call.tolerant]
    notes.append("policy updated within" if call.updated_within or len(call.policy_spans) > 1 else "")
    notes.append(f"{call.lone_surrogates} lone surrogates as U+FFFD" if call.lone_surrogates else "")
    notes.append("" if call.received else "not received")
    notes.append(f"{call.cut_tokens} cut off" if call.cut_tokens else "")
    return ", ".join(note for note in notes if note)


def _short(call_id: str, session_id: str) -> str:
    return visible(call_id.removeprefix(f"{session_id}."))


def _metrics(score: Score) -> str:
    return visible("".join(f"  {name} {value:g}" for name, value in score.metrics.items()))


def _print_reasons(score: Score, indent: str) -> None:
    """Why it is so, then the same of each part."""
    for reason in score.reasons:
        console().print(f"{indent}{visible(reason)}")
    for name, part in score.parts.items():
        head = f"{visible(name)}: reward {number(part.reward)}, weight {part.weight:g}"
        console().print(f"{indent}{head}{_metrics(part)}")
        _print_reasons(part, indent=f"{indent}  ")


def _print_verdict(result: SessionResult) -> None:
    out, statistics = console(), result.statistics
    if result.score is not None:
        out.print(f"\nreward {number(result.reward)}{_metrics(result.score)}")
        _print_reasons(result.score, indent="  ")
    if result.failure is not None:
        failure = result.failure
        cause = "caused by the agent" if failure.agent else "infrastructure"
        out.print(
            f"\nfailed in {failure.where} ({cause}): {failure.type}: {visible(failure.message)}", style="red"
        )
    if not result.trainable:
        out.print(f"\nnot to be trained on: {result.untrainable_reason}")
    if result.ended_by:
        out.print(f"\nended by its budget: {visible(result.ended_by)} is used up")
    out.print(
        f"\n{statistics.calls} calls, {statistics.traces} traces, merge rate {number(statistics.merge_rate)}; "
        f"{statistics.sampled_tokens} sampled tokens: {statistics.trainable_tokens} trainable, "
        f"{statistics.dropped_tokens} dropped"
        + (f"; {statistics.reported_tokens} more without ids" if statistics.reported_tokens else "")
        + (f"; {statistics.cut_tokens} more cut off after the end of a reply" if statistics.cut_tokens else "")
    )
    for name, reasons in (("breaks", statistics.breaks), ("dropped", statistics.dropped)):
        if reasons:
            out.print(f"{name}: {counted(reasons)}")


def _print_age(result: SessionResult, bound: Staleness | None) -> None:
    if not result.policy_updates:
        return
    allowed = "" if bound is None else f"; the task allows {bound.max_updates} ({bound.action})"
    stale = "stale, " if result.stale else ""
    console().print(f"{stale}policy updates since its first call: {result.policy_updates}{allowed}")


def _print_health(result: SessionResult) -> None:
    if result.health is None:
        return
    style = {"broken": "red", "suspect": "yellow"}.get(result.health.verdict)
    console().print(f"health: {result.health.verdict}", style=style)
    for finding in result.health.findings:
        console().print(f"  {finding.what} {finding.count}: {one_line(finding.detail)}", style=style)


def _print_certificate(result: SessionResult) -> None:
    made = result.certificate
    if made is None:
        return
    findings = f"{made.findings} findings ({counted(made.reasons)})" if made.findings else "not exact"
    verdict = "exact" if made.exact else findings
    builder = f"{made.builder} {made.builder_version}".strip()
    digests = f"calls {made.calls_digest[:12]}, traces {made.traces_digest[:12]}"
    console().print(
        f"certificate: {verdict}, {visible(builder)}, {digests}", style="red" if made.findings else None
    )


def _print_files(result: SessionResult, folder: Path | None) -> None:
    """`folder` is None where the node of a rollout server has the files."""
    out = console()
    where = f"in {folder}" if folder else f"in sessions/{result.session_id} of the run folder of its node"
    out.print(f"files {where}: {visible(', '.join(('logs', *result.kept)), newline=' ')}", soft_wrap=True)
    for line in result.left_out:
        out.print(f"  left out: {visible(line, newline=' ')}")
    for line in result.notes:
        out.print(f"note: {visible(line, newline=' ')}")


def _print_traces(traces: tuple[Trace, ...]) -> None:
    if not traces:
        console().print("\nno traces")
        return
    rows = [
        (
            str(index),
            trace.kind,
            str(len(trace.prompt_ids)),
            str(len(trace.response_ids)),
            str(trace.trainable_tokens),
            str(len(trace.spans)),
            number(trace.reward),
            "" if trace.context_exact else "context not exact",
        )
        for index, trace in enumerate(traces)
    ]
    print_table(
        ["#trace", "kind", "#prompt", "#response", "#trainable", "#calls", "#reward", "note"],
        rows,
        title="\ntraces",
    )
