"""Built images: found by name or path, built once and completely, built again on request, removed."""

from __future__ import annotations

import asyncio
import stat
import tarfile
from pathlib import Path

import pytest

from polar.errors import PolarError, RuntimeFailure
from polar.runtimes.images.build import ImageOrder, build, forms_of, recipe
from polar.runtimes.images.busybox import BUSYBOX
from polar.runtimes.images.catalog import RECORD_FILE, built_images, find, images_dir, remove, root_folder
from waiting import until

APT_GET = "echo one >>$HITS; $BEFORE; : >busybox-static_1.35_amd64.deb"
DPKG_DEB = """
case $1 in
--extract) mkdir -p "$3/bin"; printf '#!/bin/sh\\nprintf "busybox\\\\nls\\\\nsh\\\\n"\\n' >"$3/bin/busybox"
    chmod 755 "$3/bin/busybox" ;;
--field) echo 1:1.35 ;;
esac
"""


class Machine:
    """apt has a package with a small program, and no Docker Engine answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: list[str] = []
        self.before("true")
        (folder / "dpkg-deb").write_text(f"#!/bin/sh\n{DPKG_DEB}")
        (folder / "dpkg-deb").chmod(0o755)

    def before(self, command: str) -> None:
        """Called first by the fake apt."""
        script = APT_GET.replace("$HITS", str(self.folder / "hits")).replace("$BEFORE", command)
        (self.folder / "apt-get").write_text(f"#!/bin/sh\n{script}\n")
        (self.folder / "apt-get").chmod(0o755)

    @property
    def downloads(self) -> int:
        hits = self.folder / "hits"
        return len(hits.read_text().splitlines()) if hits.exists() else 0

    async def build(self, name: str = "tiny", *, afresh: bool = False) -> Path:
        await build(ImageOrder(name, BUSYBOX, forms_of(["folder"]), afresh), self.told.append)
        return root_folder(name)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("POLAR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    return Machine(programs)


def left() -> list[str]:
    """The content of the images folder, without locks."""
    return sorted(path.name for path in images_dir().iterdir() if not path.name.endswith(".lock"))


async def test_an_image_is_a_tar_a_root_folder_and_a_record(machine: Machine) -> None:
    root = await machine.build()
    image = find("tiny")
    assert image is not None and image.root == root
    assert image.record.recipe == BUSYBOX and image.record.versions == {"busybox-static": "1:1.35"}
    assert image.record.tar_bytes == image.tar.stat().st_size and len(image.record.tar_sha256) == 64
    assert (root / "bin/sh").readlink() == Path("busybox")
    assert stat.S_IMODE((root / "tmp").stat().st_mode) == 0o1777
    assert (root / "etc/passwd").read_text().startswith("root:x:0:0:")
    assert machine.told == ["downloading busybox-static", "computing its digest", "unpacking the root folder"]


async def test_it_is_made_once(machine: Machine) -> None:
    first = (await machine.build()).stat().st_ino
    assert (await machine.build()).stat().st_ino == first
    assert machine.downloads == 1 and machine.told[-1] == "already built"


async def test_two_at_once_make_one(machine: Machine) -> None:
    machine.before("sleep 0.3")
    await asyncio.gather(machine.build(), machine.build())
    assert machine.downloads == 1


async def test_it_is_made_again_when_asked_and_the_old_one_goes(machine: Machine) -> None:
    first = await machine.build()
    (first / "written-later").touch()
    again = await machine.build(afresh=True)
    assert machine.downloads == 2 and not (again / "written-later").exists()
    assert left() == ["tiny"]


async def test_another_recipe_is_another_image(machine: Machine) -> None:
    await machine.build()
    record = images_dir() / "tiny" / RECORD_FILE
    record.write_text(record.read_text().replace('"kind": "busybox"', '"kind": "debian"'))
    await machine.build()
    assert machine.downloads == 2


async def test_a_build_that_fails_leaves_what_was_there(machine: Machine) -> None:
    before = await machine.build()
    machine.before("echo 'E: no such package' >&2; exit 100")
    with pytest.raises(RuntimeFailure, match=r"apt-get failed \(100\): E: no such package"):
        await machine.build(afresh=True)
    assert (before / "bin/sh").is_symlink() and left() == ["tiny"]


async def test_a_cache_that_cannot_be_written_is_an_error(machine: Machine) -> None:
    (images_dir() / ".tiny.lock").mkdir(parents=True)
    with pytest.raises(PolarError, match=r"cannot write to .*: Is a directory; set POLAR_CACHE"):
        await machine.build()


async def test_a_program_that_is_not_here_is_named(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine.folder / "apt-get").unlink()
    monkeypatch.setenv("PATH", str(machine.folder))
    with pytest.raises(RuntimeFailure, match="apt-get, which is needed to build an image, is not on PATH"):
        await machine.build()
    assert left() == []


async def test_a_build_that_is_broken_off_leaves_nothing_and_ends_its_program(
    machine: Machine, tmp_path: Path
) -> None:
    machine.before(f"echo $$ >{tmp_path}/pid; sleep 300")
    building = asyncio.create_task(machine.build())
    await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    building.cancel()
    with pytest.raises(asyncio.CancelledError):
        await building
    assert left() == []
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


async def test_what_a_killed_build_left_is_removed_by_the_next(machine: Machine) -> None:
    for name in (".tiny+dead", ".other+alive"):
        (images_dir() / name / "half").mkdir(parents=True)
    await machine.build()
    assert left() == [".other+alive", "tiny"]


async def test_a_root_that_only_its_owner_may_not_touch_becomes_usable(machine: Machine) -> None:
    """Modes that lock the owner out and setuid bits are removed."""
    await machine.build()
    image = find("tiny")
    assert image is not None
    await asyncio.to_thread(_add_awkward_entries, image.tar)
    _forget_root(image.root)
    await build(ImageOrder("tiny", BUSYBOX, forms_of(["folder"])), machine.told.append)
    root = root_folder("tiny")
    assert stat.S_IMODE((root / "closed").stat().st_mode) & 0o700 == 0o700
    assert not (root / "su").stat().st_mode & (stat.S_ISUID | stat.S_ISGID)
    assert list((root / "dev").iterdir()) == []


def _add_awkward_entries(tar: Path) -> None:
    with tarfile.open(tar, "a") as archive:
        closed, su, null = (tarfile.TarInfo(f"./{name}") for name in ("closed", "su", "dev/null"))
        closed.type, closed.mode = tarfile.DIRTYPE, 0o055
        su.mode = 0o6755
        null.type, null.devmajor, null.devminor = tarfile.CHRTYPE, 1, 3
        for entry in (closed, su, null):
            archive.addfile(entry)


def _forget_root(root: Path) -> None:
    root.rename(root.with_name("moved"))


async def test_no_engine_no_image_in_one(machine: Machine) -> None:
    with pytest.raises(RuntimeFailure, match="`make docker`"):
        await build(ImageOrder("tiny", BUSYBOX, forms_of(["docker"])), machine.told.append)
    assert machine.downloads == 0


def test_what_a_folder_is_for() -> None:
    assert forms_of(["apptainer", "bubblewrap"]) == {"folder"}
    assert forms_of(["docker", "folder"]) == {"folder", "engine"}
    with pytest.raises(RuntimeFailure, match="'moon', only for apptainer, bubblewrap, docker, folder"):
        forms_of(["moon"])


def test_recipes_that_make_no_sense() -> None:
    assert recipe("busybox", None, None) == BUSYBOX
    with pytest.raises(RuntimeFailure, match="no packages and no suite"):
        recipe("busybox", ["git"], None)
    with pytest.raises(RuntimeFailure, match="use debian or busybox"):
        recipe("alpine", None, None)


async def test_a_path_has_a_slash_in_it(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny").mkdir()
    assert root_folder("./tiny") == tmp_path / "tiny"
    with pytest.raises(RuntimeFailure, match=r"there is no image folder \./absent"):
        root_folder("./absent")
    with pytest.raises(RuntimeFailure, match="`polar image build tiny`"):
        root_folder("tiny")
    assert await machine.build() == images_dir() / "tiny/root" == root_folder("tiny")


async def test_an_image_without_its_folder_says_so(machine: Machine) -> None:
    _forget_root(await machine.build())
    with pytest.raises(RuntimeFailure, match="no root folder: `polar image build tiny` unpacks it"):
        root_folder("tiny")


@pytest.mark.parametrize("name", ["", "Tiny", "a..b", "-a", ".hidden", "a:b", "a+b"])
def test_names_that_no_engine_takes(name: str, machine: Machine) -> None:
    with pytest.raises(RuntimeFailure, match="is not an image name"):
        find(name)


async def test_a_record_that_cannot_be_read_can_still_be_removed(machine: Machine) -> None:
    await machine.build()
    (images_dir() / "tiny" / RECORD_FILE).write_text("{}")
    with pytest.raises(RuntimeFailure, match="`polar image rm tiny`"):
        find("tiny")
    assert built_images() == ["tiny"]
    remove("tiny")
    assert built_images() == [] and find("tiny") is None
    with pytest.raises(RuntimeFailure, match="there is no image 'tiny'"):
        remove("tiny")
