from __future__ import annotations

import os
from pathlib import Path

import pytest
from workplace import FolderRuntime, evidence

from calc_row import FIXED, make_repository
from polar.evaluators.hardening.protected import WorkRules
from polar.evaluators.hardening.work import compared_work
from polar.evaluators.swe_bench.patch import NotApplied, PatchTooLarge, apply_in, patch_of


class Copies:
    def __init__(self, folder: Path) -> None:
        self.agent, self.own = folder / "agent", folder / "own"
        for each in (self.agent, self.own):
            make_repository(each)

    async def patch(self, max_bytes: int = 10_000) -> bytes:
        seen = evidence(FolderRuntime(self.agent), own_runtime=FolderRuntime(self.own))
        async with compared_work(seen, WorkRules()) as work:
            return await patch_of(work, max_bytes)

    async def carried_over(self) -> Path:
        """The own workspace with the agent's patch."""
        await apply_in(FolderRuntime(self.own), await self.patch())
        return self.own


@pytest.fixture
def copies(tmp_path: Path) -> Copies:
    return Copies(tmp_path)


async def test_every_kind_of_change_is_carried_over(copies: Copies) -> None:
    agent = copies.agent
    (agent / "calc.py").write_text(FIXED)
    (agent / "data.bin").write_bytes(b"\0\xff\0")
    (agent / "new" / "deep").mkdir(parents=True)
    (agent / "new" / "deep" / "ü b.py").write_text("x = 1\n")
    (agent / "link").symlink_to("calc.py")
    (agent / "setup.cfg").unlink()
    (agent / "tool.sh").write_text("#!/bin/sh\n")
    (agent / "tool.sh").chmod(0o755)
    own = await copies.carried_over()
    assert (own / "calc.py").read_text() == FIXED
    assert (own / "data.bin").read_bytes() == b"\0\xff\0"
    assert (own / "new" / "deep" / "ü b.py").read_text() == "x = 1\n"
    assert os.readlink(own / "link") == "calc.py"
    assert not (own / "setup.cfg").exists()
    assert os.access(own / "tool.sh", os.X_OK)


async def test_line_ends_stay_as_they_are(copies: Copies) -> None:
    (copies.agent / ".gitattributes").write_text("*.py text eol=lf\n")
    (copies.agent / "dos.py").write_bytes(b"x = 1\r\n")
    assert ((await copies.carried_over()) / "dos.py").read_bytes() == b"x = 1\r\n"


async def test_what_the_bases_rules_ignore_is_left_out_and_the_agents_rules_do_not_count(copies: Copies) -> None:
    (copies.agent / ".gitignore").write_text("calc.py\nwanted.py\n")
    (copies.agent / "wanted.py").write_text("x = 1\n")
    (copies.agent / "build").mkdir()
    (copies.agent / "build" / "x").write_text("x")
    patch = (await copies.patch()).decode()
    assert "b/wanted.py" in patch and "build/x" not in patch


async def test_programs_that_the_agents_git_would_run_do_not_run(copies: Copies, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    config = copies.agent / ".git" / "config"
    config.write_text(
        f'{config.read_text()}[filter "x"]\n\tclean = touch {ran}\n[core]\n\tfsmonitor = touch {ran}\n'
    )
    (copies.agent / ".gitattributes").write_text("* filter=x diff=x\n")
    (copies.agent / "calc.py").write_text(FIXED)
    assert b"a / b" in await copies.patch()
    assert not ran.exists()


async def test_more_than_the_limit_is_no_patch(copies: Copies) -> None:
    (copies.agent / "build").mkdir()
    (copies.agent / "build" / "ignored").write_text("x" * 20_000)
    (copies.agent / "small.txt").write_text("x" * 10_000)
    assert b"small.txt" in await copies.patch()
    (copies.agent / "one_more.txt").write_text("x")
    with pytest.raises(PatchTooLarge, match=r"10001 bytes, more than max_patch_bytes \(10000\)"):
        await copies.patch()


async def test_no_change_is_an_empty_patch(copies: Copies) -> None:
    assert await copies.patch() == b""


async def test_one_that_does_not_fit_is_not_applied(copies: Copies) -> None:
    (copies.agent / "calc.py").write_text(FIXED)
    patch = await copies.patch()
    (copies.own / "calc.py").write_text("something else\n")
    with pytest.raises(NotApplied):
        await apply_in(FolderRuntime(copies.own), patch)
