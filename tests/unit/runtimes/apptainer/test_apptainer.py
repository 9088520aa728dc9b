"""What the apptainer runtime refuses, the command lines it builds, and its message when Apptainer is missing."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from pydantic import ValidationError

from polar.errors import RuntimeFailure
from polar.registry import make
from polar.runtimes.apptainer import instance as apptainer_instance
from polar.runtimes.apptainer.command import StartScript, script_for, why_not
from polar.runtimes.apptainer.instance import (
    Mount,
    containment_flags,
    find_program,
    hold,
    instance_name,
    make_layer,
)
from polar.runtimes.apptainer.runtime import ApptainerOptions, ApptainerRuntime
from polar.runtimes.base import Command, Finished, Program, Runtime, SessionFolders
from polar.runtimes.host.processes import owner
from polar.types import Spec

# Options


def test_the_registry_knows_it() -> None:
    made: Runtime = make("runtime", Spec(name="apptainer", options={"workspace": "/testbed"}))
    assert made.workspace == "/testbed"
    assert made.home == "/home/polar"
    assert made.program(Program("node-22", Path("/somewhere"))) == "/opt/polar/node-22"


def test_the_default_network_is_the_strictest() -> None:
    assert ApptainerOptions().network_mode == "gateway_only"


def test_a_limit_of_disk_is_refused_with_the_reason() -> None:
    with pytest.raises(ValidationError, match=r"cannot enforce the limit disk_bytes.*no quota"):
        ApptainerOptions.model_validate({"limits": {"disk_bytes": "1GiB"}})


@pytest.mark.parametrize("workspace", ["work", "/", "", "/a/../b", "/a b", "/a:b", "/a,b", "/.polar", "/a/"])
def test_a_workspace_is_a_plain_absolute_path(workspace: str) -> None:
    with pytest.raises(ValidationError):
        ApptainerOptions(workspace=workspace)


# Without Apptainer


@pytest.fixture
def no_apptainer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(apptainer_instance, "OWN_PREFIX", str(tmp_path))


@pytest.mark.usefixtures("no_apptainer")
async def test_without_apptainer_it_says_how_to_get_it(tmp_path: Path) -> None:
    assert await ApptainerRuntime.lacking() == "apptainer is not installed: `make apptainer` installs it"
    runtime = ApptainerRuntime(ApptainerOptions(image=str(tmp_path)))
    with pytest.raises(RuntimeFailure, match="`make apptainer` installs it"):
        await runtime.start(SessionFolders("s-1", tmp_path / "root", tmp_path / "logs"))
    await runtime.stop()


@pytest.mark.usefixtures("no_apptainer")
def test_the_program_is_the_chosen_one_or_on_the_path_or_the_installed_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def install(folder: Path) -> str:
        folder.mkdir(exist_ok=True)
        (folder / "apptainer").write_text("#!/bin/sh\n")
        (folder / "apptainer").chmod(0o755)
        return str(folder / "apptainer")

    assert find_program() is None
    installed = install(tmp_path / "installed")
    monkeypatch.setattr(apptainer_instance, "OWN_PREFIX", str(tmp_path / "installed"))
    assert find_program() == installed
    on_path = install(tmp_path / "bin")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert find_program() == on_path
    assert find_program(installed) == installed
    assert find_program("/no/such/apptainer") is None


async def test_a_machine_that_does_not_let_it_run_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("apptainer", "nsenter", "unshare"):
        (tmp_path / name).write_text("#!/bin/sh\necho user namespaces are closed >&2\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("POLAR_CACHE", str(tmp_path / "cache"))
    assert await ApptainerRuntime.lacking() == "apptainer does not work here: user namespaces are closed"


async def test_nothing_is_done_before_a_start(tmp_path: Path) -> None:
    runtime = ApptainerRuntime(ApptainerOptions())
    await runtime.kill()
    with pytest.raises(RuntimeFailure, match="not started"):
        await runtime.exec(Command(argv=("true",)))
    with pytest.raises(RuntimeFailure, match="not started"):
        await runtime.put("a", b"")
    await runtime.stop()
    with pytest.raises(RuntimeFailure, match="stopped"):
        await runtime.exec(Command(argv=("true",)))


@pytest.mark.parametrize(("name", "match"), [("a:b", "':' or ','"), ("a,b", "':' or ','")])
async def test_a_root_folder_that_apptainer_cannot_mount_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, match: str
) -> None:
    runtime = ApptainerRuntime(ApptainerOptions(image=str(tmp_path), program="/bin/sh"))
    with pytest.raises(RuntimeFailure, match=match):
        await runtime.start(SessionFolders("s-1", tmp_path / name, tmp_path / "logs"))
    await runtime.stop()
    assert not (tmp_path / name).exists()


async def test_an_image_that_was_not_built_names_the_command_that_builds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLAR_CACHE", str(tmp_path / "cache"))
    runtime = ApptainerRuntime(ApptainerOptions(image="polar-base", program="/bin/sh"))
    with pytest.raises(RuntimeFailure, match="`polar image build polar-base`"):
        await runtime.start(SessionFolders("s-1", tmp_path / "root", tmp_path / "logs"))
    await runtime.stop()


# Command lines


def test_a_mount_survives_odd_paths() -> None:
    option = Mount(Path("/a, b:c"), "/opt/polar/x", read_only=True).as_option()
    assert option == 'type=bind,"source=/a, b:c","destination=/opt/polar/x","ro"'


def test_only_an_open_network_is_shared() -> None:
    assert "--net" in containment_flags((), network=False)
    assert "--net" not in containment_flags((), network=True)


def test_a_layer_brings_what_a_plain_folder_lacks(tmp_path: Path) -> None:
    make_layer(tmp_path)
    start = tmp_path / "upper/.singularity.d/actions/start"
    assert subprocess.run([start]).returncode == 0
    assert "127.0.0.1 localhost" in (tmp_path / "upper/etc/hosts").read_text()


def test_an_instance_bears_its_owner() -> None:
    title = f"Apptainer instance: somebody [{instance_name('s-1-abc.d')}]\0".encode()
    found = apptainer_instance.TITLE.match(title)
    assert found and found["name"].decode() == f"polar.{owner()}.s-1-abc.d"


@pytest.mark.parametrize("text", ["", "x", "999999999"])
def test_an_instance_that_is_gone_at_once_is_a_clear_failure(tmp_path: Path, text: str) -> None:
    (tmp_path / "pid").write_text(text)
    with pytest.raises(RuntimeFailure, match="ended right after its start"):
        hold(tmp_path / "pid")


# The start script


def begun(env: dict[str, str], *argv: str) -> tuple[subprocess.CompletedProcess[str], bool]:
    """The script, run by the shell of the node."""
    with StartScript(env) as start_script:
        own = {"PATH": os.defpath, "APPTAINER_CONTAINER": "/of/the/node", "PS1": "> ", "IMAGES": "own"}
        ran = subprocess.run(
            start_script.starting(argv), pass_fds=start_script.fds, env=own, capture_output=True, text=True
        )
        return ran, start_script.has_started()


def test_a_command_gets_its_environment_over_the_images_own() -> None:
    odd = "a 'b' $HOME `id` \"c\"\nnext\\n"
    ran, made = begun({"A": odd, "EMPTY": ""}, "env", "-0")
    seen = dict(line.split("=", 1) for line in ran.stdout.split("\0") if line)
    assert {name: seen[name] for name in seen.keys() - {"PWD", "OLDPWD", "_", "SHLVL"}} == {
        "PATH": os.defpath,
        "IMAGES": "own",
        "A": odd,
        "EMPTY": "",
    }
    assert made


@pytest.mark.parametrize("program", ["no-such-program", "/no/such/program", "/usr"])
def test_a_program_that_is_not_there_gives_no_sign(program: str) -> None:
    ran, made = begun({}, program)
    assert not made
    assert why_not(program, Finished(ran.returncode)) == f"cannot start {program!r}: there is no such program"


def test_a_program_that_ends_with_the_same_code_gave_its_sign() -> None:
    ran, made = begun({"PATH": "/nowhere"}, "/bin/sh", "-c", "exit 127")
    assert ran.returncode == 127
    assert made


def test_an_apptainer_that_failed_is_quoted() -> None:
    finished = Finished(255, stderr_tail="INFO: x\nFATAL: no instance found\n")
    assert why_not("ls", finished) == "cannot start 'ls': FATAL: no instance found"


@pytest.mark.parametrize("name", ["a.b", "1a", "a b", "", "é", "a\n"])
def test_a_name_that_no_shell_can_export_is_refused(name: str) -> None:
    with pytest.raises(RuntimeFailure, match="is not a valid variable name"):
        script_for({name: "x"})
