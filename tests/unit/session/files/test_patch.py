"""The patch of a session: applied to what the workspace began with, it gives what the workspace became."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from bench import IDENTITY, Begin, sh, workspace_of

from polar.session.files.patch import PatchError, keep_patch, note_baseline
from polar.session.live import LiveSession
from polar.types import Stage

Tree = dict[str, tuple[str, bytes]]
GIT_ENV = {"PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": "/dev/null", **IDENTITY}


def git(folder: Path, *arguments: str) -> str:
    environment = GIT_ENV | {"GIT_CEILING_DIRECTORIES": str(folder.parent)}
    argv = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stderr
    return done.stdout


def tree_of(folder: Path) -> Tree:
    """Files and links with what git knows of them; `.git` folders and what is ignored left out."""
    found: Tree = {}
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != ".git"]
        for name in [*names, *(name for name in folders if Path(parent, name).is_symlink())]:
            path = Path(parent, name)
            if name.endswith(".ignored"):
                continue
            kind = "link" if path.is_symlink() else "program" if path.stat().st_mode & 0o100 else "file"
            content = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
            found[str(path.relative_to(folder))] = (kind, content)
    return found


def applied(base: Path, patch: Path, scratch: Path) -> Tree:
    """What a fresh copy of the base becomes by the patch."""
    shutil.copytree(base, scratch, symlinks=True)
    if patch.stat().st_size:
        shutil.rmtree(scratch / ".git", ignore_errors=True)
        git(scratch, "apply", "--whitespace=nowarn", str(patch))
    return tree_of(scratch)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "main.c").write_text("int main() {\n  return 1;\n}\n")
    (folder / "logo.bin").write_bytes(bytes(range(256)) * 4)
    (folder / "run").write_text("#!/bin/sh\n")
    (folder / "run").chmod(0o755)
    (folder / "latest").symlink_to("src/main.c")
    (folder / ".gitignore").write_text("*.ignored\n")
    (folder / "cache.ignored").write_text("not looked at\n")
    return folder


async def changed(begin: Begin, base: Path | None, script: str, **keep: object) -> LiveSession:
    live = await begin(base, keep={"patch": True, **keep})
    await note_baseline(live)
    await sh(live, script)
    await keep_patch(live)
    return live


async def assert_patch_tells_all(live: LiveSession, base: Path, tmp_path: Path) -> None:
    assert live.kept == ["patch.diff"] and live.left_out == []
    assert applied(base, live.paths.patch, tmp_path / "scratch") == tree_of(workspace_of(live))


async def test_a_change_is_readable(begin: Begin, base: Path, tmp_path: Path) -> None:
    live = await changed(begin, base, "sed -i 's/return 1/return 0/' src/main.c")
    lines = live.paths.patch.read_text().splitlines()
    assert "-  return 1;" in lines and "+  return 0;" in lines
    assert "--- a/src/main.c" in lines
    await assert_patch_tells_all(live, base, tmp_path)


async def test_every_kind_of_change(begin: Begin, base: Path, tmp_path: Path) -> None:
    script = r"""
        rm run && mkdir run && echo x >run/inside
        printf '\000\001new' >logo.bin && chmod +x logo.bin
        ln -sf run/inside latest && ln -s nowhere 'a link'
        rm -r src && echo now-a-file >src
        printf 'no newline' >"$(printf 'odd\n\t"name\377')"
        : >empty && : >-dash
        echo more >new.ignored
    """
    live = await changed(begin, base, script)
    await assert_patch_tells_all(live, base, tmp_path)
    assert b".ignored" not in live.paths.patch.read_bytes()


async def test_no_change_is_an_empty_patch(begin: Begin, base: Path) -> None:
    live = await changed(begin, base, "touch src/main.c; echo x >y; rm y; mkdir empty")
    assert live.kept == ["patch.diff"] and live.paths.patch.read_bytes() == b""


async def test_an_empty_workspace_may_be_filled(begin: Begin, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    live = await changed(begin, None, "mkdir -p a/b && echo x >a/b/c")
    await assert_patch_tells_all(live, tmp_path / "nothing", tmp_path)


class TestIgnored:
    async def test_what_the_repository_tracks_counts_though_it_is_ignored(
        self, begin: Begin, base: Path, tmp_path: Path
    ) -> None:
        git(base, "init", "-q")
        git(base, "add", "--all")
        git(base, "add", "-f", "cache.ignored")
        git(base, "commit", "-qm", "all")
        live = await changed(begin, base, "echo changed >cache.ignored; echo new >other.ignored")
        patch = live.paths.patch.read_text()
        assert "+changed" in patch and "other.ignored" not in patch

    async def test_what_is_no_longer_ignored_is_no_news(self, begin: Begin, base: Path, tmp_path: Path) -> None:
        live = await changed(begin, base, "rm .gitignore; echo new >new.ignored")
        patch = live.paths.patch.read_text()
        assert "+new" in patch and "cache.ignored" not in patch
        await assert_patch_tells_all(live, base, tmp_path)

    async def test_what_becomes_ignored_is_still_known(self, begin: Begin, base: Path, tmp_path: Path) -> None:
        live = await changed(begin, base, "echo '*' >.gitignore; echo changed >run; rm latest")
        await assert_patch_tells_all(live, base, tmp_path)


class TestRepositories:
    async def test_the_agents_own_is_not_touched(self, begin: Begin, base: Path) -> None:
        git(base, "init", "-q")
        git(base, "add", "--all")
        git(base, "commit", "-qm", "all")
        live = await changed(begin, base, "git rm -q run && git commit -qm gone; echo x >staged; git add staged")
        assert "deleted file mode 100755" in live.paths.patch.read_text(), "what was committed is a change too"
        assert git(workspace_of(live), "status", "--porcelain") == "A  staged\n"
        assert not list((workspace_of(live) / ".git").glob("**/polar*"))

    async def test_one_within_the_workspace_is_a_folder(self, begin: Begin, base: Path, tmp_path: Path) -> None:
        script = """
            git init -q app && echo code >app/main && git init -q app/deps/lib && echo lib >app/deps/lib/x
            cd app/deps/lib && git add x && git commit -qm x
        """
        live = await changed(begin, base, script)
        patch = live.paths.patch.read_text()
        assert "+++ b/app/main" in patch and "+++ b/app/deps/lib/x" in patch and ".git/" not in patch
        await assert_patch_tells_all(live, base, tmp_path)

    async def test_one_that_was_there_before(self, begin: Begin, base: Path, tmp_path: Path) -> None:
        (base / "vendor" / "lib").mkdir(parents=True)
        (base / "vendor" / "lib" / "x").write_text("x\n")
        git(base / "vendor" / "lib", "init", "-q")
        live = await changed(begin, base, "echo y >vendor/lib/x; rm -r vendor/lib/.git")
        await assert_patch_tells_all(live, base, tmp_path)


class TestHostile:
    TRAP = 'touch "$HOME/sprung"; cat'

    async def test_no_program_of_the_agents_runs(self, begin: Begin, base: Path, tmp_path: Path) -> None:
        """Settings, attributes, hooks and watchers that would start one, in every place git could look at."""
        script = rf"""
            printf '#!/bin/sh\n{self.TRAP}\n' >"$HOME/trap" && chmod +x "$HOME/trap"
            git init -q .
            for file in "$HOME/.gitconfig" .git/config "$HOME/.polar/before.git/config"; do
                for key in core.fsmonitor filter.x.clean filter.x.process diff.external diff.x.textconv \
                           diff.x.command core.pager; do
                    git config -f "$file" $key "$HOME/trap"
                done
                git config -f "$file" core.hooksPath "$HOME/hooks"
            done
            mkdir "$HOME/hooks" && cp "$HOME/trap" "$HOME/hooks/post-index-change"
            echo '* filter=x diff=x text eol=crlf ident' >.gitattributes
            printf 'one\r\n$Id$\n' >src/main.c
        """
        live = await changed(begin, base, script)
        assert not (live.paths.place / "home" / "sprung").exists()
        await assert_patch_tells_all(live, base, tmp_path)

    async def test_a_destroyed_baseline_is_noted(self, begin: Begin, base: Path) -> None:
        with pytest.raises(PatchError, match="git cannot compare the workspace"):
            await changed(begin, base, 'rm -rf "$HOME/.polar"')

    async def test_names_that_git_does_not_take_are_noted(self, begin: Begin, base: Path) -> None:
        live = await changed(begin, base, "echo x >good; mkdir sub; echo x >sub/git~1")
        assert "+++ b/good" in live.paths.patch.read_text()
        assert live.left_out == ["patch.diff: without files that git could not read; logs/patch.stderr names them"]
        assert "git~1" in (live.paths.logs / "patch.stderr").read_text()

    async def test_a_link_in_place_of_the_patch_shows_nothing_of_the_node(self, begin: Begin, base: Path) -> None:
        live = await changed(begin, base, 'ln -s /etc/passwd "$HOME/.polar/patch.diff"')
        assert live.paths.patch.read_bytes() == b""


async def test_a_patch_over_the_cap_is_not_kept(begin: Begin, base: Path) -> None:
    live = await changed(begin, base, "head -c 5000 /dev/urandom >noise", cap_bytes=1000)
    assert live.kept == [] and live.left_out == ["patch.diff: more than the cap of 1000 bytes"]
    assert not live.paths.patch.exists()


async def test_one_that_just_fits_is(begin: Begin, base: Path, tmp_path: Path) -> None:
    size = (await changed(begin, base, "echo x >new")).paths.patch.stat().st_size
    live = await changed(begin, base, "echo x >new", cap_bytes=size)
    await assert_patch_tells_all(live, base, tmp_path)
    assert (await changed(begin, base, "echo x >new", cap_bytes=size - 1)).kept == []


async def test_without_git_the_session_cannot_begin(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    for program in ("sh", "cat"):
        (tmp_path / "bin" / program).symlink_to(shutil.which(program) or "")
    live = await begin(keep={"patch": True})
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(PatchError, match=r"keep\.patch needs git in the runtime"):
        await note_baseline(live)


async def test_a_task_that_wants_no_patch_runs_no_git(begin: Begin, base: Path) -> None:
    live = await begin(base)
    await note_baseline(live)
    await keep_patch(live)
    assert live.session.stage == Stage.QUEUED and list(live.paths.logs.iterdir()) == []


NAMES = [
    "a",
    "b.txt",
    "with space",
    'quo"te',
    "tab\there",
    "new\nline",
    "é",
    os.fsdecode(b"\xff\xfe"),
    "-v",
]


class Scribbler:
    """Random trees and random edits of them."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._names = NAMES

    def fill(self, folder: Path, files: int) -> None:
        for _ in range(files):
            self.write(folder)

    def edit(self, folder: Path, edits: int) -> None:
        self._names = [*NAMES, "a.ignored"]
        for _ in range(edits):
            self._random.choice([self.write, self.write, self.remove, self.toggle, self.link, self.append])(folder)

    def write(self, folder: Path) -> None:
        path = self._path(folder)
        path.write_bytes(self._content())
        path.chmod(self._random.choice([0o644, 0o755]))

    def remove(self, folder: Path) -> None:
        if path := self._existing(folder):
            path.unlink()

    def toggle(self, folder: Path) -> None:
        if (path := self._existing(folder)) and not path.is_symlink():
            path.chmod(path.stat().st_mode ^ 0o111)

    def append(self, folder: Path) -> None:
        if (path := self._existing(folder)) and not path.is_symlink():
            path.write_bytes(path.read_bytes() + self._content())

    def link(self, folder: Path) -> None:
        self._path(folder).symlink_to(self._random.choice(NAMES))

    def _path(self, folder: Path) -> Path:
        """Free: what stood there, or on the way to it, is gone."""
        parts = [self._random.choice(NAMES) for _ in range(self._random.randrange(3))]
        for part in parts:
            folder = folder / part
            if folder.is_symlink() or folder.is_file():
                folder.unlink()
            folder.mkdir(exist_ok=True)
        path = folder / self._random.choice(self._names)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        return path

    def _existing(self, folder: Path) -> Path | None:
        found = [path for path in sorted(folder.rglob("*")) if path.is_symlink() or path.is_file()]
        return self._random.choice(found) if found else None

    def _content(self) -> bytes:
        lines = [
            self._random.choice([b"one\n", b"two\r\n", b"\n", b"$Id$\n"])
            for _ in range(self._random.randrange(20))
        ]
        return self._random.choice([b"".join(lines), b"".join(lines) + b"end", self._random.randbytes(300), b""])


@pytest.mark.parametrize("seed", range(12))
async def test_random_edits(begin: Begin, tmp_path: Path, seed: int) -> None:
    base, scribbler = tmp_path / "base", Scribbler(seed)
    base.mkdir()
    scribbler.fill(base, files=15)
    (base / ".gitignore").write_text("*.ignored\n")
    (base / ".gitattributes").write_text(["", "* text=auto eol=crlf ident\n", "* binary\n"][seed % 3])
    if seed % 2:
        git(base, "init", "-q")
        git(base, "add", "--all")
    live = await begin(base, keep={"patch": True})
    await note_baseline(live)
    scribbler.edit(workspace_of(live), edits=25)
    await keep_patch(live)
    await assert_patch_tells_all(live, base, tmp_path)
