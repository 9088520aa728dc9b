"""Makes tasks of Harbor folders: instruction, image, verifier, budgets and limits. docs/harbor.md has the table.

`tests` and `solution` never reach the agent's runtime: the build context is `environment`, and the verifier's
files are read when the agent is dead.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import orjson
from pydantic import ValidationError

from polar.data.harbor.environment import FolderSurroundings, surroundings_of
from polar.data.harbor.table import HarborTable
from polar.data.harbor.task_toml import FolderRefused, TaskToml, read_task_toml
from polar.data.task_sets import SkippedTask, TaskItem
from polar.errors import ConfigError, EvaluatorError, first_problem
from polar.evaluators.harbor.verifier_files import VerifierFiles, read_verifier_files

CANARY = re.compile(r"\s*(<!--.*canary.*-->|#.*canary.*)\s*", re.IGNORECASE)
"""A line that marks a benchmark's data. It is not part of the instruction."""
DOWNLOADS = re.compile(
    r"(?m)^[^#\n]*?\b(curl|wget|uvx|uv (?:pip|add|run)|apt-get|apt|apk|pip3? install|npm (?:i|ci|install)|npx)\b"
)
TEMPLATE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")
POSTRUN_S = 120.0
"""Beside the verifier's own time: building traces and copying the workspace."""
INIT_S = 300.0
"""Beside the time of an image's build."""


def read_harbor(table: Mapping[str, Any], base: Path) -> Iterator[TaskItem | SkippedTask]:
    """Raises `ConfigError` if the table is wrong or finds no folder."""
    try:
        options = HarborTable.model_validate(dict(table))
    except ValidationError as error:
        raise ConfigError(first_problem(error)) from error
    count = 0
    for folder in _chosen(_folders(options.patterns, base), options):
        if count == options.limit:
            return
        where = _shown(folder, base)
        try:
            item = TaskItem(where, task_of(folder, options), of_set=True)
        except FolderRefused as error:
            yield SkippedTask(where, str(error))
        else:
            count += 1
            yield item


def task_of(folder: Path, options: HarborTable) -> dict[str, Any]:
    """Raises `FolderRefused`."""
    toml = read_task_toml(folder)
    instruction = _instruction(folder)
    try:
        tests = read_verifier_files(folder / "tests")
    except (EvaluatorError, OSError) as error:
        raise FolderRefused(f"tests: {error}") from error
    around = surroundings_of(folder, toml, options)
    _refuse_tests(tests, toml, options, around)
    _refuse_paths(instruction, tests, around)
    task: dict[str, Any] = {
        "task_id": re.sub(r"[^A-Za-z0-9._-]+", "-", folder.name).lstrip("._-")[:120],
        "instruction": instruction,
        "runtime": around.runtime,
        "evaluator": {"name": "harbor", "options": _judged_by(folder, toml, options, tests, around)},
        "budgets": _budgets(toml, options.time_factor),
        "metadata": {"harbor": _metadata(folder, toml, around)},
    }
    return task | ({"workspace": around.workspace} if around.workspace else {})


def _folders(patterns: Iterable[str], base: Path) -> list[Path]:
    """Each pattern's folders: one with a task.toml is a task, any other is a folder of tasks."""
    found: dict[Path, None] = {}
    for pattern in patterns:
        matched = sorted(base.glob(pattern)) if re.search(r"[*?\[]", pattern) else [base / pattern]
        places = [path for path in matched if path.is_dir()]
        if not places:
            raise ConfigError(f"folders: {pattern!r} is no folder, seen from {base}")
        for place in places:
            tasks = [place] if (place / "task.toml").exists() else sorted(place.iterdir())
            found |= dict.fromkeys(path.absolute() for path in tasks if _may_be_task(path))
    if not found:
        raise ConfigError(f"folders: there is no task folder in {', '.join(patterns)}")
    return list(found)


