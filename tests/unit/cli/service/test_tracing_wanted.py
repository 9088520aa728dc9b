"""Whether a node makes traces: by its own setting, and by the variables of OpenTelemetry."""

from __future__ import annotations

import pytest

from polar.cli.service.tracing import ENDPOINTS, wanted


@pytest.mark.parametrize(
    ("endpoint", "variables", "makes_traces"),
    [
        (None, {}, False),
        ("http://collector:4318", {}, True),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, True),
        (None, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318"}, True),
        ("http://collector:4318", {"OTEL_SDK_DISABLED": "True"}, False),
        ("http://collector:4318", {"OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_a_collector_that_is_named_gets_traces(
    monkeypatch: pytest.MonkeyPatch, endpoint: str | None, variables: dict[str, str], makes_traces: bool
) -> None:
    for name in (*ENDPOINTS, "OTEL_SDK_DISABLED", "OTEL_TRACES_EXPORTER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert wanted(endpoint) is makes_traces
