"""`polar token` and `polar actions` as an operator runs them: the server and a node go on, over TLS."""

from __future__ import annotations

import asyncio
import json
import stat
import subprocess

import pytest

from certificates import Authority
from polar.client import PolarClient
from service_bench import CONFIG, POLAR, ServiceBench, agent_task
from waiting import HANG_S, hang_limit, until

pytestmark = pytest.mark.check


async def polar(bench: ServiceBench, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**bench.env, "POLAR_SERVER": bench.address}
    return await asyncio.to_thread(
        subprocess.run,
        [*POLAR, *arguments],
        cwd=bench.folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )


async def test_tokens_are_rotated_while_the_service_runs(bench: ServiceBench) -> None:
    authority = Authority(bench.folder)
    cert, key = bench.folder / "server.pem", bench.folder / "server.key"
    authority.sign(cert, key)
    (bench.folder / "polar.toml").write_text(f'{CONFIG}tls_cert = "{cert}"\ntls_key = "{key}"\n')
    bench.env["POLAR_CA_FILE"] = str(authority.file)
    await bench.start_server()
    assert bench.address.startswith("https://")
    node = bench.start_node()
    await until(lambda: bench.has_registered(node))
    file = bench.folder / "secrets" / "control-token"
    old = file.read_text()

    rotated = await polar(bench, "token", "rotate", "control", "--now")
    assert rotated.returncode == 0, rotated.stderr
    assert str(file) in rotated.stdout and "has ended" in rotated.stdout
    new = file.read_text()
    assert new != old and stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.glob("*.next")] == []
    assert old not in rotated.stdout and new not in rotated.stdout

    async with hang_limit(), PolarClient(bench.address, new, ca_file=str(authority.file)) as client:
        await client.submit(agent_task(task_id="after"))
        async for entry in client.results(task_ids=["after"]):
            assert entry.result.score is not None and entry.result.score.reward == 1.0

    answered = await polar(bench, "token", "ls", "--json")
    assert answered.returncode == 0, answered.stderr
    listed = json.loads(answered.stdout)["tokens"]
    assert [one["kind"] for one in listed if one["expires"] is None] == ["node", "control"]
    shown = (await polar(bench, "actions")).stdout
    assert "access.rotate" in shown and "nodes.register" in shown and "task_id=after" in shown
    refused = await polar(bench, "token", "rotate", "other")
    assert refused.returncode == 2 and "control or node" in refused.stderr
    logs = bench.logs()
    assert old not in logs and new not in logs
