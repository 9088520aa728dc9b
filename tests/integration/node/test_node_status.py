"""A node's metrics and health over HTTP: what they say is what its sessions did, and each claim can be false."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from served_node import AGENT, Service, agent_task, results_of

from polar.config import Config
from polar.errors import ConfigError
from polar.node import Uplink, open_node, serve_server
from polar.node.uplink import ServerAway
from polar.store.paths import RunPaths
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.types import Policy, Stage
from ports import port_to_come_back_to
from waiting import until

TOKEN = "metrics-secret"
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Status:
    """What a node says of itself."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    async def get(self, path: str, token: str | None = TOKEN) -> tuple[int, Any]:
        """Waits for a node that is starting."""
        return await until(lambda: self._get(path, token))

    async def _get(self, path: str, token: str | None) -> tuple[int, Any] | None:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        try:
            async with aiohttp.ClientSession() as http, http.get(self._url + path, headers=headers) as answer:
                return answer.status, await (answer.json() if "json" in answer.content_type else answer.text())
        except aiohttp.ClientConnectorError:
            return None

    async def metrics(self) -> Samples:
        status, text = await self.get("/metrics")
        assert status == 200
        families = text_string_to_metric_families(text)
        return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}

    async def value(self, name: str, **labels: str) -> float | None:
        return (await self.metrics()).get((name, tuple(sorted(labels.items()))))

    async def sum(self, name: str, **labels: str) -> float:
        """Over the labels that are not given."""
        found = await self.metrics()
        return sum(v for (each, own), v in found.items() if each == name and labels.items() <= dict(own).items())

    async def ready(self) -> tuple[int, dict[str, str]]:
        status, body = await self.get("/readyz", None)
        assert body["ready"] is (status == 200)
        return status, body["checks"]

    async def is_ready(self) -> bool:
        return (await self.ready())[0] == 200

    async def unready(self, part: str) -> str:
        """Why the part does not work; empty: it does."""
        status, checks = await self.ready()
        assert status == (503 if set(checks.values()) - {"ok"} else 200)
        return "" if checks[part] == "ok" else checks[part]


@pytest.fixture
def status(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, patient: Service) -> Status:
    monkeypatch.setenv("POLAR_CONFIG_DIR", str(tmp_path / "secrets"))
    monkeypatch.setenv("POLAR_METRICS_TOKEN", TOKEN)
    port = port_to_come_back_to()
    patient.node_settings = {"metrics_port": port}
    return Status(port)


async def test_metrics_say_what_the_sessions_did(patient: Service, status: Status) -> None:
    served = await patient.add_node(running=2)
    await patient.client.submit(agent_task(task_id="good", num_samples=3))
    await patient.client.submit(agent_task("exit 3", task_id="bad"))
    results = await results_of(patient, "good", "bad")
    good = [result for result in results.values() if result.task_id == "good"]
    assert {result.stage for result in good} == {Stage.COMPLETED}

    use = served.node.calls.use.read()
    assert await status.value("polar_gateway_calls_total", dialect="openai_chat", outcome="answered") == 6
    assert await status.value("polar_gateway_sampled_tokens_total") == use.sampled_tokens
    assert await status.sum("polar_gateway_prompt_tokens_total") == use.prompt_tokens
    assert await status.value("polar_gateway_prompt_tokens_total", source="cache") > 0, "the scripted cache hits"
    assert await status.value("polar_gateway_first_token_seconds_count") == 6
    assert await status.value("polar_gateway_call_seconds_count") == 6
    completed = {"stage": "COMPLETED", "failed_by": "", "where": "", "type": ""}
    plugins = {"harness": "shell", "runtime": "local"}
    assert await status.value("polar_gateway_attempts_total", **completed, **plugins) == 3
    assert await status.sum("polar_gateway_attempts_total", stage="FAILED", where="harness") == 1
    assert await status.value("polar_gateway_stage_seconds_count", stage="RUNNING") == 4
    merged = sum(result.statistics.merged_pairs for result in good)
    assert merged and await status.value("polar_gateway_call_pairs_total", merged="yes") == merged
    assert await status.value("polar_gateway_call_pairs_total", merged="no") == 0
    assert await status.value("polar_gateway_token_age_updates_bucket", le="0.0") == use.sampled_tokens
    assert await status.value("polar_gateway_pool_size", stage="RUNNING") == 2
    assert await status.value("polar_gateway_sessions", stage="RUNNING") == 0
    assert await status.value("polar_gateway_connected") == 1
    assert (await status.value("process_resident_memory_bytes") or 0) > 2**20
    assert (await status.value("polar_event_loop_lag_seconds_count") or 0) > 0


