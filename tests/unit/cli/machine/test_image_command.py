"""`polar image`: what it lists, removes and refuses. Builds are in `integration`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from polar.cli.app import app
from polar.runtimes.images.busybox import BUSYBOX
from polar.runtimes.images.catalog import RECORD_FILE, ImageRecord, images_dir


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLAR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")


def built(name: str, *, root: bool = True) -> Path:
    folder = images_dir() / name
    folder.mkdir(parents=True)
    versions = {"busybox-static": "1:1.35"}
    record = ImageRecord(recipe=BUSYBOX, versions=versions, tar_sha256="ab", tar_bytes=2_100_000, built=0.0)
    (folder / RECORD_FILE).write_text(record.model_dump_json())
    (folder / "root.tar").touch()
    if root:
        (folder / "root").mkdir()
    return folder


def polar(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["image", *arguments])
    return result.exit_code, result.output


def listed() -> list[dict[str, Any]]:
    code, output = polar("ls", "--json")
    assert code == 0
    return json.loads(output)["images"]


def test_no_images_yet() -> None:
    assert listed() == []
    assert "`polar image build` makes one" in polar("ls")[1]


def test_images_are_listed_with_where_they_can_be_used() -> None:
    built("tiny")
    built("packed", root=False)
    assert [(row["image"], row["usable_in"]) for row in listed()] == [
        ("packed", []),
        ("tiny", ["apptainer", "bubblewrap"]),
    ]
    assert "tiny    busybox  -       2  1970-01-01" in polar("ls")[1]


def test_one_that_cannot_be_read_is_listed_with_the_reason() -> None:
    (built("broken") / RECORD_FILE).write_text("{}")
    (row,) = listed()
    assert row["image"] == "broken" and "`polar image rm broken`" in row["problem"]
    assert polar("rm", "broken") == (0, "removed broken\n")


def test_one_that_is_there_is_not_built_again() -> None:
    folder = built("tiny")
    code, output = polar("build", "tiny", "--kind", "busybox", "--json")
    assert code == 0
    row = json.loads(output)
    assert (row["root"], row["installed"], row["engine"]) == (str(folder / "root"), 1, "")


def test_removal() -> None:
    folder = built("tiny")
    assert polar("rm", "tiny") == (0, "removed tiny\n")
    assert not folder.exists()
    code, output = polar("rm", "tiny")
    assert code == 2 and "there is no image 'tiny'" in output


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("Tiny", "--kind", "busybox"), "is not an image name"),
        (("--kind", "alpine"), "use debian or busybox"),
        (("--kind", "busybox", "--for", "moon"), "only for apptainer, bubblewrap, docker, folder"),
        (("--kind", "busybox", "--for", "docker"), "no Docker Engine answers"),
        (("--packages", "git,$(id)"), "not a Debian package name"),
    ],
)
def test_what_cannot_be_built_is_refused_before_anything_is(arguments: tuple[str, ...], reason: str) -> None:
    code, output = polar("build", *arguments)
    assert code == 2 and reason in " ".join(output.split())
    assert not images_dir().exists()
