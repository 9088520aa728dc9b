"""compose.yaml against the schema of the Compose specification, and the units as systemd reads them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from polar.harnesses.base import NpmPack
from polar.harnesses.programs.install import install

pytestmark = pytest.mark.check

DEPLOY = Path(__file__).parents[3] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
LINTER = NpmPack(package="dclint", version="3.1.0")
"""It packs the specification's schema."""


async def schema() -> Any:
    folder = (await install([LINTER]))[LINTER.package]
    return jsonschema_rs.validator_for(json.loads((folder / "schemas/compose.schema.json").read_text()))


async def test_the_compose_file_is_valid() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    validator = await schema()
    assert [error.message for error in validator.iter_errors(yaml.safe_load(text))] == []
    wrong = yaml.safe_load(text.replace("restart: unless-stopped", "restarts: sometimes"))
    assert not validator.is_valid(wrong), "the schema finds what is wrong"


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_takes_the_unit(unit: Path, tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("there is no systemd-analyze: `apt-get install systemd`")
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/polar/bin/polar", "/bin/true"))
    done = subprocess.run([program, "verify", copy], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
