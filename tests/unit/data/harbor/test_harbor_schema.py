"""Harbor's own models read what Polar reads, and find the same values in it.

The package needs Python 3.12, but its models run in 3.11, so the wheel is unpacked and used by another process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from folders import TOML, make_folder

from polar.data.harbor.task_toml import FolderRefused, TaskToml, read_task_toml

pytestmark = pytest.mark.check

PACKAGES = ("harbor==0.25.0", "toml==0.10.2")
EXAMPLES = Path(__file__).parents[4] / "examples" / "harbor"
HARBOR = """\
import json, sys, warnings
warnings.simplefilter("ignore")
from pydantic import ValidationError
from harbor.models.task.config import TaskConfig

def told(path):
    try:
        with open(path) as file:
            return TaskConfig.model_validate_toml(file.read()).model_dump(mode="json")
    except (ValidationError, ValueError) as error:
        return None

print(json.dumps([told(path) for path in sys.argv[1:]]))
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Harbor's wheel, unpacked."""
    folder = tmp_path_factory.mktemp("harbor")
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--python-version", "3.12", "--dest", str(folder)]
    argv = [sys.executable, "-m", "pip", "download", *options, *PACKAGES]
    ran = subprocess.run(argv, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        pytest.skip(f"the package harbor cannot be downloaded: {ran.stderr.strip()[-200:]}")
    for wheel in folder.glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(folder)
    return folder


def by_harbor(package: Path, folders: list[Path]) -> list[dict[str, Any] | None]:
    """What Harbor's model holds of each folder; None: it refuses the file."""
    argv = [sys.executable, "-c", HARBOR, *(str(folder / "task.toml") for folder in folders)]
    env = {"PYTHONPATH": str(package), "PATH": "/usr/bin:/bin"}
    ran = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def by_polar(folder: Path) -> TaskToml | None:
    try:
        return read_task_toml(folder)
    except FolderRefused:
        return None


def test_the_examples_and_harbors_own_templates_are_valid_for_both(package: Path) -> None:
    templates = sorted(path.parent for path in (package / "harbor").rglob("task.toml"))
    folders = [*(path.parent for path in sorted(EXAMPLES.glob("*/task.toml"))), *templates]
    assert templates and len(folders) > len(templates)
    found = by_harbor(package, folders)
    # A template of adapters has placeholders in it, which Harbor refuses.
    assert [folder.name for folder, told in zip(folders, found, strict=True) if told is None] == ["task-template"]
    for folder, told in zip(folders, found, strict=True):
        if told is not None:
            assert values(by_polar(folder)) == values_of_harbor(told), folder


VARIANTS = {
    "plain": TOML,
    "old": 'version = "1.0"\n[environment]\nmemory = "2G"\nstorage = "10G"\nallow_internet = false\n',
    "limits": f"{TOML}cpus = 2.5\nmemory_mb = 512\nnetwork_mode = 'no-network'\nworkdir = '/srv'\n",
    "phases": "[agent]\nnetwork_mode = 'public'\nuser = 1000\n[verifier]\nenv = { A = '${B:-c}' }\nuser = 'x'\n",
    "empty": 'schema_version = "1.1"\nartifacts = []\n[environment]\ngpus = 0\nmcp_servers = []\n[verifier.env]\n',
    "unknown": f"{TOML}nonesuch = 1\n[other]\na = 1\n",
    "image": "[environment]\ndocker_image = 'org/x:1'\n[verifier]\nenvironment_mode = 'separate'\n",
}


def test_both_find_the_same_values(package: Path, tmp_path: Path) -> None:
    folders = [make_folder(tmp_path, name, **{"task.toml": text}) for name, text in VARIANTS.items()]
    for folder, told in zip(folders, by_harbor(package, folders), strict=True):
        assert told is not None, folder
        assert values(by_polar(folder)) == values_of_harbor(told), folder


def test_what_harbor_refuses_polar_skips(package: Path, tmp_path: Path) -> None:
    wrong = {
        "mode": f"{TOML}network_mode = 'some'",
        "size": f"{TOML}memory = 'much'",
        "time": "[verifier]\ntimeout_sec = 'long'",
        "where": "[verifier]\nenvironment_mode = 'here'",
    }
    folders = [make_folder(tmp_path, name, **{"task.toml": text}) for name, text in wrong.items()]
    assert by_harbor(package, folders) == [None] * len(wrong)
    assert [by_polar(folder) for folder in folders] == [None] * len(wrong)


FIELDS = {
    "environment": "build_timeout_sec docker_image os cpus memory_mb storage_mb workdir network_mode".split(),
    "agent": "timeout_sec user network_mode".split(),
    "verifier": "timeout_sec env user network_mode environment_mode".split(),
}


def values_of_harbor(told: dict[str, Any]) -> dict[str, Any]:
    return {table: {name: told[table][name] for name in names} for table, names in FIELDS.items()} | {
        "schema_version": told["schema_version"]
    }


def values(toml: TaskToml | None) -> dict[str, Any]:
    assert toml is not None
    return values_of_harbor(toml.model_dump(mode="json"))
