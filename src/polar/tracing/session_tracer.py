"""A session as a trace: the attempt is the root, its stages and model calls are spans below it.

Spans say how long things took and how they ended. They hold no prompt, no reply and no token.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client.core import Metric

from polar.monitoring.exposition import counter
from polar.tracing.span_export import SpanExport
from polar.types import EndedCall, Lease, SessionResult, Stage

OUTCOMES = ("exported", "failed", "dropped")
Value = str | int | float | bool


@dataclass
class TracedSession:
    """An attempt that has not ended."""

    root: Span
    context: Context
    """Of the root."""
    stage: Span | None = None

    @property
    def inner(self) -> Context:
        """Of the stage that it is in."""
        return self.context if self.stage is None else set_span_in_context(self.stage, self.context)


class SessionTracer:
    """A `SessionObserver`."""

    def __init__(self, export: SpanExport) -> None:
        self._export = export
        self._sessions: dict[str, TracedSession] = {}

    def leased(self, lease: Lease) -> None:
        session, task = lease.session, lease.task
        self._export.name_next_trace(trace_id_of(session.session_id, session.attempt))
        attributes: dict[str, Value] = {
            "polar.session_id": session.session_id,
            "polar.attempt": session.attempt,
            "polar.task_id": session.task_id,
            "polar.sample": session.index,
            "polar.harness": task.harness.name,
            "polar.runtime": task.runtime.name,
            "polar.evaluator": task.evaluator.name,
            "gen_ai.conversation.id": session.session_id,
        }
        if task.group_id:
            attributes["polar.group_id"] = task.group_id
        context = _given_context(task.metadata.get("traceparent"))
        root = self._export.tracer.start_span("session", context, attributes=attributes)
        self._sessions[session.session_id] = TracedSession(root, set_span_in_context(root, context))

    def stage_changed(self, session_id: str, stage: Stage, at: float) -> None:
        traced = self._sessions.get(session_id)
        if traced is None:
            return
        if traced.stage is not None:
            traced.stage.end(_ns(at))
            traced.stage = None
        if not stage.final:
            attributes: dict[str, Value] = {"polar.stage": stage.value}
            traced.stage = self._export.tracer.start_span(
                stage.value, traced.context, attributes=attributes, start_time=_ns(at)
            )

    def call_ended(self, call: EndedCall) -> None:
        traced = self._sessions.get(call.session_id)
        if traced is None:
            return
        span = self._export.tracer.start_span(
            f"chat {_model(call)}",
            traced.inner,
            kind=SpanKind.CLIENT,
            attributes=_attributes(call),
            start_time=_ns(call.arrived),
        )
        if call.problem:
            span.set_status(Status(StatusCode.ERROR, call.problem))
        span.end(_ns(call.ended))

    def ended(self, result: SessionResult) -> None:
        traced = self._sessions.pop(result.session_id, None)
        if traced is None:
            return
        if traced.stage is not None:
            traced.stage.end()
        root, statistics = traced.root, result.statistics
        root.set_attribute("polar.stage", result.stage.value)
        root.set_attribute("polar.calls", statistics.calls)
        root.set_attribute("polar.sampled_tokens", statistics.sampled_tokens)
        root.set_attribute("polar.policy_updates", result.policy_updates)
        if result.reward is not None:
            root.set_attribute("polar.reward", result.reward)
        if (failure := result.failure) is not None:
            # Without the message: it may repeat what a harness or a command printed.
            root.set_attribute("error.type", failure.type)
            root.set_attribute("polar.failure.where", failure.where)
            root.set_attribute("polar.failure.by", "agent" if failure.agent else "infrastructure")
            root.set_status(Status(StatusCode.ERROR, f"{failure.where}: {failure.type}"))
        root.end()

    def collect(self) -> Iterator[Metric]:
        counts = self._export.counts
        spans = {(outcome,): float(counts[outcome]) for outcome in OUTCOMES}
        about = "Spans: taken by the OTLP collector, refused by it or not delivered, dropped from a full queue."
        yield counter("polar_gateway_spans", about, spans, ["outcome"])


def trace_id_of(session_id: str, attempt: int) -> int:
    """Computable by hand: `printf SESSION/ATTEMPT | b2sum -l 128`."""
    return int.from_bytes(hashlib.blake2b(f"{session_id}/{attempt}".encode(), digest_size=16).digest()) or 1


def _given_context(traceparent: object) -> Context:
    """The span of whoever submitted the task, if the task's metadata carries it; else none."""
    carrier = {"traceparent": traceparent} if isinstance(traceparent, str) else {}
    return TraceContextTextMapPropagator().extract(carrier, Context())


def _attributes(call: EndedCall) -> dict[str, Value | tuple[str, ...]]:
    """By the GenAI conventions of OpenTelemetry where they have a name."""
    found: dict[str, Value | tuple[str, ...] | None] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": call.engine.partition("/")[0],
        "gen_ai.request.model": _model(call),
        "gen_ai.response.id": call.call_id or None,
        "gen_ai.response.finish_reasons": (call.finish_reason,) if call.finish_reason else None,
        "gen_ai.response.time_to_first_chunk": call.first_token_s,
        "gen_ai.usage.input_tokens": call.prompt_tokens,
        "gen_ai.usage.output_tokens": call.sampled_tokens,
        "gen_ai.usage.cache_read.input_tokens": _cached(call),
        "error.type": call.problem or None,
        "polar.dialect": call.dialect,
        "polar.call_kind": call.kind,
        "polar.outcome": call.outcome,
        "polar.policy_version": call.policy_version,
    }
    return {name: value for name, value in found.items() if value is not None}


def _cached(call: EndedCall) -> int | None:
    return None if call.evaluated_tokens is None else max(0, call.prompt_tokens - call.evaluated_tokens)


def _model(call: EndedCall) -> str:
    return call.engine.partition("/")[2]


def _ns(at: float) -> int:
    return int(at * 1e9) if at else time.time_ns()
