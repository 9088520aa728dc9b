"""`polar server`, `polar gateway` and `polar up` as a user runs them: real processes, clean ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from polar.types import NodeStatus, Stage
from service_bench import AGENT, ServiceBench, agent_task, stopped
from waiting import hang_limit, until


def write_tasks(bench: ServiceBench, command: str = AGENT, samples: int = 3) -> None:
    tasks = [agent_task(command, task_id=name, num_samples=samples).model_dump(mode="json") for name in ("b", "a")]
    (bench.folder / "tasks.json").write_text(json.dumps(tasks))


async def finished(process: subprocess.Popen[bytes]) -> int:
    return await asyncio.to_thread(process.wait, 90)


def output_of(bench: ServiceBench) -> str:
    return max(bench.folder.glob("*.log"), key=lambda path: path.stat().st_mtime).read_text()


class TestUp:
    async def test_a_task_file_runs_to_the_end_and_nothing_is_left(self, bench: ServiceBench) -> None:
        write_tasks(bench)
        assert await finished(bench.start("up", "tasks.json", "--workers", "2")) == 0, output_of(bench)
        text = output_of(bench)
        assert "1.0 1.0 1.0" in text and "each in exactly one trace, + 0 dropped" in text
        assert " show b-0 --tokens" in text, "what to do next, as after `polar run`"
        (run,) = (bench.folder / "polar-runs").iterdir()
        assert (run / "server.db").is_file()
        assert len(list((run / "logs").glob("gateway-*.log"))) == 2
        assert list(run.glob("**/place")) == [] and bench.ours() == []

    @pytest.mark.check
    async def test_what_it_prints_can_be_looked_at_like_any_run(self, bench: ServiceBench) -> None:
        write_tasks(bench, samples=2)
        assert await finished(bench.start("up", "tasks.json", "--json")) == 0
        value = json.loads(output_of(bench))
        assert [r["session_id"] for r in value["results"]] == ["b-0", "b-1", "a-0", "a-1"]
        assert value["sampled_tokens"] == value["trainable_tokens"] > 0
        assert all((bench.folder / value["path"] / r["traces"]).is_file() for r in value["results"])
        looks = (["show", "a-1", "--tokens"], ["replay", "a-1", "--builder", "per_request"], ["audit"], ["ls"])
        for command in looks:
            assert await finished(bench.start(*command)) == 0, output_of(bench)
        assert "COMPLETED 4" in output_of(bench)

    async def test_a_failure_of_the_infrastructure_is_its_exit_code(self, bench: ServiceBench) -> None:
        write_tasks(bench, "no-such-agent", samples=1)
        assert await finished(bench.start("up", "tasks.json")) == 1
        assert "no-such-agent" in output_of(bench)

    @pytest.mark.parametrize("how", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.check)])
    async def test_an_interrupt_keeps_what_was_captured(self, bench: ServiceBench, how: signal.Signals) -> None:
        here = bench.folder / "here"
        write_tasks(bench, f"{AGENT}; touch {here}; sleep 600", samples=1)
        up = bench.start("up", "tasks.json", "--json")
        await until(here.exists)
        assert await stopped(up, how) == 130, output_of(bench)
        value = json.loads(output_of(bench))
        assert {r["stage"] for r in value["results"]} == {"CANCELLED"} and value["trainable_tokens"] > 0
        assert bench.ours() == [] and bench.left_running() == []

    async def test_nonsense_is_refused_before_anything_starts(self, bench: ServiceBench) -> None:
        (bench.folder / "tasks.json").write_text('[{"instruction": "x", "harness": "codexx"}]')
        assert await finished(bench.start("up", "tasks.json")) == 2
        assert "unknown harness 'codexx'" in output_of(bench)
        assert not (bench.folder / "polar-runs").exists()

    @pytest.mark.check
    async def test_an_engine_that_does_not_start_ends_it_with_its_words(self, bench: ServiceBench) -> None:
        options = '[engine]\nname = "embedded"\noptions = { gguf = "absent.gguf" }\n'
        (bench.folder / "polar.toml").write_text(options)
        write_tasks(bench)
        assert await finished(bench.start("up", "tasks.json")) == 2
        assert "gateway 1 does not run: no GGUF file at absent.gguf" in output_of(bench)
        assert bench.ours() == []
        assert not list((bench.folder / "polar-runs").iterdir()), "a refused start leaves no run"

    @pytest.mark.check
    async def test_without_tasks_it_serves_until_it_is_stopped(self, bench: ServiceBench) -> None:
        up = bench.start("up", "--host", "127.0.0.2", "--port", "0")
        await until(lambda: "Ready for tasks." in output_of(bench))
        assert "http://127.0.0.2:" in output_of(bench)
        bench.address = output_of(bench).partition("rollout server  ")[2].split()[0]
        for name in ("control-token", "node-token"):
            secret = bench.folder / "secrets" / name
            assert secret.stat().st_mode & 0o777 == 0o600
            assert secret.read_text() not in bench.logs() + " ".join(bench.ours()), "nowhere to be read"
        async with bench.client() as client:
            assert [node.alive for node in await client.nodes()] == [True], "`polar submit` would refuse"
            await client.submit(agent_task(task_id="t"))
            assert [e.result.stage async for e in client.results(task_ids=["t"])] == [Stage.COMPLETED]
        assert await stopped(up, signal.SIGINT) == 0
        assert bench.ours() == []

    @pytest.mark.check
    async def test_it_can_be_stopped_while_its_nodes_start(self, bench: ServiceBench) -> None:
        up = bench.start("up", "--port", "0")
        await until(lambda: "Starting the nodes" in output_of(bench))
        assert await stopped(up, signal.SIGINT) == 0
        assert bench.ours() == []

    @pytest.mark.check
    async def test_killed_it_leaves_nothing_running(self, bench: ServiceBench) -> None:
        scratch = bench.folder / "tmp"
        scratch.mkdir()
        bench.env["TMPDIR"] = str(scratch)
        up = bench.start("up", "--port", "0")
        await until(lambda: "Ctrl-C stops everything" in output_of(bench))
        await stopped(up, signal.SIGKILL)
        await until(lambda: bench.ours() == [])
        assert list(scratch.iterdir()) == []


class TestGateway:
    @pytest.mark.check
    async def test_workers_are_started_again_and_stopped_together(self, bench: ServiceBench) -> None:
        server = await bench.start_server()
        gateway = bench.start_node("--workers", "2")
        async with bench.client() as client:

            async def alive(number: int) -> list[NodeStatus]:
                async with hang_limit():
                    while len(nodes := [n for n in await client.nodes() if n.alive]) != number:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
                return nodes

            first = await alive(2)
            here = bench.folder / "here"
            await client.submit(agent_task(f"{AGENT}; touch {here}; sleep 600", task_id="t"))
            await until(here.exists)
            holder = (await client.session("t-0")).node_id
            (name,) = [node.name for node in first if node.node_id == holder]
            os.kill(int(name.rpartition(":")[2]), signal.SIGKILL)
            here.unlink()
            await until(here.exists)
            assert (await client.session("t-0")).attempt == 2
            assert {n.node_id for n in await alive(2)} != {n.node_id for n in first}
            assert len(bench.left_running()) > 0
            assert await stopped(gateway) == 0, bench.logs()
            assert (await client.session("t-0")).stage is Stage.QUEUED, "handed back"
            assert await client.nodes() == [] or not any(n.alive for n in await client.nodes() if n.sessions)
        assert bench.left_running() == []
        assert list((bench.folder / "polar-runs").glob("**/place")) == []
        assert await stopped(server) == 0 and bench.ours() == []

    @pytest.mark.check
    async def test_a_sigterm_hands_its_session_to_another_node(self, bench: ServiceBench) -> None:
        server, here, go = await bench.start_server(), bench.folder / "here", bench.folder / "go"
        first = bench.start_node()
        async with bench.client() as client:
            waiting = f"{AGENT}; touch {here}; while [ ! -e {go} ]; do sleep 0.05; done"
            await client.submit(agent_task(waiting, task_id="t"))
            await until(here.exists)
            second = bench.start_node()
            assert await stopped(first) == 0
            go.touch()
            (result,) = [entry.result async for entry in client.results(task_ids=["t"])]
        assert (result.stage, result.attempt) == (Stage.COMPLETED, 2), result.failure
        assert [await stopped(process) for process in (second, server)] == [0, 0]

    @pytest.mark.check
    async def test_a_missing_or_wrong_token_is_an_error(self, bench: ServiceBench) -> None:
        server = await bench.start_server()
        bench.env["POLAR_NODE_TOKEN"] = "wrong"
        assert await finished(bench.start_node()) == 2
        assert "refuses this node's token" in output_of(bench)
        bench.env["POLAR_CONFIG_DIR"] = str(bench.folder / "nowhere")
        del bench.env["POLAR_NODE_TOKEN"]
        assert await finished(bench.start_node("--workers", "2")) == 2
        assert "no node-token at" in output_of(bench)
        assert await stopped(server) == 0

    async def test_it_may_be_stopped_before_there_is_a_server(self, bench: ServiceBench) -> None:
        bench.address = "http://127.0.0.1:9"
        (bench.folder / "secrets").mkdir()
        (bench.folder / "secrets" / "node-token").write_text("x")
        gateway = bench.start_node()
        await until(lambda: "the server is away" in output_of(bench))
        assert await stopped(gateway, signal.SIGINT) == 0
        (run,) = (bench.folder / "polar-runs").iterdir()
        assert run.name.startswith("gateway-") and (run / "run.json").is_file()


@pytest.mark.check
async def test_a_taken_port_is_an_error(bench: ServiceBench) -> None:
    server = await bench.start_server()
    port = bench.address.rpartition(":")[2]
    assert await finished(bench.start("server", "--port", port)) == 2
    assert f"cannot listen on 127.0.0.1:{port}" in output_of(bench)
    assert "choose another with --port" in output_of(bench)
    assert await finished(bench.start("up", "--port", port)) == 2
    assert "choose another with --port" in output_of(bench)
    assert Path(bench.folder / "polar-server.db").is_file()
    assert await stopped(server) == 0
