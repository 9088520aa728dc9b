"""Folders of the node that a task may mount: permitted ones, whatever links lead to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from polar.config import PermitConfig
from polar.runtimes.bubblewrap.runtime import BubblewrapOptions
from polar.runtimes.local.runtime import LocalOptions
from polar.runtimes.mounts import node_folders


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data" / "set").mkdir(parents=True)
    (tmp_path / "private").mkdir()
    return tmp_path / "data"


def asking(source: Path | str, target: str = "/data") -> BubblewrapOptions:
    return BubblewrapOptions.model_validate({"mounts": [{"source": str(source), "target": target}]})


def refusals(options: BubblewrapOptions, *roots: Path) -> str:
    return "; ".join(options.refused_by(PermitConfig(mounts=roots)))


def test_a_folder_below_a_permitted_one_is_mounted(data: Path) -> None:
    options = asking(data / "set")
    assert refusals(options, data) == ""
    assert [(each.source, each.target) for each in node_folders(options.mounts)] == [(data / "set", "/data")]


def test_by_default_nothing_may_be_mounted(data: Path) -> None:
    assert "is in no folder of the node's setting permits.mounts" in refusals(asking(data))


def test_a_link_that_leads_out_is_refused(data: Path) -> None:
    (data / "link").symlink_to(data.parent / "private")
    refused = refusals(asking(data / "link"), data)
    assert f"(it is {data.parent / 'private'}) is in no folder" in refused
    assert refusals(asking(data / ".." / "private"), data) != ""


def test_a_link_into_a_permitted_folder_is_mounted_as_what_it_leads_to(data: Path) -> None:
    (data.parent / "in").symlink_to(data / "set")
    options = asking(data.parent / "in")
    assert refusals(options, data) == ""
    assert node_folders(options.mounts)[0].source == data / "set"


def test_a_permitted_folder_may_be_a_link_itself(data: Path) -> None:
    (data.parent / "root").symlink_to(data)
    assert refusals(asking(data / "set"), data.parent / "root") == ""


def test_a_name_that_only_begins_alike_is_refused(data: Path) -> None:
    (data.parent / "data-private").mkdir()
    assert refusals(asking(data.parent / "data-private"), data) != ""


def test_a_file_or_nothing_is_named(data: Path) -> None:
    (data / "file").write_text("")
    assert "is not a folder of this node" in refusals(asking(data / "file"), data)
    assert "is not a folder of this node" in refusals(asking(data / "none"), data)


def test_a_folder_with_another_file_system_below_is_refused() -> None:
    assert "holds another file system, at " in refusals(asking("/"), Path("/"))


@pytest.mark.parametrize("target", ["/work", "/work/data", "/home/polar/x", "/home", "/proc/x", "/opt/polar/pi"])
def test_a_target_must_not_overlap_the_sessions_own_folders(target: str) -> None:
    with pytest.raises(ValidationError, match=f"mounts: {target} overlaps"):
        asking("/data", target)


@pytest.mark.parametrize("target", ["relative", "/a/../b", "/", "/a/", "/a,b", ""])
def test_a_target_is_a_plain_absolute_path(target: str) -> None:
    with pytest.raises(ValidationError, match="target"):
        asking("/data", target)


def test_two_mounts_must_not_overlap() -> None:
    mounts = [{"source": "/a", "target": "/data"}, {"source": "/b", "target": "/data/b"}]
    with pytest.raises(ValidationError, match="/data/b overlaps /data"):
        BubblewrapOptions.model_validate({"mounts": mounts})


@pytest.mark.parametrize("options", [{"mounts": [{"source": "/a", "target": "/a"}]}, {"prepare_network": "open"}])
def test_the_local_runtime_refuses_both(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="use bubblewrap, docker or apptainer"):
        LocalOptions.model_validate(options)


def test_the_network_of_prepare_needs_a_permit() -> None:
    options = BubblewrapOptions.model_validate({"prepare_network": "open"})
    assert options.refused_by(PermitConfig()) == [
        "prepare_network: the node's setting permits.prepare_network is off"
    ]
    assert options.refused_by(PermitConfig(prepare_network=True)) == []


def test_paths_of_a_task_file_are_relative_to_it(tmp_path: Path) -> None:
    assert asking("data").located(tmp_path) == {"mounts": [{"source": str(tmp_path / "data"), "target": "/data"}]}
