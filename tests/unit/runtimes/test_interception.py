"""What a session that intercepts hosts is given: names, files and variables. Which names a task may give."""

from __future__ import annotations

import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from polar.config import PermitConfig
from polar.errors import RuntimeFailure
from polar.registry import plugin_problems
from polar.runtimes import interception
from polar.runtimes.apptainer.runtime import ApptainerOptions
from polar.runtimes.base import SessionFolders
from polar.runtimes.bubblewrap.runtime import BubblewrapOptions, BubblewrapRuntime
from polar.runtimes.docker.options import DockerOptions, EngineImage, container_config
from polar.runtimes.host_names import PROVIDERS
from polar.runtimes.interception import TrustFolder, hosts_text, node_bundles
from polar.runtimes.options import RuntimeOptions
from polar.types import TaskRequest

CONTAINED: tuple[type[RuntimeOptions], ...] = (BubblewrapOptions, DockerOptions, ApptainerOptions)
AUTHORITY = "-----BEGIN CERTIFICATE-----"


@pytest.fixture
def trust(tmp_path: Path) -> TrustFolder:
    return TrustFolder(tmp_path, "s-1", ("api.example.com",))


@pytest.mark.parametrize("kind", CONTAINED)
def test_nothing_is_intercepted_unless_a_task_asks(kind: type[RuntimeOptions]) -> None:
    assert kind().intercept == kind.model_validate({"intercept": False}).intercept == ()


@pytest.mark.parametrize("kind", CONTAINED)
def test_true_is_the_official_sdks_hosts(kind: type[RuntimeOptions]) -> None:
    assert kind.model_validate({"intercept": True}).intercept == PROVIDERS


def test_names_are_normalized() -> None:
    options = BubblewrapOptions.model_validate({"intercept": ["API.Example.com.", "a-b.example.co.uk"]})
    assert options.intercept == ("api.example.com", "a-b.example.co.uk")


@pytest.mark.parametrize(
    "name",
    [
        *("localhost", "a.localhost", "printer.local", "127.0.0.1", "::1", "example", "", "."),
        *(
            "*.example.com",
            "api.example.com:443",
            "https://api.example.com",
            "a b.example.com",
            "x\n127.0.0.1 y.com",
        ),
        *("-a.example.com", "a..example.com", "é.example.com", f"{'a' * 64}.example.com", f"{'a.' * 130}com"),
    ],
)
def test_what_is_no_full_name_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="is not the full name of a host, such as"):
        BubblewrapOptions.model_validate({"intercept": [name]})


def test_there_are_at_most_32() -> None:
    with pytest.raises(ValidationError, match="at most 32"):
        BubblewrapOptions.model_validate({"intercept": [f"a{number}.example.com" for number in range(33)]})


@pytest.mark.parametrize("network", ["open", "none"])
def test_it_needs_the_gateways_listener(network: str) -> None:
    with pytest.raises(ValidationError, match=f"intercept needs network 'gateway_only', not '{network}'"):
        BubblewrapOptions.model_validate({"intercept": True, "network": network})


def test_a_runtime_that_contains_nothing_refuses_when_the_task_is_submitted() -> None:
    runtime = {"name": "local", "options": {"intercept": True}}
    (problem,) = plugin_problems(TaskRequest.model_validate({"instruction": "go", "runtime": runtime}))
    assert "this runtime does not support intercept" in problem
    assert "use bubblewrap, docker or apptainer" in problem


def test_a_runtime_of_somebody_else_refuses_unless_it_says_that_it_can() -> None:
    with pytest.raises(ValidationError, match="this runtime does not support intercept"):
        RuntimeOptions.model_validate({"intercept": True})


def test_its_files_are_readable_and_hold_no_key(trust: TrustFolder) -> None:
    files = sorted(trust.folder.iterdir())
    assert [file.name for file in files] == ["authority.pem", "bundle.pem", "hosts"]
    for file in files:
        assert stat.S_IMODE(file.stat().st_mode) == 0o644
        assert "PRIVATE KEY" not in file.read_text()
    assert stat.S_IMODE(trust.folder.stat().st_mode) == 0o755


def test_the_bundle_is_the_nodes_and_the_authority(trust: TrustFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = (trust.folder / "authority.pem").read_text()
    assert authority.startswith(AUTHORITY) and authority.count(AUTHORITY) == 1
    assert trust.bundle.read_text().endswith(authority)
    if bundles := node_bundles():
        assert trust.bundle.read_text().startswith(Path(bundles[0]).read_text())
    monkeypatch.setattr(interception, "SYSTEM_BUNDLES", ("/no/such/file",))
    bare = TrustFolder(trust.folder, "s-1", ("api.example.com",))
    assert bare.bundle.read_text().count(AUTHORITY) == 1, "on a node without authorities"


def test_links_to_one_bundle_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real.pem").write_text("x")
    (tmp_path / "link.pem").symlink_to("real.pem")
    paths = tuple(str(tmp_path / name) for name in ("link.pem", "real.pem", "none.pem"))
    monkeypatch.setattr(interception, "SYSTEM_BUNDLES", paths)
    assert node_bundles() == [str(tmp_path.resolve() / "real.pem")]


def test_the_names_lead_to_loopback(trust: TrustFolder) -> None:
    assert trust.hosts.read_text() == "127.0.0.1 localhost\n::1 localhost\n127.0.0.1 api.example.com\n"
    assert hosts_text(()) == "127.0.0.1 localhost\n::1 localhost\n"


def test_the_variables_name_files_inside(trust: TrustFolder) -> None:
    variables = trust.variables()
    assert variables["SSL_CERT_FILE"] == variables["REQUESTS_CA_BUNDLE"] == "/opt/polar/trust/bundle.pem"
    assert variables["NODE_EXTRA_CA_CERTS"] == "/opt/polar/trust/authority.pem"
    assert {Path(path).name for path in variables.values()} <= {file.name for file in trust.folder.iterdir()}


def test_without_its_package_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "polar.runtimes.session_authority", None)
    with pytest.raises(RuntimeFailure, match=r"pip install 'polar-rollout\[intercept\]'"):
        TrustFolder(tmp_path, "s-1", ("api.example.com",))


@pytest.mark.parametrize(
    ("options", "hosts"), [({}, None), ({"intercept": ["api.example.com"]}, ["api.example.com:127.0.0.1"])]
)
def test_a_container_is_created_with_the_names(options: dict[str, Any], hosts: list[str] | None) -> None:
    folders = SessionFolders("s-1", Path("/place"), Path("/logs"))
    config = container_config(DockerOptions.model_validate(options), folders, EngineImage("x"), "{}")
    assert config["HostConfig"].get("ExtraHosts") == hosts


async def test_a_missing_package_is_found_before_the_first_session(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = BubblewrapRuntime(BubblewrapOptions.model_validate({"intercept": True}))
    await runtime.provide(PermitConfig(), lambda _: None)
    monkeypatch.setitem(sys.modules, "polar.runtimes.session_authority", None)
    with pytest.raises(RuntimeFailure, match=r"pip install 'polar-rollout\[intercept\]'"):
        await runtime.provide(PermitConfig(), lambda _: None)
    await BubblewrapRuntime(BubblewrapOptions()).provide(PermitConfig(), lambda _: None)
