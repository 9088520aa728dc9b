"""Whether a node makes traces: only then is OpenTelemetry imported."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from polar.errors import ConfigError

if TYPE_CHECKING:
    from polar.node.observers import SessionObserver

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
MISSING = "traces need OpenTelemetry: pip install 'polar-rollout[otel]'"
LOGGER = logging.getLogger("polar.node")


@asynccontextmanager
async def session_tracer(endpoint: str | None) -> AsyncGenerator[Sequence[SessionObserver]]:
    """An observer that makes traces, if a collector is configured; sends what is left at the end."""
    if not wanted(endpoint):
        yield ()
        return
    try:
        from polar.tracing.session_tracer import SessionTracer
        from polar.tracing.span_export import SpanExport
    except ImportError as error:
        if endpoint is not None:
            raise ConfigError(f"[node] otlp_endpoint: {MISSING}") from error
        LOGGER.warning("OTEL_EXPORTER_OTLP_ENDPOINT is set, and no traces are made: %s", MISSING)
        yield ()
        return
    # It would log each failed try with a traceback; `SpanExport` says once that the collector is away.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    export = SpanExport(endpoint)
    try:
        yield (SessionTracer(export),)
    finally:
        await asyncio.to_thread(export.close)


def wanted(endpoint: str | None) -> bool:
    """Follows the variables of OpenTelemetry too."""
    if (
        os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
        or os.environ.get("OTEL_TRACES_EXPORTER") == "none"
    ):
        return False
    return endpoint is not None or any(os.environ.get(name) for name in ENDPOINTS)
