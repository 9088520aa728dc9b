"""Whose tasks a node runs decides which addresses its evaluators may call."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from polar.cli.app import app
from polar.cli.logs import LogOptions
from polar.cli.service import gateway as gateway_command
from polar.cli.service.gateway import Worker
from polar.config import Config
from polar.store.paths import RunPaths


def test_a_worker_passes_on_that_the_tasks_are_the_users_own() -> None:
    def arguments(*, own_tasks: bool) -> list[str]:
        return Worker("gateway 1", "http://here", Path("runs"), None, own_tasks=own_tasks).arguments()

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
