"""Files of a bubblewrap session: put and get, copy-on-write over a base or an image, links that lead outside."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from bubblewrap_bench import Sessions, needs_bubblewrap, sh

from polar.errors import RuntimeFailure
from polar.runtimes.base import Command
from polar.runtimes.bubblewrap.runtime import BubblewrapRuntime

pytestmark = needs_bubblewrap


@pytest.fixture
async def sessions(tmp_path: Path) -> AsyncIterator[Sessions]:
    made = Sessions(tmp_path)
    yield made
    await made.stop()


@pytest.fixture
async def runtime(sessions: Sessions) -> BubblewrapRuntime:
    return await sessions.start()


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "main.c").write_text("int main;")
    (folder / "README").write_text("read me")
    (folder / "link").symlink_to("src/main.c")
    return folder


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A root folder with a shell, a few programs, the libraries they need, and a `/testbed`."""
    root = tmp_path / "image"
    programs = [shutil.which(name) for name in ("sh", "cat", "ls", "touch", "rm", "mkdir")]
    needed = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True).stdout
    for path in {*programs, *re.findall(r"(/\S+) \(0x", needed)}:
        (root / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, root / path.lstrip("/"))
    (root / "testbed").mkdir()
    (root / "testbed" / "setup.py").write_text("setup()")
    if not (root / "bin").exists():
        (root / "bin").symlink_to("usr/bin")
    return root


def content(folder: Path) -> dict[str, str]:
    """Of every file and link in it."""
    paths = [path for path in folder.rglob("*") if path.is_symlink() or path.is_file()]
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_bytes().hex()
        for path in paths
    }


# In and out


async def test_files_go_in_and_out(runtime: BubblewrapRuntime) -> None:
    await runtime.put("a/b.txt", "héllo".encode())
    await runtime.put("key.json", b"{}", home=True)
    await runtime.put("run", b"#!/bin/sh\necho ran\n", executable=True)

    assert await runtime.get("a/b.txt") == "héllo".encode()
    assert (await runtime.exec(Command(argv=("./run",)))).stdout_tail == "ran\n"
    assert (await runtime.exec(sh("stat -c %a ~/key.json ~ a/b.txt"))).stdout_tail == "600\n700\n644\n"


async def test_a_file_put_again_is_replaced(runtime: BubblewrapRuntime) -> None:
    await runtime.put("a", b"a longer text")
    await runtime.put("a", b"short")
    assert await runtime.get("a") == b"short"


async def test_a_large_file_comes_back_whole(runtime: BubblewrapRuntime) -> None:
    large = os.urandom(5_000_000)
    await runtime.put("large", large)
    assert await runtime.get("large") == large


async def test_a_file_that_is_not_there(runtime: BubblewrapRuntime) -> None:
    await runtime.exec(sh("mkdir folder; mkfifo pipe"))
    for path in ("missing", "folder", "pipe"):
        with pytest.raises(FileNotFoundError):
            await runtime.get(path)


