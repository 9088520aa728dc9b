"""Options of the bubblewrap runtime, and the command lines it builds."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from polar.errors import RuntimeFailure
from polar.runtimes.bubblewrap.bwrap_command import marker, options
from polar.runtimes.bubblewrap.runtime import BubblewrapOptions, BubblewrapRuntime
from polar.runtimes.host.processes import owner, owner_scope


def test_the_strictest_network_that_reaches_the_model_is_the_default() -> None:
    assert BubblewrapOptions().network_mode == "gateway_only"


def test_all_networks_and_limits_can_be_asked_for() -> None:
    limits = {"cpus": 0.5, "memory_bytes": "1GiB", "pids": 100, "disk_bytes": "2GiB"}
    for network in ("gateway_only", "open", "none"):
        assert BubblewrapOptions.model_validate({"network": network, "limits": limits}).network_mode == network


@pytest.mark.parametrize("path", ["work", "", "/", "//", "/a/../..", "/a\0b", "/."])
def test_the_workspace_is_an_absolute_path_and_not_the_root(path: str) -> None:
    with pytest.raises(ValidationError, match="cannot be the workspace"):
        BubblewrapOptions(workspace=path)


def test_a_workspace_is_spelled_in_one_way() -> None:
    assert BubblewrapOptions(workspace="/work//deep/").workspace == "/work/deep"


async def test_a_runtime_that_is_not_started_says_so(tmp_path: Path) -> None:
    runtime = BubblewrapRuntime(BubblewrapOptions())
    with pytest.raises(RuntimeFailure, match="not started"):
        await runtime.get("file")
    with pytest.raises(RuntimeFailure, match="not started"):
        await runtime.listener()


async def test_missing_programs_are_reported_with_the_fix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert await BubblewrapRuntime.lacking() == "bwrap is not installed; `make bubblewrap` installs it"


def test_a_cage_holds_no_power_and_a_command_sees_its_own_environment(tmp_path: Path) -> None:
    told = list(options(tmp_path, {"KEY": "a b"}, "/work", {}))
    assert told[told.index("--cap-drop") + 1] == "ALL"
    assert told.index("--clearenv") < told.index("--setenv")
    assert told[told.index("--setenv") :][:3] == ["--setenv", "KEY", "a b"]
    assert {"--die-with-parent", "--unshare-pid", "--unshare-user", "--disable-userns"} <= set(told)


def test_a_mark_says_where_by_whom_and_for_what() -> None:
    assert marker(Path("/a/b")) == {"POLAR_CAGE": f"{owner_scope()}/{owner()}//a/b"}
