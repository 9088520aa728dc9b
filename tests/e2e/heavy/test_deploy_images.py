"""The images of deploy/: a server and a node in containers of their own run a session of the real agent.

The weights and the agent come from this machine's cache, because these containers reach no
network but their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from polar.config import cache_dir
from waiting import blocked_until

ROOT = Path(__file__).parents[3]
NAME = f"polar-deploy-test-{os.getpid()}"
TOKENS = {
    "POLAR_CONTROL_TOKEN": "control-of-the-test",
    "POLAR_NODE_TOKEN": "node-of-the-test",
    "POLAR_METRICS_TOKEN": "metrics-of-the-test",
}
MADE = {"polar-server", "polar-node"}
TASKS = """
[[tasks]]
task_id = "folder"
instruction = "Make a folder named music."
harness = { name = "pi", options = { tools = ["bash"] } }
sampling = { max_tokens = 96 }
budgets = { run_s = 240, max_calls = 6 }
evaluator = { name = "test_on_output", options = { command = "test -d music" } }
"""
FILL = (
    "cp -r /from/weights /to && mkdir /to/npm && cp -r /from/npm/*pi-coding-agent* /from/npm/node-linux* /to/npm"
)


def docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"docker {arguments}: {done.stderr}"
    return done.stdout.strip()


def log_of(container: str) -> str:
    return subprocess.run(["docker", "logs", container], capture_output=True, text=True, check=True).stderr


@pytest.fixture
def network() -> Iterator[str]:
    before = {*docker("images", "--format", "{{.Repository}}").split()}
    docker("network", "create", "--internal", NAME)
    docker("volume", "create", NAME)
    yield NAME
    for container in (f"{NAME}-node", f"{NAME}-server", f"{NAME}-trainer"):
        subprocess.run(["docker", "rm", "--force", container], capture_output=True, check=False)
    docker("network", "rm", NAME)
    docker("volume", "rm", NAME)
    for image in MADE - before:
        docker("rmi", image)


def test_a_session_runs_between_the_containers(network: str, tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(
        [ROOT / "deploy/images.sh"], check=True, env={**os.environ, "PATH": path, "PYTHON": sys.executable}
    )
    env = [word for name, value in TOKENS.items() for word in ("--env", f"{name}={value}")]
    cache = f"{NAME}:/var/lib/polar/cache"
    fill = f"{FILL} && chown -R 1000:1000 /to"
    docker("run", "--rm", "--user=0", f"-v{NAME}:/to", f"-v{cache_dir()}:/from:ro", "polar-node", "sh", "-c", fill)
    docker(
        "run",
        "-d",
        "--name",
        f"{NAME}-server",
        f"--network={network}",
        "--network-alias=server",
        *env,
        "polar-server",
    )
    state = ("inspect", "--format", "{{.State.Health.Status}}", f"{NAME}-server")
    blocked_until(lambda: docker(*state) == "healthy", pause_s=0.5)
    docker(
        "run", "-d", "--init", "--name", f"{NAME}-node", f"--network={network}", *env, f"-v{cache}", "polar-node"
    )
    blocked_until(lambda: "registered at" in log_of(f"{NAME}-node"), pause_s=0.5)
    (tmp_path / "tasks.toml").write_text(TASKS)
    tmp_path.chmod(0o755)
    trainer = (
        "--name",
        f"{NAME}-trainer",
        f"--network={network}",
        *env,
        f"-v{tmp_path}:/tasks:ro",
        "polar-server",
    )
    submit = ("polar", "submit", "/tasks/tasks.toml", "--server", "http://server:8700", "--wait")
    assert "each in exactly one trace" in docker("run", *trainer, *submit)