@pytest.mark.parametrize(
    "path", ["../x", "a/../../x", "/etc/passwd", "", "out/x", "out", "file", "nul\0", "circle", "circle/x"]
)
async def test_a_path_that_leaves_the_workspace_is_refused(
    runtime: BubblewrapRuntime, tmp_path: Path, path: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_text("the node's")
    await runtime.exec(sh(f"ln -s {outside} out; ln -s {outside}/x file; ln -s circle circle"))

    with pytest.raises(RuntimeFailure):
        await runtime.put(path, b"mine")
    with pytest.raises((RuntimeFailure, FileNotFoundError)):
        await runtime.get(path)
    assert content(outside) == {"x": b"the node's".hex()}


async def test_a_link_inside_the_workspace_is_followed(runtime: BubblewrapRuntime) -> None:
    await runtime.put("real/file", b"text")
    await runtime.exec(sh("ln -s real relative; ln -s /work/real absolute"))
    assert await runtime.get("relative/file") == b"text"
    assert await runtime.get("absolute/file") == b"text"


async def test_a_file_in_the_way_of_a_folder_is_a_clear_failure(runtime: BubblewrapRuntime) -> None:
    await runtime.put("file", b"")
    with pytest.raises(RuntimeFailure, match="cannot write"):
        await runtime.put("file/below", b"")


async def test_a_folder_is_copied_in_with_links_and_modes(runtime: BubblewrapRuntime, base: Path) -> None:
    (base / "README").chmod(0o751)
    os.utime(base / "README", (1_000_000_000, 1_000_000_000))
    await runtime.put_folder(base, "copy")
    finished = await runtime.exec(sh("stat -c '%a %Y' copy/README; readlink copy/link; cat copy/src/main.c"))
    assert finished.stdout_tail == "751 1000000000\nsrc/main.c\nint main;"


async def test_a_folder_is_laid_over_what_is_there(runtime: BubblewrapRuntime, base: Path) -> None:
    await runtime.put("src/kept.c", b"kept")
    await runtime.put("README/was/a/folder", b"")
    await runtime.put_folder(base, ".")
    assert (await runtime.exec(sh("ls src; cat README"))).stdout_tail == "kept.c\nmain.c\nread me"


async def test_a_folder_copied_in_does_not_follow_the_agents_links(
    runtime: BubblewrapRuntime, base: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "README").write_text("the node's")
    await runtime.exec(sh(f"ln -s {outside} src; ln -s {outside}/README README; ln -s /home/polar link"))
    await runtime.put_folder(base, ".")
    assert content(outside) == {"README": b"the node's".hex()}
    assert (await runtime.exec(sh("cat src/main.c; ls ~"))).stdout_tail == "int main;"


async def test_a_folder_that_is_none_is_a_clear_failure(runtime: BubblewrapRuntime, tmp_path: Path) -> None:
    with pytest.raises(RuntimeFailure, match="is not a folder"):
        await runtime.put_folder(tmp_path / "nowhere", ".")


async def test_what_an_agent_made_comes_out(runtime: BubblewrapRuntime, tmp_path: Path) -> None:
    await runtime.exec(
        sh(r"""
        mkdir -p 'odd
name' deep/er; echo 1 >'odd
name/file'; printf 2 >"$(printf 'not\377utf8')"; ln -s deep/er inside; ln -s /etc/passwd outside
        mkfifo pipe; head -c 5000 /dev/zero >big; echo run >tool; chmod +x tool; truncate -s 1T hole
        """)
    )
    fetched = await runtime.fetch(".", tmp_path / "out", cap_bytes=2000)

    out = tmp_path / "out"
    assert (out / "odd\nname" / "file").read_text() == "1\n"
    assert (out / os.fsdecode(b"not\377utf8")).read_text() == "2"
    assert os.readlink(out / "inside") == "deep/er"
    assert (out / "tool").stat().st_mode & 0o111
    for name in ("outside", "pipe", "big", "hole"):
        assert not os.path.lexists(out / name)
        assert any(left.startswith(f"{name}:") for left in fetched.left_out)
    assert fetched.files == 3


async def test_one_file_and_the_home_come_out_too(runtime: BubblewrapRuntime, tmp_path: Path) -> None:
    await runtime.put("logs/a.log", b"in the home", home=True)
    await runtime.put("a.log", b"in the workspace")
    await runtime.fetch("logs", tmp_path / "logs", cap_bytes=1000, home=True)
    await runtime.fetch("a.log", tmp_path / "kept" / "a.log", cap_bytes=1000)
    assert (tmp_path / "logs" / "a.log").read_bytes() == b"in the home"
    assert (tmp_path / "kept" / "a.log").read_bytes() == b"in the workspace"
    with pytest.raises(FileNotFoundError, match="nothing"):
        await runtime.fetch("nothing", tmp_path / "none", cap_bytes=1000)


async def test_many_files_at_once_do_not_get_mixed_up(runtime: BubblewrapRuntime) -> None:
    async def there_and_back(number: int) -> bytes:
        await runtime.put(f"file-{number}", str(number).encode())
        return await runtime.get(f"file-{number}")

    assert await asyncio.gather(*map(there_and_back, range(100))) == [str(n).encode() for n in range(100)]


# Copy-on-write


@pytest.mark.parametrize("limits", [{}, {"disk_bytes": "64MiB"}], ids=["on disk", "in a sized room"])
async def test_the_base_is_there_and_stays_as_it_is(
    sessions: Sessions, base: Path, tmp_path: Path, limits: dict[str, str]
) -> None:
    before = content(base)
    runtime = await sessions.start(sessions.folders(base=base), limits=limits)
    assert await runtime.get("src/main.c") == b"int main;"

    await runtime.exec(sh("echo changed >README; rm link; mv src sources; mkdir src; touch src/new"))
    await runtime.put("src/main.c", b"put")

    assert content(base) == before
    await runtime.fetch(".", tmp_path / "out", cap_bytes=10_000)
    assert content(tmp_path / "out") == {
        "README": b"changed\n".hex(),
        "sources/main.c": b"int main;".hex(),
        "src/main.c": b"put".hex(),
        "src/new": "",
    }


async def test_sessions_over_one_base_do_not_see_each_other(sessions: Sessions, base: Path) -> None:
    first = await sessions.start(sessions.folders("s-1", base))
    second = await sessions.start(sessions.folders("s-2", base))
    await first.exec(sh("echo mine >README"))
    assert await second.get("README") == b"read me"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
async def test_a_base_of_another_user_is_copied_so_that_it_can_be_changed(sessions: Sessions, base: Path) -> None:
    for path in [base, *base.rglob("*")]:
        os.chown(path, 65534, 65534, follow_symlinks=False)
    runtime = await sessions.start(sessions.folders(base=base))
    assert (await runtime.exec(sh("echo changed >README && cat src/main.c"))).stdout_tail == "int main;"
    assert (base / "README").read_text() == "read me"


async def test_an_image_is_the_root_and_can_be_written_anywhere(sessions: Sessions, image: Path) -> None:
    before = content(image)
    first = await sessions.start(sessions.folders("s-1"), image=str(image))
    finished = await first.exec(sh("mkdir /srv; touch /srv/x /etc-like; rm /testbed/setup.py; ls /"))
    assert finished.exit_code == 0, finished.stderr_tail
    assert "etc-like" in finished.stdout_tail

    second = await sessions.start(sessions.folders("s-2"), image=str(image))
    assert (await second.exec(sh("ls /srv"))).exit_code != 0
    assert content(image) == before


async def test_the_workspace_may_be_a_folder_of_the_image(sessions: Sessions, image: Path, base: Path) -> None:
    own = await sessions.start(sessions.folders("s-1"), image=str(image), workspace="/testbed")
    assert await own.get("setup.py") == b"setup()"
    await own.put("setup.py", b"changed")
    assert (await own.exec(sh("cat setup.py"))).stdout_tail == "changed"

    brought = await sessions.start(sessions.folders("s-2", base), image=str(image), workspace="/testbed")
    assert (await brought.exec(sh("ls"))).stdout_tail == "README\nlink\nsrc\n"
    assert (image / "testbed" / "setup.py").read_text() == "setup()"


@pytest.mark.parametrize("workspace", ["/home", "/home/polar/project", "/tmp/project"])
async def test_the_workspace_may_lie_in_the_home_or_around_it(sessions: Sessions, workspace: str) -> None:
    runtime = await sessions.start(workspace=workspace)
    await runtime.put("file", b"in the workspace")
    await runtime.put("other", b"in the home", home=True)
    finished = await runtime.exec(sh("cat file ~/other; touch ~/new /tmp/new; pwd"))
    assert finished.stdout_tail == f"in the workspacein the home{workspace}\n"


async def test_an_images_links_lead_nowhere_on_the_node(sessions: Sessions, image: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    for name in ("home", "opt", "work"):
        (image / name).symlink_to(outside)
    runtime = await sessions.start(image=str(image))
    await runtime.put("file", b"", home=True)
    await runtime.put("file", b"")
    assert list(outside.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
async def test_an_image_of_another_user_is_refused(sessions: Sessions, image: Path) -> None:
    os.chown(image, 65534, 65534)
    with pytest.raises(RuntimeFailure, match="belongs to another user"):
        await sessions.start(image=str(image))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another group")
async def test_an_images_files_of_other_groups_can_be_changed(sessions: Sessions, image: Path) -> None:
    os.chown(image / "testbed", 0, 50)
    os.chown(image / "testbed" / "setup.py", 0, 50)
    runtime = await sessions.start(image=str(image), workspace="/testbed")
    assert (await runtime.exec(sh("echo more >>setup.py; touch new; rm new"))).exit_code == 0


async def test_a_file_that_pretends_to_be_huge_is_not_read(sessions: Sessions) -> None:
    runtime = await sessions.start()
    await runtime.exec(sh("truncate -s 1T huge"))
    with pytest.raises(RuntimeFailure, match="1099511627776 bytes; at most"):
        await runtime.get("huge")
