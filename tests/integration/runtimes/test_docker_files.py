"""Files into a container and out of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from docker_machine import StartDocker, sh

from polar.errors import RuntimeFailure
from polar.runtimes.base import Command, Program
from polar.runtimes.docker.runtime import DockerRuntime

pytestmark = pytest.mark.check


@pytest.fixture
async def runtime(start_docker: StartDocker) -> DockerRuntime:
    return await start_docker()


@pytest.fixture(params=["root", "ann"])
async def anyones(start_docker: StartDocker, request: pytest.FixtureRequest) -> DockerRuntime:
    """Once as root, once as an ordinary user of the image."""
    return await start_docker(user=request.param)


def tree(folder: Path) -> Path:
    """A folder of the node with what a repository may hold."""
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "code.py").write_text("2\n")
    (folder / "run").write_text("#!/bin/sh\necho ran\n")
    (folder / "run").chmod(0o755)
    (folder / "link").symlink_to("src/code.py")
    (folder / "empty").mkdir()
    os.mkfifo(folder / "pipe")
    return folder


async def test_files_go_in_and_out(anyones: DockerRuntime) -> None:
    await anyones.put("a/b.txt", "héllo".encode())
    await anyones.put(".config/key.json", b"{}", home=True)
    await anyones.put("run", b"#!/bin/sh\necho ran\n", executable=True)

    assert await anyones.get("a/b.txt") == "héllo".encode()
    assert (await anyones.exec(Command(("./run",)))).stdout_tail == "ran\n"
    modes = await anyones.exec(sh("stat -c %a ~ ~/.config/key.json a/b.txt run"))
    assert modes.stdout_tail.split() == ["700", "600", "644", "755"]


async def test_what_is_put_belongs_to_the_user_inside(anyones: DockerRuntime) -> None:
    await anyones.put("deep/er/file", b"1")
    await anyones.put("key", b"1", home=True)
    finished = await anyones.exec(sh("echo 2 >deep/er/file && touch deep/x x ~/x && rm ~/key && mv deep other"))
    assert finished.exit_code == 0, finished.stderr_tail
    assert await anyones.get("other/er/file") == b"2\n"


async def test_a_file_put_again_is_replaced_and_large_ones_pass(runtime: DockerRuntime) -> None:
    content = os.urandom(5_000_000)
    await runtime.put("a", b"a longer text")
    await runtime.put("a", b"short")
    await runtime.put("large", content)
    assert await runtime.get("a") == b"short"
    assert await runtime.get("large") == content


async def test_a_file_that_is_not_there(runtime: DockerRuntime, tmp_path: Path) -> None:
    await runtime.exec(sh("mkdir folder; mkfifo pipe; touch file"))
    for path in ("missing", "folder", "pipe", "file/below"):
        with pytest.raises(FileNotFoundError):
            await runtime.get(path)
    for path in ("missing", "file/below"):
        with pytest.raises(FileNotFoundError):
            await runtime.fetch(path, tmp_path / "out", cap_bytes=100)


async def test_a_path_that_leaves_the_workspace_is_refused(runtime: DockerRuntime, tmp_path: Path) -> None:
    await runtime.exec(sh("ln -s /tmp out; ln -s /tmp/x file; ln -s ../home/polar up; ln -s circle circle"))
    await runtime.exec(
        sh("ln -s file far; ln -s ../../../../../nowhere/at/all climb; mkdir in; ln -s in/../../y dots")
    )
    bad = ["../x", "a/../../x", "/etc/passwd", "", "out/x", "out", "file", "up/x", "nul\0", "circle", "circle/x"]
    bad += ["far", "climb", "climb/x", "dots", "in/../../x"]
    for path in bad:
        with pytest.raises(RuntimeFailure):
            await runtime.put(path, b"")
        with pytest.raises(RuntimeFailure):
            await runtime.get(path)
        with pytest.raises(RuntimeFailure):
            await runtime.put_folder(tmp_path, path)
        with pytest.raises(RuntimeFailure):
            await runtime.fetch(path, tmp_path / "out", cap_bytes=100)
    assert (await runtime.exec(sh("ls -A /tmp ~"))).stdout_tail.split() == ["/home/polar:", "/tmp:"]
    assert not (tmp_path / "out").exists()


async def test_a_link_inside_the_workspace_is_followed(runtime: DockerRuntime) -> None:
    await runtime.exec(sh("mkdir real; ln -s real link; ln -s /work/link again; ln -s real/new/er dangling"))
    await runtime.put("again/file", b"text")
    await runtime.put("dangling/file", b"far")
    assert await runtime.get("link/file") == b"text"
    assert await runtime.get("real/new/er/file") == b"far"


async def test_what_stands_in_the_way_is_a_clear_failure(runtime: DockerRuntime, tmp_path: Path) -> None:
    await runtime.exec(sh("touch file; mkdir folder"))
    for path in ("file/below", "folder", "."):
        with pytest.raises(RuntimeFailure, match="cannot write"):
            await runtime.put(path, b"")
    with pytest.raises(RuntimeFailure, match="cannot write"):
        await runtime.put_folder(tree(tmp_path / "tree"), "file")
    await runtime.put("src", b"a file where the tree has a folder")
    with pytest.raises(RuntimeFailure):
        await runtime.put_folder(tmp_path / "tree", ".")
    with pytest.raises(RuntimeFailure, match="not a folder"):
        await runtime.put_folder(tmp_path / "missing", "new")


@pytest.mark.parametrize("path", [".", "new", "new/er"])
async def test_a_folder_goes_in_over_what_is_there(anyones: DockerRuntime, tmp_path: Path, path: str) -> None:
    await anyones.put(f"{path}/src/kept.py", b"1")
    await anyones.put_folder(tree(tmp_path / "tree"), path)

    finished = await anyones.exec(Command(("sh", "-c", "./run; cat link; echo 3 >src/code.py; ls -A"), cwd=path))

    assert finished.stdout_tail.split() == ["ran", "2", "empty", "link", "run", "src"]
    assert await anyones.get(f"{path}/src/kept.py") == b"1"
    assert await anyones.get(f"{path}/src/code.py") == b"3\n"
    assert (tmp_path / "tree" / "src" / "code.py").read_text() == "2\n"


async def test_the_workspace_begins_with_its_base(start_docker: StartDocker, tmp_path: Path) -> None:
    runtime = await start_docker(base=tree(tmp_path / "base"))
    assert (await runtime.exec(sh("./run; cat link"))).stdout_tail == "ran\n2\n"


async def test_an_images_own_folder_is_the_workspace(start_docker: StartDocker) -> None:
    first, second = [await start_docker(workspace="/testbed") for _ in range(2)]
    assert first.workspace == "/testbed"
    await first.exec(sh("cat src/code.py; echo changed >src/code.py"))
    assert await first.get("src/code.py") == b"changed\n"
    assert await second.get("src/code.py") == b"1\n"


async def test_a_tree_comes_out_without_what_is_dangerous(runtime: DockerRuntime, tmp_path: Path) -> None:
    await runtime.put_folder(tree(tmp_path / "tree"), "tree")
    await runtime.exec(sh("cd tree; ln run again; truncate -s 300M huge; ln huge as-huge"))
    await runtime.exec(sh("cd tree; ln -s /etc/passwd out; ln -s ../.. up; mkfifo fifo"))
    await runtime.kill()

    fetched = await runtime.fetch("tree", tmp_path / "out", cap_bytes=100)

    out = tmp_path / "out"
    assert sorted(path.name for path in out.iterdir()) == ["again", "empty", "link", "run", "src"]
    assert (out / "again").read_text() == (out / "run").read_text() == "#!/bin/sh\necho ran\n"
    assert os.access(out / "run", os.X_OK)
    assert os.readlink(out / "link") == "src/code.py"
    assert fetched.files == 3
    assert {line.partition(":")[0] for line in fetched.left_out} == {"out", "up", "fifo", "huge", "as-huge"}


async def test_a_single_file_comes_out_and_one_over_the_cap_does_not(
    runtime: DockerRuntime, tmp_path: Path
) -> None:
    await runtime.put("log.txt", b"x" * 100, home=True)
    fetched = await runtime.fetch("log.txt", tmp_path / "a" / "b", cap_bytes=100, home=True)
    assert (tmp_path / "a" / "b").read_bytes() == b"x" * 100
    assert (fetched.files, fetched.size_bytes, fetched.left_out) == (1, 100, ())

    fetched = await runtime.fetch("log.txt", tmp_path / "c", cap_bytes=99, home=True)
    assert not (tmp_path / "c").exists()
    assert fetched.left_out == ("log.txt: 100 bytes are over the cap",)


async def test_tools_are_read_and_not_written(start_docker: StartDocker, tmp_path: Path) -> None:
    program = Program("our-tool", tree(tmp_path / "tool"))
    runtime = await start_docker(programs=(program,))
    at = runtime.program(program)
    assert (await runtime.exec(Command((f"{at}/run",)))).stdout_tail == "ran\n"
    finished = await runtime.exec(sh(f"echo 3 >{at}/src/code.py || touch {at}/new || rm -rf {at}/*; ls {at}"))
    assert "new" not in finished.stdout_tail
    assert "ead-only" in finished.stderr_tail
    assert (program.source / "src" / "code.py").read_text() == "2\n"


async def test_a_file_larger_than_memory_is_not_read(runtime: DockerRuntime) -> None:
    await runtime.exec(sh("dd if=/dev/zero of=sparse bs=1 count=0 seek=1T 2>/dev/null || truncate -s 1T sparse"))
    with pytest.raises(RuntimeFailure, match="at most 268435456 can be read"):
        await runtime.get("sparse")
