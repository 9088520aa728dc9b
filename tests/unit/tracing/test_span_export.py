from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from polar.tracing import span_export
from polar.tracing.session_tracer import trace_id_of
from polar.tracing.span_export import SpanExport, traces_url
from waiting import HANG_S, blocked_until


class HeldExporter(SpanExporter):
    """Answers when it may."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.asked = threading.Event()
        self.names: list[str] = []
        self.error: Exception | None = None
        self.result = SpanExportResult.SUCCESS

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.asked.set()
        self.go.wait(HANG_S)
        if self.error is not None:
            raise self.error
        self.names += [span.name for span in spans]
        return self.result

    def shutdown(self) -> None:
        self.result = SpanExportResult.FAILURE
        self.go.set()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_export, "GATHER_S", 0.01)


def end_spans(export: SpanExport, *names: str) -> None:
    for name in names:
        export.tracer.start_span(name).end()


def test_a_full_queue_drops_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = HeldExporter()
    monkeypatch.setattr(span_export.SpanQueue.__init__, "__defaults__", (3,))
    export = SpanExport(exporter=exporter)
    export.name_next_trace(1)
    end_spans(export, "first")
    assert exporter.asked.wait(HANG_S)  # the first is on its way, and the queue is empty again
    end_spans(export, *"abcdefg")
    assert export.counts["dropped"] == 4
    exporter.go.set()
    assert export.flush()
    assert exporter.names == ["first", "a", "b", "c"] and export.counts["exported"] == 4
    export.close()
    assert export.counts["dropped"] == 4


def test_closing_sends_what_is_left() -> None:
    exporter = HeldExporter()
    exporter.go.set()
    export = SpanExport(exporter=exporter)
    export.name_next_trace(1)
    end_spans(export, *map(str, range(2000)))
    export.close()
    assert len(exporter.names) == export.counts["exported"] == 2000
    end_spans(export, "late")
    assert export.counts["exported"] == 2000
    export.close()


def test_closing_waits_for_no_collector_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_export, "CLOSE_S", 0.05)
    exporter = HeldExporter()
    export = SpanExport(exporter=exporter)
    export.name_next_trace(1)
    end_spans(export, "first")
    assert exporter.asked.wait(HANG_S)
    end_spans(export, "b", "c")
    export.close()
    blocked_until(lambda: export.counts["failed"])
    assert (export.counts["failed"], export.counts["dropped"], export.counts["exported"]) == (1, 2, 0)


def test_an_exporter_that_raises_is_a_failed_export(caplog: pytest.LogCaptureFixture) -> None:
    exporter = HeldExporter()
    exporter.go.set()
    exporter.error = ValueError("of a plug-in")
    export = SpanExport(exporter=exporter)
    export.name_next_trace(1)
    end_spans(export, "a")
    assert export.flush()
    exporter.error = None
    end_spans(export, "b")
    assert export.flush()
    export.close()
    assert (export.counts["failed"], export.counts["exported"]) == (1, 1)
    said = [record.getMessage() for record in caplog.records if record.name == "polar.node"]
    away = "the OTLP collector takes no traces, which are lost; sessions go on"
    assert said == [away, "the OTLP collector takes traces again"]


def test_a_sampler_of_the_environment_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    exporter = HeldExporter()
    exporter.go.set()
    export = SpanExport(exporter=exporter)
    export.name_next_trace(1)
    end_spans(export, "a")
    export.close()
    assert exporter.names == [] and not export.counts.total()


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("http://c:4318", "http://c:4318/v1/traces"),
        ("http://c:4318/", "http://c:4318/v1/traces"),
        ("http://c/v1/traces", "http://c/v1/traces"),
        (None, None),
    ],
)
def test_the_address_of_a_collector(given: str | None, wanted: str | None) -> None:
    assert traces_url(given) == wanted


def test_the_operator_may_name_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    export = SpanExport(exporter=HeldExporter())
    resource = export._provider.resource.attributes  # pyright: ignore[reportPrivateUsage]
    assert resource["service.name"] == "mine" and "service.instance.id" in resource
    export._queue._exporter.shutdown()  # pyright: ignore[reportPrivateUsage]
    export.close()


def test_a_trace_id_can_be_computed_by_hand() -> None:
    """printf add-0/1 | b2sum -l 128"""
    assert f"{trace_id_of('add-0', 1):032x}" == "de8ed9b8530ea25fc7cd94b4e5db3c24"
    assert trace_id_of("add-0", 1) != trace_id_of("add-0", 2)