async def test_a_session_that_runs_is_in_its_stage_and_its_tokens_age(patient: Service, status: Status) -> None:
    served = await patient.add_node(running=1)
    command, here, go = patient.held_up("old")
    await patient.client.submit(agent_task(command, task_id="t"))
    await until(here.exists)
    assert await status.value("polar_gateway_sessions", stage="RUNNING") == 1
    for version in ("one", "two"):
        await patient.client.set_policy_version(version)
        await until(lambda wanted=version: served.node.gate.policy.version == wanted)
    go.touch()
    (result,) = (await results_of(patient, "t")).values()
    assert result.policy_updates == 2
    sampled = served.node.calls.use.read().sampled_tokens
    assert await status.value("polar_gateway_token_age_updates_bucket", le="1.0") == 0
    assert await status.value("polar_gateway_token_age_updates_bucket", le="2.0") == sampled
    assert await status.value("polar_gateway_token_age_updates_sum") == 2 * sampled


async def test_failed_and_refused_calls_are_counted_by_code(patient: Service, status: Status) -> None:
    served = await patient.add_node(running=1)
    served.engine.outage_for_sessions = "out of order"
    asks = "import os,urllib.request as r;r.urlopen(r.Request(os.environ['OPENAI_BASE_URL']+'/chat/completions',"
    asks += "b'{}',{'content-type':'application/json','authorization':'Bearer '+os.environ['OPENAI_API_KEY']}))"
    await patient.client.submit(agent_task(f'python3 -c "{asks}"; {AGENT}', task_id="t"))
    assert await until(lambda: status.sum("polar_gateway_calls_total", outcome="failed"))
    assert await status.value("polar_gateway_call_problems_total", code="engine_error")
    served.engine.outage_for_sessions = ""
    await results_of(patient, "t")


async def test_metrics_need_their_token_and_health_needs_none(patient: Service, status: Status) -> None:
    await patient.add_node(running=1)
    await until(status.is_ready)
    for wrong in (None, "", "wrong", "node", "control", "mé"):
        code, body = await status.get("/metrics", wrong)
        assert code == 401 and TOKEN not in str(body)
    assert await status.get("/healthz", None) == (200, {"status": "ok"})


async def test_an_operator_may_open_the_metrics(patient: Service, status: Status) -> None:
    patient.node_settings |= {"metrics": "open"}
    await patient.add_node(running=1)
    code, text = await status.get("/metrics", None)
    assert code == 200 and "polar_gateway_sessions" in text


async def test_a_node_without_a_port_counts_nothing(service: Service) -> None:
    served = await service.add_node(running=1)
    await service.client.submit(agent_task(task_id="t"))
    await results_of(service, "t")
    assert served.node.calls._watchers == []  # pyright: ignore[reportPrivateUsage]


async def test_a_node_is_ready_when_all_that_it_needs_works(patient: Service, status: Status) -> None:
    await patient.add_node(running=1)
    await until(status.is_ready)
    every = {"engine": "ok", "disk": "ok", "descriptors": "ok", "server": "ok"}
    assert await status.ready() == (200, every)