def _may_be_task(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith((".", "__"))


def _chosen(folders: list[Path], options: HarborTable) -> list[Path]:
    def matches(path: Path, patterns: tuple[str, ...]) -> bool:
        return any(fnmatch.fnmatchcase(path.name, pattern) for pattern in patterns)

    chosen = [path for path in folders if not options.names or matches(path, options.names)]
    if not chosen:
        raise ConfigError(f"names: no folder matches {', '.join(options.names)}")
    return [path for path in chosen if not matches(path, options.exclude)]


def _instruction(folder: Path) -> str:
    if (folder / "trajectory.json").exists():
        raise FolderRefused("it begins with an earlier conversation (trajectory.json), which is not supported")
    try:
        lines = (folder / "instruction.md").read_text(encoding="utf-8").split("\n")
    except FileNotFoundError as error:
        raise FolderRefused("it has no instruction.md") from error
    except (OSError, UnicodeDecodeError) as error:
        raise FolderRefused(f"instruction.md cannot be read: {error}") from error
    while lines and CANARY.fullmatch(lines[0]):
        lines.pop(0)
    if not (text := "\n".join(lines).strip()):
        raise FolderRefused("instruction.md is empty")
    return text


def _refuse_tests(tests: VerifierFiles, toml: TaskToml, options: HarborTable, around: FolderSurroundings) -> None:
    script = tests.files["test.sh"].content.decode(errors="replace")
    if options.network is None and (found := DOWNLOADS.search(script)):
        raise FolderRefused(
            f"tests/test.sh uses {found[1]}, but the verifier has no network: network = 'task' in [harbor] gives "
            "it one, network = 'closed' says that its image has all it needs"
        )
    if not around.own_root and ("LOGS_DIR" not in script or ("/tests" in script and "TESTS_DIR" not in script)):
        raise FolderRefused(
            "this runtime has no /tests and /logs of its own: use docker, apptainer or bubblewrap with an image, "
            "or write ${TESTS_DIR:-/tests} and ${LOGS_DIR:-/logs} in tests/test.sh"
        )
    if options.where != "session" and (outside := _outside(toml, around)):
        raise FolderRefused(
            f"its verifier judges {outside}, which is outside the working folder: where = 'session' in [harbor] "
            "judges it there, undefended"
        )


def _refuse_paths(instruction: str, tests: VerifierFiles, around: FolderSurroundings) -> None:
    path = around.missing_path
    if path is None:
        return
    texts = {
        "instruction.md": instruction.encode(),
        **{f"tests/{name}": f.content for name, f in tests.files.items()},
    }
    named = re.compile(re.escape(path.encode()) + rb"(?![\w-])")
    if found := next((name for name, text in texts.items() if named.search(text)), None):
        raise FolderRefused(
            f"{found} names {path}, which this runtime does not have: use one with a file system of its own, or "
            "write paths relative to the working folder"
        )


def _outside(toml: TaskToml, around: FolderSurroundings) -> str | None:
    """An artifact that a verifier in a container of its own needs, and that is not part of the work."""
    if toml.verifier.environment_mode != "separate":
        return None
    workdir = PurePosixPath(around.runtime["options"].get("workspace", "/"))
    sources = (PurePosixPath(workdir, source) for source in toml.sources)
    return next((str(path) for path in sources if not path.is_relative_to(workdir)), None)


def _judged_by(
    folder: Path, toml: TaskToml, options: HarborTable, tests: VerifierFiles, around: FolderSurroundings
) -> dict[str, Any]:
    judged: dict[str, Any] = {
        "folder": str(folder),
        "digest": tests.digest,
        "timeout_s": toml.verifier.timeout_sec * options.time_factor,
        "env": {name: _value(name, value, options.env) for name, value in toml.verifier.env.items()},
        **({"runtime": around.of_verifier} if around.of_verifier else {}),
        **toml.polar.of_evaluator,
    }
    return judged if options.where is None else judged | {"where": options.where}


def _value(name: str, value: str, given: Mapping[str, str]) -> str:
    """Of a variable of the verifier's; `${NAME}` and `${NAME:-default}` are taken from outside."""
    template = TEMPLATE.fullmatch(value)
    if template is None:
        return value
    source, default = template[1], template[2]
    if (found := given.get(source)) is None and (found := default) is None:
        raise FolderRefused(
            f"[verifier] env: {name} needs {source}, and variables of the node are not passed: set it in env of "
            "[harbor]"
        )
    return found


def _budgets(toml: TaskToml, factor: float) -> dict[str, float]:
    """Without a time limit for the agent, that of the task file's defaults holds."""
    init_s = INIT_S + toml.environment.build_timeout_sec
    postrun_s = POSTRUN_S + toml.verifier.timeout_sec * factor
    budgets = {"init_s": init_s, "evaluator_init_s": init_s, "postrun_s": postrun_s}
    return budgets if toml.agent.timeout_sec is None else budgets | {"run_s": toml.agent.timeout_sec * factor}


def _metadata(folder: Path, toml: TaskToml, around: FolderSurroundings) -> dict[str, Any]:
    told: dict[str, Any] = {
        "name": toml.task.name if toml.task else folder.name,
        "schema_version": toml.schema_version,
        "network_mode": toml.agent_network,
        "not_enforced": list(around.not_enforced),
        "metadata": {name: value for name, value in toml.metadata.items() if name != "polar"},
    }
    return orjson.loads(orjson.dumps(told, default=str))


def _shown(folder: Path, base: Path) -> str:
    absolute = base.absolute()
    return str(folder.relative_to(absolute)) if folder.is_relative_to(absolute) else str(folder)
