"""Spans on their way to an OTLP collector, from a bounded queue and a thread of their own.

A collector that is slow or away costs spans, which are counted, and nothing else: the event loop never waits.
"""

from __future__ import annotations

import logging
import os
import queue
import secrets
import socket
import threading
import time
from collections import Counter

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import Tracer

from polar import __version__

MAX_QUEUE = 8192
MAX_BATCH = 512
GATHER_S = 1.0
"""How long spans gather before they are sent together."""
CLOSE_S = 5.0
"""How long a node that stops goes on sending."""
TRACES_PATH = "/v1/traces"
LOGGER = logging.getLogger("polar.node")


class NamedTraces(IdGenerator):
    """Trace ids that others can compute: the next trace gets `next_trace_id`."""

    next_trace_id = 0

    def generate_span_id(self) -> int:
        return secrets.randbits(64) or 1

    def generate_trace_id(self) -> int:
        return self.next_trace_id

    def is_trace_id_random(self) -> bool:
        """They are digests, as good as random for a sampler."""
        return True


class SpanQueue(SpanProcessor):
    """Hands ended spans to the exporter. `counts` has how many were exported, failed and dropped."""

    def __init__(self, exporter: SpanExporter, max_queue: int = MAX_QUEUE) -> None:
        self.counts = Counter[str]()
        self._exporter = exporter
        self._queue: queue.Queue[ReadableSpan] = queue.Queue(max_queue)
        self._closing = threading.Event()
        self._abandoned = False
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="polar-spans", daemon=True)
        self._thread.start()

    def on_end(self, span: ReadableSpan) -> None:
        context = span.get_span_context()
        if context is None or not context.trace_flags.sampled:
            return
        try:
            if self._closing.is_set():
                raise queue.Full
            self._queue.put_nowait(span)
        except queue.Full:
            self.counts["dropped"] += 1

    def shutdown(self) -> None:
        """Sends what is left, for at most `CLOSE_S`; the rest counts as dropped."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._thread.join(CLOSE_S)
        self._abandoned = True
        self._exporter.shutdown()  # ends the export under way
        while batch := self._batch():
            self.counts["dropped"] += len(batch)

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        until = time.monotonic() + timeout_millis / 1000
        while self._queue.unfinished_tasks and time.monotonic() < until:
            time.sleep(0.01)
        return not self._queue.unfinished_tasks

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._closing.wait(GATHER_S)
            while not self._abandoned and (batch := self._batch()):
                self._export(batch)

    def _batch(self) -> list[ReadableSpan]:
        batch: list[ReadableSpan] = []
        while len(batch) < MAX_BATCH:
            try:
                batch.append(self._queue.get_nowait())
            except queue.Empty:
                break
        return batch

    def _export(self, batch: list[ReadableSpan]) -> None:
        try:
            succeeded = self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception as error:  # an exporter is a plug-in of OpenTelemetry
            LOGGER.debug("spans cannot be exported", exc_info=error)
            succeeded = False
        self.counts["exported" if succeeded else "failed"] += len(batch)
        for _ in batch:
            self._queue.task_done()
        if self._failing is succeeded:
            self._failing = not succeeded
            now = "takes traces again" if succeeded else "takes no traces, which are lost; sessions go on"
            LOGGER.warning("the OTLP collector %s", now)


class SpanExport:
    """A tracer and the way of its spans. `endpoint`: the collector's address; None: that of the variables of
    OpenTelemetry."""

    def __init__(self, endpoint: str | None = None, exporter: SpanExporter | None = None) -> None:
        self._ids = NamedTraces()
        self._queue = SpanQueue(exporter or OTLPSpanExporter(endpoint=traces_url(endpoint)))
        instance = f"{socket.gethostname()}:{os.getpid()}"
        service = {
            "service.name": "polar-gateway",
            "service.version": __version__,
            "service.instance.id": instance,
        }
        named = {name: value for name, value in service.items() if not _is_set(name)}
        self._provider = TracerProvider(
            resource=Resource.create(named), id_generator=self._ids, shutdown_on_exit=False
        )
        self._provider.add_span_processor(self._queue)
        self.tracer: Tracer = self._provider.get_tracer("polar", __version__)

    @property
    def counts(self) -> Counter[str]:
        return self._queue.counts

    def name_next_trace(self, trace_id: int) -> None:
        """The next span without a parent begins this trace."""
        self._ids.next_trace_id = trace_id

    def flush(self) -> bool:
        """Waits until every ended span was sent or has failed; False: not in time."""
        return self._queue.force_flush()

    def close(self) -> None:
        self._provider.shutdown()


def traces_url(endpoint: str | None) -> str | None:
    """A collector's address, with the path that it takes traces at."""
    if endpoint is None or endpoint.endswith(TRACES_PATH):
        return endpoint
    return endpoint.rstrip("/") + TRACES_PATH


def _is_set(attribute: str) -> bool:
    """Whether the operator names it in a variable of OpenTelemetry."""
    by_name = attribute == "service.name" and bool(os.environ.get("OTEL_SERVICE_NAME"))
    return by_name or f"{attribute}=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