async def test_an_engine_that_does_not_sample_makes_the_node_unready(patient: Service, status: Status) -> None:
    served = await patient.add_node(running=1)
    await until(status.is_ready)
    served.engine.outage = "out of order"
    assert await until(lambda: status.unready("engine")) == "out of order"
    assert served.node.health.sick is None, "no session had to fail first"
    served.engine.outage = ""
    await until(status.is_ready)


async def test_a_sick_node_is_unready_for_the_reason_of_its_sickness(patient: Service, status: Status) -> None:
    served = await patient.add_node(running=1)
    served.engine.outage = "gone"
    await patient.client.submit(agent_task(task_id="t"))
    await until(lambda: served.node.health.sick)
    assert await until(lambda: status.unready("engine")) == "gone"
    assert await status.value("polar_gateway_sick", part="engine") == 1
    served.engine.outage = ""
    await results_of(patient, "t")
    await until(status.is_ready)


async def test_a_paused_node_is_ready_and_says_that_it_was_not_probed(patient: Service, status: Status) -> None:
    served = await patient.add_node(running=1)
    await patient.client.pause()
    await until(lambda: served.node.gate.policy.paused)
    served.engine.outage = "asked though generation is paused"

    async def note() -> bool:
        code, checks = await status.ready()
        return code == 200 and checks["engine"] == "ok, not probed: generation is paused"

    await until(note)
    assert await status.value("polar_gateway_paused") == 1
    served.node.gate.set(Policy())


async def test_a_server_that_is_away_makes_the_node_unready(patient: Service, status: Status) -> None:
    served = await patient.add_node(running=1)
    await until(status.is_ready)
    served.uplink.cut()
    assert "the line is cut" in await until(lambda: status.unready("server"))
    assert await status.value("polar_gateway_connected") == 0
    served.uplink.mend()
    await until(status.is_ready)


async def test_a_full_disk_makes_the_node_unready(patient: Service, status: Status) -> None:
    patient.node_settings |= {"min_free_bytes": 2**62}
    await patient.add_node(running=1)
    assert "`node.min_free_bytes`" in await until(lambda: status.unready("disk"))


async def test_few_descriptors_make_the_node_unready(patient: Service, status: Status) -> None:
    await patient.add_node(running=1)
    await until(status.is_ready)
    with few_descriptors(40):
        assert "file descriptors are left" in await until(lambda: status.unready("descriptors"))
    await until(status.is_ready)


@contextmanager
def few_descriptors(spare: int) -> Iterator[None]:
    """So many more than are open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + spare, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_taken_port_is_refused_with_the_fix(smollm2: SmolLM2Renderer, patient: Service) -> None:
    port = int(patient.server.base_url.rpartition(":")[2])
    config = Config.model_validate({"node": {"metrics_port": port, "metrics": "open"}})
    paths = RunPaths.create(patient.folder / "runs")
    engine = (await patient.add_node(running=1)).engine
    async with open_node(config, paths, engine=engine, renderer=smollm2) as node:
        async with Uplink(patient.server.base_url, "node") as uplink:
            with pytest.raises(ConfigError, match=r"metrics on .*set another \[node\] metrics_port"):
                await serve_server(node, uplink, asyncio.Event())


class FailingObserver:
    """Fails whatever it sees."""

    seen = 0

    def _fail(self, *_: Any) -> None:
        self.seen += 1
        raise ServerAway("an observer of somebody's own")

    leased = stage_changed = call_ended = ended = _fail

    def collect(self) -> list[Any]:
        return []


async def test_an_observer_that_fails_costs_the_session_nothing(patient: Service) -> None:
    problems: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context["message"]))
    observer = FailingObserver()
    patient.observers = [observer]
    await patient.add_node(running=1)
    await patient.client.submit(agent_task(task_id="t"))
    (result,) = (await results_of(patient, "t")).values()
    assert result.stage is Stage.COMPLETED and result.statistics.calls == 2
    # One lease, five stages and the end, two calls, one result.
    assert observer.seen == len(problems) == 10
