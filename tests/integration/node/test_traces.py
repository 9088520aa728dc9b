"""A session as a trace at a real OTLP collector: what it holds, what it leaves out, and that no collector
can cost a session anything."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import AsyncIterator

import pytest
from served_node import Service, agent_task, results_of

from otlp_collector import OtlpCollector, attributes_of
from polar.testing import ScriptedReply
from polar.tracing.session_tracer import SessionTracer
from polar.tracing.span_export import SpanExport
from polar.types import Stage
from waiting import until

STAGES = ["QUEUED", "INIT", "READY", "RUNNING", "POSTRUN"]


@pytest.fixture
async def collector() -> AsyncIterator[OtlpCollector]:
    async with OtlpCollector() as made:
        yield made


class Traced:
    """A service whose nodes trace to `endpoint`."""

    def __init__(self, service: Service, endpoint: str) -> None:
        self.service = service
        self.export = SpanExport(endpoint)
        self.tracer = SessionTracer(self.export)
        service.observers = [self.tracer]

    def counted(self, outcome: str) -> float:
        (family,) = self.tracer.collect()
        return next(s.value for s in family.samples if s.labels.get("outcome") == outcome)


async def test_a_session_is_one_trace_that_its_id_names(patient: Service, collector: OtlpCollector) -> None:
    traced = Traced(patient, collector.url)
    await patient.add_node(running=1)
    await patient.client.submit(agent_task(task_id="t", group_id="g"))
    (result,) = (await results_of(patient, "t")).values()
    await until(lambda: collector.named("session"))
    await until(lambda: len(collector.spans) == 1 + len(STAGES) + 2)
    (root,) = collector.named("session")
    trace_id = hashlib.blake2b(f"{result.session_id}/1".encode(), digest_size=16).digest()
    assert {span.trace_id for span in collector.spans} == {trace_id}
    assert root.parent_span_id == b""
    stages = [span for span in collector.spans if span.name in STAGES]
    assert [span.name for span in sorted(stages, key=lambda span: span.start_time_unix_nano)] == STAGES
    assert {span.parent_span_id for span in stages} == {root.span_id}
    (running,) = collector.named("RUNNING")
    calls = [span for span in collector.spans if span.name.startswith("chat ")]
    assert len(calls) == 2 and {span.parent_span_id for span in calls} == {running.span_id}
    for span in collector.spans:
        assert root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert span.end_time_unix_nano <= root.end_time_unix_nano
    about = attributes_of(root)
    assert (about["polar.session_id"], about["polar.attempt"]) == (result.session_id, 1)
    assert (about["polar.stage"], about["polar.reward"]) == ("COMPLETED", 1.0)
    assert (about["polar.harness"], about["polar.group_id"]) == ("shell", "g")
    assert collector.resources[0]["service.name"] == "polar-gateway"
    await until(lambda: traced.counted("exported") == len(collector.spans))
    traced.export.close()


async def test_a_call_has_its_numbers_and_none_of_its_text(patient: Service, collector: OtlpCollector) -> None:
    traced = Traced(patient, collector.url)
    patient.last_reply = ScriptedReply(text="The secret answer.")
    await patient.add_node(running=1)
    await patient.client.set_policy_version("step-4")
    await patient.client.submit(agent_task(task_id="t", instruction="A secret question."))
    (result,) = (await results_of(patient, "t")).values()
    await until(lambda: collector.named("session"))
    calls = [attributes_of(span) for span in collector.spans if span.name.startswith("chat ")]
    first, last = sorted(calls, key=lambda call: call["gen_ai.response.id"])
    assert first["gen_ai.response.finish_reasons"] == ["tool_calls"]
    assert last["gen_ai.response.finish_reasons"] == ["stop"]
    assert sum(call["gen_ai.usage.output_tokens"] for call in calls) == result.statistics.sampled_tokens
    assert last["gen_ai.usage.cache_read.input_tokens"] > 0
    assert first["gen_ai.response.time_to_first_chunk"] >= 0
    assert {call["polar.policy_version"] for call in calls} == {"step-4"}
    assert {call["polar.dialect"] for call in calls} == {"openai_chat"}
    assert "secret" not in str(collector.spans)
    traced.export.close()


async def test_a_trace_goes_on_from_the_span_of_the_client(patient: Service, collector: OtlpCollector) -> None:
    traced = Traced(patient, collector.url)
    await patient.add_node(running=1)
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await patient.client.submit(agent_task("true", task_id="good", metadata={"traceparent": parent}))
    await patient.client.submit(agent_task("true", task_id="bad", metadata={"traceparent": ["no", "header"]}))
    await results_of(patient, "good", "bad")
    roots = await until(lambda: roots if len(roots := collector.named("session")) == 2 else None)
    of_task = {attributes_of(root)["polar.task_id"]: root for root in roots}
    assert of_task["good"].trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"
    assert of_task["good"].parent_span_id.hex() == "b7ad6b7169203331"
    assert of_task["bad"].parent_span_id == b""
    traced.export.close()


async def test_a_failed_session_says_where(patient: Service, collector: OtlpCollector) -> None:
    traced = Traced(patient, collector.url)
    await patient.add_node(running=1)
    await patient.client.submit(agent_task("echo a-private-path >&2; exit 3", task_id="t"))
    (result,) = (await results_of(patient, "t")).values()
    assert result.stage is Stage.FAILED and result.failure is not None
    (root,) = await until(lambda: collector.named("session"))
    about = attributes_of(root)
    assert (about["polar.failure.where"], about["error.type"]) == ("harness", result.failure.type)
    assert root.status.code == 2 and "private" not in str(root)
    traced.export.close()


async def test_each_attempt_is_a_trace(patient: Service, collector: OtlpCollector) -> None:
    traced = Traced(patient, collector.url)
    served = await patient.add_node(running=1)
    served.engine.outage = "gone"
    await patient.client.submit(agent_task(task_id="t"))
    await until(lambda: served.node.health.sick)
    served.engine.outage = ""
    (result,) = (await results_of(patient, "t")).values()
    assert result.attempt >= 2
    roots = await until(lambda: found if len(found := collector.named("session")) == result.attempt else None)
    assert len({root.trace_id for root in roots}) == result.attempt
    failed = [span for span in collector.spans if attributes_of(span).get("polar.outcome") == "failed"]
    assert failed and attributes_of(failed[0])["error.type"] == "engine_error"
    traced.export.close()


@pytest.mark.parametrize("trouble", ["refuses", "hangs", "nowhere"])
async def test_a_collector_in_trouble_costs_no_session_anything(
    patient: Service, collector: OtlpCollector, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    collector.status, collector.hangs = (400 if trouble == "refuses" else 200), trouble == "hangs"
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # bound and not listening: a connection is refused
        nowhere = f"http://127.0.0.1:{silent.getsockname()[1]}"
        traced = Traced(patient, nowhere if trouble == "nowhere" else collector.url)
        await patient.add_node(running=2)
        await patient.client.submit(agent_task(task_id="t", num_samples=4))
        results = await results_of(patient, "t")
        assert {result.stage for result in results.values()} == {Stage.COMPLETED}
        await until(lambda: traced.counted("failed"))
        assert traced.counted("exported") == 0
        traced.export.close()
