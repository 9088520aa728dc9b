"""What is kept of a session's files: artefacts and harness logs up to a cap, and never the session's key."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from bench import Begin, sh, task_of
from pydantic import ValidationError

from polar.harnesses.base import Launch
from polar.session.files.keep import hide_key, keep_artifacts, keep_harness_logs, make_empty, shortened
from polar.session.live import LiveSession
from polar.types import SessionResult, Slot

KEY = "sk-polar-of-this-session"


async def worked(begin: Begin, script: str, logs: tuple[str, ...] = (), **keep: Any) -> LiveSession:
    live = await begin(keep=keep)
    live.launch = Launch(("true",), logs=logs)
    live.slot = Slot(base_url="http://127.0.0.1:1", key=KEY, model="m", context_tokens=1)
    await sh(live, script)
    return live


class TestArtifacts:
    async def test_files_and_folders(self, begin: Begin) -> None:
        live = await worked(begin, "mkdir -p out/deep; echo x >out/deep/x; echo y >y", artifacts=["out", "y"])
        await keep_artifacts(live)
        assert live.kept == ["artifacts/out", "artifacts/y"] and live.left_out == []
        assert (live.paths.artifacts / "out" / "deep" / "x").read_text() == "x\n"
        assert (live.paths.artifacts / "y").read_text() == "y\n"

    async def test_the_whole_workspace(self, begin: Begin) -> None:
        live = await worked(begin, "mkdir a; echo x >a/x", artifacts=["."])
        await keep_artifacts(live)
        assert live.kept == ["artifacts"]
        assert (live.paths.artifacts / "a" / "x").read_text() == "x\n"

    async def test_a_missing_one_is_noted_and_the_others_are_kept(self, begin: Begin) -> None:
        live = await worked(begin, "echo y >y", artifacts=["report.txt", "y"])
        await keep_artifacts(live)
        assert live.kept == ["artifacts/y"]
        assert live.left_out == ["artifacts/report.txt: the workspace has none"]

    async def test_one_cap_for_all_of_them(self, begin: Begin) -> None:
        script = "mkdir out; printf 1234567 >out/a; printf 1234567 >out/b; printf 123 >c; printf 1 >d"
        live = await worked(begin, script, artifacts=["out", "c", "d"], cap_bytes=10)
        await keep_artifacts(live)
        assert live.kept == ["artifacts/out", "artifacts/c"]
        assert live.left_out == [
            "artifacts/out: b: 7 bytes are over the cap",
            "artifacts: d: 1 bytes are over the cap",
        ]

    async def test_one_that_leads_elsewhere_is_refused(self, begin: Begin) -> None:
        live = await worked(begin, "ln -s /etc etc; ln -s / root", artifacts=["etc/passwd", "root"])
        await keep_artifacts(live)
        assert live.kept == []
        assert [line.partition(": ")[0] for line in live.left_out] == ["artifacts/etc/passwd", "artifacts/root"]
        assert all("leads out" in line for line in live.left_out)


class TestHarnessLogs:
    async def test_what_the_harness_says_is_its_log(self, begin: Begin) -> None:
        script = 'mkdir -p "$HOME/.h/sessions"; echo 1 >"$HOME/.h/sessions/1"; echo x >"$HOME/.h/settings"'
        live = await worked(begin, script, logs=(".h/sessions", ".h/sessions/1", "crash.log"))
        await keep_harness_logs(live)
        assert live.kept == ["logs/harness-home/.h/sessions"]
        assert live.left_out == [], "a log that was never written is not missed"
        assert (live.paths.logs / "harness-home" / ".h" / "sessions" / "1").read_text() == "1\n"

    async def test_not_where_the_task_does_not_want_them(self, begin: Begin) -> None:
        live = await worked(begin, 'echo 1 >"$HOME/log"', logs=("log",), harness_logs=False)
        await keep_harness_logs(live)
        assert live.kept == []

    async def test_a_path_that_would_leave_the_folder_is_none(self, begin: Begin) -> None:
        live = await worked(begin, 'echo 1 >"$HOME/log"', logs=("a/../../../x", "/etc/passwd", "log"))
        await keep_harness_logs(live)
        assert live.kept == ["logs/harness-home/log"]

    async def test_over_the_cap(self, begin: Begin) -> None:
        live = await worked(begin, 'printf 12345 >"$HOME/log"', logs=("log",), cap_bytes=4)
        await keep_harness_logs(live)
        assert live.kept == [] and live.left_out == ["logs/harness-home: log: 5 bytes are over the cap"]


class TestKey:
    async def test_stars_stand_in_its_place_everywhere(self, begin: Begin) -> None:
        script = f"""
            mkdir out; printf 'a {KEY} b {KEY}' >out/env; printf '\\000\\001{KEY}' >out/db; echo clean >out/clean
            ln -s env out/link; : >out/empty; printf {KEY} >"$HOME/log"; echo said {KEY}
        """
        live = await worked(begin, script, logs=("log",), artifacts=["out"])
        await keep_artifacts(live)
        await keep_harness_logs(live)
        live.paths.patch.write_text(f"+{KEY}\n")
        await hide_key(live)

        everything = [path for path in live.paths.root.rglob("*") if path.is_file() and "place" not in path.parts]
        assert all(KEY.encode() not in path.read_bytes() for path in everything)
        stars = "*" * len(KEY)
        assert (live.paths.artifacts / "out" / "env").read_text() == f"a {stars} b {stars}"
        assert (live.paths.artifacts / "out" / "db").stat().st_size == 2 + len(KEY), "other formats stay readable"
        assert (live.paths.artifacts / "out" / "clean").read_text() == "clean\n"
        assert sorted(line.partition(":")[0] for line in live.left_out) == [
            "artifacts/out/db",
            "artifacts/out/env",
            "logs/command.stdout",
            "logs/harness-home/log",
            "patch.diff",
        ]

    async def test_what_has_it_in_its_name_is_not_kept(self, begin: Begin) -> None:
        script = (
            f"mkdir out; cd out; mkdir a-{KEY}; touch a-{KEY}/b b-{KEY} c; ln -s {KEY} link; mkfifo pipe-{KEY}"
        )
        live = await worked(begin, script, artifacts=["out"])
        await keep_artifacts(live)
        await hide_key(live)

        assert os.listdir(live.paths.artifacts / "out") == ["c"]
        assert len(live.left_out) == 4
        assert all(KEY not in line for line in live.left_out)

    async def test_nothing_outside_is_changed_by_a_link(self, begin: Begin, tmp_path: Path) -> None:
        (tmp_path / "mine").write_text(KEY)
        live = await worked(begin, "true")
        (live.paths.logs / "link").symlink_to(tmp_path / "mine")
        await hide_key(live)
        assert (tmp_path / "mine").read_text() == KEY

    async def test_a_name_that_is_no_text_can_be_shortened(self, begin: Begin) -> None:
        live = await worked(begin, f"mkdir out; printf {KEY} >\"$(printf 'out/\\377')\"", artifacts=["out"])
        await keep_artifacts(live)
        await hide_key(live)
        assert [line.partition(":")[0] for line in live.left_out] == ["artifacts/out/\\xff"]
        result = SessionResult(
            session_id="t-0",
            task_id="t",
            index=0,
            attempt=1,
            stage=live.session.stage,
            left_out=shortened(live.left_out),
        )
        assert SessionResult.model_validate_json(result.model_dump_json()) == result


async def test_what_an_earlier_attempt_kept_is_cleared(begin: Begin) -> None:
    live = await worked(begin, "mkdir out; touch out/x; echo 1 >log", artifacts=["out"])
    await keep_artifacts(live)
    live.paths.patch.write_text("old")
    make_empty(live.paths)
    assert sorted(os.listdir(live.paths.root)) == ["logs", "place"]


def test_a_list_without_end_is_not_shortened() -> None:
    assert shortened(["a"]) == ("a",)
    assert shortened(["a"] * 250)[-1] == "and 50 more"


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["/etc/passwd"], "relative path"),
        (["a/../../b"], "relative path"),
        (["a\0b"], "relative path"),
        ([""], "at least 1"),
        (["out", "out/x"], "'out/x' is already part of 'out'"),
        (["out/", "./out"], "'out' is already part of 'out'"),
        ([".", "x"], "'x' is already part of '.'"),
        (["x"] * 101, "at most 100"),
    ],
)
def test_paths_that_cannot_be_kept(paths: list[str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        task_of(keep={"artifacts": paths})


def test_paths_are_spelled_one_way() -> None:
    assert task_of(keep={"artifacts": ["./out//x/", "out2"]}).keep.artifacts == ("out/x", "out2")
