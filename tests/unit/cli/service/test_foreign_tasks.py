"""Whose tasks a node runs decides which addresses its evaluators may call, and which modules it imports."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from polar.cli.app import app
from polar.cli.logs import LogOptions
from polar.cli.service import gateway as gateway_command
from polar.cli.service.server import ServerChild
from polar.cluster.gateway_process import GatewayProcess
from polar.config import Config
from polar.store.paths import RunPaths


def test_a_worker_passes_on_that_the_tasks_are_the_users_own() -> None:
    def arguments(*, own_tasks: bool) -> list[str]:
        return GatewayProcess("gateway 1", "http://here", Path("runs"), None, own_tasks=own_tasks).arguments()

    assert "--own-tasks" in arguments(own_tasks=True)
    assert "--own-tasks" not in arguments(own_tasks=False)


@pytest.mark.parametrize(("flags", "endpoints"), [([], ()), (["--own-tasks"], None)])
def test_a_gateway_calls_no_address_unless_the_tasks_are_the_users_own(
    flags: list[str], endpoints: tuple[()] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Config] = []

    async def served(config: Config, address: str, paths: RunPaths) -> None:
        seen.append(config)

    monkeypatch.setattr(gateway_command, "serve", served)
    monkeypatch.setattr(LogOptions, "apply", lambda _: None)  # other tests have loggers of their own
    monkeypatch.setenv("POLAR_NODE_TOKEN", "token")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["--runs-dir", "runs", "gateway", "--server", "http://127.0.0.1:9", *flags])
    assert result.exit_code == 0, result.output
    assert [config.permits.endpoints for config in seen] == [endpoints]


def test_a_service_passes_on_the_modules_of_the_users_tasks() -> None:
    node = GatewayProcess(
        "gateway 1", "http://here", Path("runs"), None, allowed_modules=("mine", "*")
    ).arguments()
    server = ServerChild(0, None, None, None, Path("address"), None, allowed_modules=("mine", "*")).arguments()
    for arguments in (node, server):
        assert [each for each in arguments if "module" in each] == ["--allow-module=mine", "--allow-module=*"]


@pytest.mark.parametrize(
    ("flags", "allowed"), [([], ("listed",)), (["--allow-module", "mine"], ("listed", "mine"))]
)
def test_a_gateway_imports_what_its_config_lists(
    flags: list[str], allowed: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Config] = []

    async def served(config: Config, address: str, paths: RunPaths) -> None:
        seen.append(config)

    monkeypatch.setattr(gateway_command, "serve", served)
    monkeypatch.setattr(LogOptions, "apply", lambda _: None)
    monkeypatch.setenv("POLAR_NODE_TOKEN", "token")
    monkeypatch.chdir(tmp_path)
    Path("polar.toml").write_text('[node]\nallowed_modules = ["listed"]\n')
    result = CliRunner().invoke(app, ["--runs-dir", "runs", "gateway", "--server", "http://127.0.0.1:9", *flags])
    assert result.exit_code == 0, result.output
    assert [config.node.allowed_modules for config in seen] == [allowed]
