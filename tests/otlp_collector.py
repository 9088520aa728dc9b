"""An OTLP collector for tests: takes traces over HTTP and reads them with the official types of the protocol.
It can refuse them, or never answer."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class OtlpCollector:
    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resources: list[dict[str, Any]] = []
        self.requests = 0
        self.status = 200
        self.hangs = False
        self.url = ""
        self._closing = asyncio.Event()

    async def __aenter__(self) -> OtlpCollector:
        app = web.Application()
        app.router.add_post("/v1/traces", self._take)
        self._runner = web.AppRunner(app, shutdown_timeout=0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._closing.set()
        await self._runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        self.requests += 1
        body = await request.read()
        if self.hangs:
            await self._closing.wait()
        if self.status != 200:
            return web.Response(status=self.status)
        if request.headers.get("content-encoding") == "gzip" and body[:2] == b"\x1f\x8b":
            body = gzip.decompress(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append(attributes_of(resource.resource))
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        answer = ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=answer, content_type="application/x-protobuf")

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]


def attributes_of(span: Any) -> dict[str, Any]:
    def value(given: Any) -> Any:
        kind = given.WhichOneof("value")
        if kind == "array_value":
            return [value(one) for one in given.array_value.values]
        return getattr(given, kind)

    return {one.key: value(one.value) for one in span.attributes}
