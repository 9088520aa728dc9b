"""The page that `polar show` prints of a session: its walk, verdict, files and traces."""

from __future__ import annotations

from polar.cli.output import clock, console, counted, number, one_line, print_table, seconds, visible
from polar.cli.service.remote_sessions import ServerSession
from polar.cli.show.additions import added_to
from polar.cli.show.shown_session import ShownSession, run_state, short_id, timed
from polar.types import Call, Score, SessionResult, Staleness, Trace


def print_page(session: ShownSession) -> None:
    _print_head(session)
    _print_walk(session)
    _print_why_open(session)
    if (result := session.result) is not None:
        _print_verdict(result)
        _print_age(result, session.lease.task.staleness)
        _print_certificate(result)
        _print_health(result)
        _print_files(session, result)
        _print_notes(session, result)
    _print_traces(session.traces)


def _print_head(shown: ShownSession) -> None:
    session, task = shown.lease.session, shown.lease.task
    out = console()
    origin = "  ".join(f"{name.removesuffix('_id')} {value}" for name, value in shown.origin.items())
    out.print(f"session {session.session_id}  {origin}  attempt {session.attempt}  {session.stage}")
    plugins = ("harness", "runtime", "builder", "evaluator")
    out.print("  ".join(f"{kind} {getattr(task, kind).name}" for kind in plugins))
    out.print(f"task {session.task_id}: {one_line(task.instruction)}\n")


def _print_why_open(session: ShownSession) -> None:
    """Why a session has no result: at a server, why no node has it; here, whether one will come."""
    if isinstance(session, ServerSession) and session.waits:
        console().print(f"\nwaits: {visible(session.waits)}", style="yellow", soft_wrap=True)
    state = run_state(session)
    if state is None or session.result is not None:
        return
    resume = f"`polar run --resume {session.origin['run_id']}` runs the session again"
    goes_on = f"; {resume}" if state.goes_on else ""
    console().print(f"\nno result: its run is {state}{goes_on}", style="yellow", soft_wrap=True)


def _print_walk(session: ShownSession) -> None:
    """Stages and calls in the order of time, in seconds since the first."""
    steps = [(at, _stage_cells(stage.value, took)) for stage, at, took in timed(session)]
    steps += [(call.times.arrived, _call_cells(call, session.session_id)) for call in session.calls]
    steps.sort(key=lambda step: step[0])
    start = steps[0][0] if steps else 0.0
    columns = ["#at", "#took", "step", "#prompt", "#evaluated", "#sampled", "finish", "kind", "note"]
    rows = [(seconds(at - start), *cells) for at, cells in steps]
    title = f"from {clock(start)}" if steps else "nothing is recorded yet"
    print_table(columns, rows, title=title, optional=["#evaluated", "kind"])


def _stage_cells(stage: str, took: float | None) -> tuple[str, ...]:
    return (seconds(took), stage, "", "", "", "", "", "")


def _call_cells(call: Call, session_id: str) -> tuple[str, ...]:
    return (
        seconds(call.times.sampled - call.times.arrived),
        f"  call {short_id(call.call_id, session_id)}",
        str(call.prompt_tokens) if call.usage is None else number(call.usage.prompt_tokens),
        number(call.evaluated_tokens),
        str(len(call.completion_ids)) if call.usage is None else number(call.usage.completion_tokens),
        call.finish_reason,
        call.kind,
        visible(_note(call, session_id)),
    )


def _note(call: Call, session_id: str) -> str:
    parent = short_id(call.parent_id, session_id) if call.parent_id else ""
    relation = f"continues {parent}" if call.continues else f"after {parent}" if parent else "starts"
    notes = [relation, call.break_reason and f"break: {call.break_reason}", *call.tolerant]
    notes.append("policy updated within" if call.updated_within or len(call.policy_spans) > 1 else "")
    notes.append(f"{call.lone_surrogates} lone surrogates as U+FFFD" if call.lone_surrogates else "")
    notes.append("" if call.received else "not received")
    notes.append(f"{call.cut_tokens} cut off" if call.cut_tokens else "")
    return ", ".join(note for note in notes if note)


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
    if result.cancel_reason:
        out.print(f"\ncancelled: {visible(result.cancel_reason)}", soft_wrap=True)
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


def _print_files(session: ShownSession, result: SessionResult) -> None:
    out = console()
    kept = visible(", ".join(("logs", *result.kept)), newline=" ")
    if isinstance(session, ServerSession):
        name = session.session_id
        get = f"`polar fetch {name} DIR --server {session.server}` gets {_uploaded(session)}"
        out.print(f"files in sessions/{name} of the run folder of its node: {kept}", soft_wrap=True)
        out.print(f"  {get}", soft_wrap=True)
    else:
        out.print(f"files in {session.folder}: {kept}", soft_wrap=True)
    for line in result.left_out:
        out.print(f"  left out: {visible(line, newline=' ')}")


def _uploaded(session: ServerSession) -> str:
    if not session.files:
        return "its calls and result; its node uploaded no files"
    whole = sum(len(file.content) == file.size_bytes for file in session.files)
    return f"{whole} of {len(session.files)} files whole"


def _print_notes(session: ShownSession, result: SessionResult) -> None:
    """With those that an older Polar did not write down."""
    found = (*result.notes, *(added_to(session, call) for call in session.calls))
    for line in dict.fromkeys(filter(None, found)):
        console().print(f"note: {visible(line, newline=' ')}", style="magenta")


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
