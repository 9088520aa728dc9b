"""The batch script: its directives, its variables, and that bash reads it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from polar.cli.app import app
from polar.cluster.slurm.script import SlurmPlan, script

AWKWARD = 'it\'s $HOME; rm -rf "x" `id` \\ #'


def directives(text: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")]


def variables(text: str) -> dict[str, str]:
    """As bash reads them."""
    head = text.partition("# Below here")[0]
    names = [line.partition("=")[0] for line in head.splitlines() if line.startswith("POLAR")]
    show = "\n".join(f'printf "%s\\0" "${name}"' for name in names)
    done = subprocess.run(["bash", "-c", head + show], capture_output=True, text=True, check=True)
    return dict(zip(names, done.stdout.split("\0"), strict=False))


def test_the_job_asks_for_its_machines_and_ends_before_its_time() -> None:
    text = script(SlurmPlan(machines=8, cpus=32, time="2-00", drain_s=600, options=("--partition=cpu",)))
    assert text.startswith("#!/bin/bash\n#SBATCH ")
    found = directives(text)
    assert {"--nodes=8", "--ntasks-per-node=1", "--cpus-per-task=32", "--time=2-00", "--no-kill"} <= set(found)
    assert "--signal=B:TERM@720" in found, "the drain, and what nodes and server need after it"
    assert found[-1] == "--partition=cpu"


def test_values_reach_the_script_as_they_are() -> None:
    values = variables(
        script(SlurmPlan(server="http://server:8700/", tasks=AWKWARD, config=AWKWARD, polar=AWKWARD))
    )
    assert values["POLAR_SERVER"] == "http://server:8700"
    assert values["POLAR_TASKS"] == values["POLAR_CONFIG"] == values["POLAR"] == AWKWARD


def test_bash_reads_it() -> None:
    done = subprocess.run(["bash", "-n"], input=script(SlurmPlan()), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"time": "soon"}, "not a time limit"),
        ({"tasks": "a\n#SBATCH --uid=0"}, "one line"),
        ({"options": ("cpu",)}, "no option of sbatch"),
        ({"options": ("--comment=a\nrm -rf /",)}, "one line"),
        ({"server": "http://server", "port": 8700}, "job's own server"),
        ({"machines": 0}, "greater than or equal"),
    ],
)
def test_what_cannot_be_meant_is_refused(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        SlurmPlan(**wrong)


def test_the_command_writes_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["cluster", "slurm", "--machines", "3", "--tasks", "t.toml", "--out", "job.sh"])
    assert done.exit_code == 0, done.output
    assert "sbatch job.sh" in done.output
    values = variables((tmp_path / "job.sh").read_text())
    assert (values["POLAR_TASKS"], values["POLAR_STATE"]) == (f"{tmp_path}/t.toml", f"{tmp_path}/polar-slurm")


def test_the_command_names_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["cluster", "slurm", "--time", "soon"])
    assert (done.exit_code, "04:00:00" in done.output) == (2, True)
    done = CliRunner().invoke(app, ["cluster", "slurm", "--config", "none.toml"])
    assert (done.exit_code, "no config file" in done.output) == (2, True)
