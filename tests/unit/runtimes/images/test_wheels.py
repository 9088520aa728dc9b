"""Python packages of an image: which ones may be asked for, and how they get in."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from polar.errors import RuntimeFailure
from polar.runtimes.images.build import recipe
from polar.runtimes.images.wheels import checked, wheel_hooks, wheels_in


@pytest.mark.parametrize("text", ["numpy", "requests==2.32.3", "uvicorn[standard]>=0.30,<1", "torch~=2.4"])
def test_names_with_versions_are_packages(text: str) -> None:
    assert checked([text, text]) == (text,)


@pytest.mark.parametrize("text", ["", "-r x", "./local", "git+https://x", "a b", "a;b", "a @ file:///x", "$(x)"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(RuntimeFailure, match="is not a Python package"):
        checked([text])


def test_pip_packages_bring_python_and_pip_with_them() -> None:
    chosen = recipe("debian", ["git"], "bookworm", ["ripgrep"], ["numpy"])
    assert chosen.packages == ("git", "python3", "python3-pip", "ripgrep")
    assert chosen.pip == ("numpy",)


def test_a_busybox_image_takes_none() -> None:
    with pytest.raises(RuntimeFailure, match="takes no packages"):
        recipe("busybox", None, None, pip=["numpy"])


def test_without_packages_there_are_no_hooks() -> None:
    assert wheel_hooks(()) == ()


def test_the_hooks_are_valid_shell_and_quote_what_was_asked_for() -> None:
    download, install = wheel_hooks(("numpy>=2,<3",))
    assert "'numpy>=2,<3'" in download and "'numpy>=2,<3'" in install
    assert "--only-binary=:all:" in download and "--no-index" in install
    for hook in (download, install):
        assert subprocess.run(["sh", "-n", "-c", hook]).returncode == 0


def test_versions_are_read_from_the_tar(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "root.tar", "w") as tar:
        for name in ("numpy-2.1.0.dist-info", "Some_Thing-1.0.dist-info", "numpy"):
            folder = tarfile.TarInfo(f"./usr/local/lib/python3.11/dist-packages/{name}")
            folder.type = tarfile.DIRTYPE
            tar.addfile(folder, io.BytesIO())
    assert wheels_in(tmp_path / "root.tar") == {"pip:numpy": "2.1.0", "pip:some-thing": "1.0"}
