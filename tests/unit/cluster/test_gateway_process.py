"""The command line of a node as a child process."""

from __future__ import annotations

from pathlib import Path

from polar.cluster.gateway_process import GatewayProcess


def test_each_start_has_a_run_of_its_own() -> None:
    node = GatewayProcess("gateway 1", "http://server:8700", Path("runs"), None)
    first, second = node.arguments(), node.arguments()
    assert first[:5] == ["--runs-dir", "runs", "gateway", "--server", "http://server:8700"]
    assert first != second and first[:6] == second[:6] == [*first[:5], "--run-id"]


def test_a_drain_also_gives_the_child_longer_to_stop() -> None:
    node = GatewayProcess("gateway 1", "http://server", Path("runs"), Path("polar.toml"), drain_s=90)
    assert node.arguments()[-4:] == ["--config", "polar.toml", "--drain", "90"]
    assert node.program().drain_s == 90


def test_a_token_is_in_the_environment_alone() -> None:
    node = GatewayProcess(
        "gateway 1", "http://server", Path("runs"), None, environment={"POLAR_NODE_TOKEN": "secret"}
    )
    assert node.program().environment == {"POLAR_NODE_TOKEN": "secret"}
    assert "secret" not in f"{node!r} {node.program()!r} {node.arguments()}"
