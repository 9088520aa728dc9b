"""Harbor folders become tasks; those that cannot run are skipped, each with its fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from folders import TOML, make_folder, read, task, why_skipped

from polar.data.tasks import read_task_set
from polar.errors import ConfigError
from polar.evaluators.harbor.verifier_files import read_verifier_files

ROOT = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETUID"]
"""What root may do in an image of a folder's."""


def test_a_folder_becomes_a_task_in_its_own_image(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    found = task(tmp_path)
    assert found == {
        "task_id": "fix",
        "instruction": "Fix it.",
        "runtime": {
            "name": "docker",
            "options": {"workspace": "/app", "build": {"context": str(folder / "environment")}, "cap_add": ROOT},
        },
        "evaluator": {
            "name": "harbor",
            "options": {
                "folder": str(folder),
                "digest": read_verifier_files(folder / "tests").digest,
                "timeout_s": 90.0,
                "env": {},
            },
        },
        "budgets": {"init_s": 900.0, "evaluator_init_s": 900.0, "postrun_s": 210.0, "run_s": 300.0},
        "metadata": {
            "harbor": {
                "name": "fix",
                "schema_version": "1.4",
                "network_mode": "public",
                "not_enforced": [],
                "metadata": {"difficulty": "easy"},
            }
        },
    }


def test_the_agent_gets_neither_tests_nor_solution(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    found = task(tmp_path) | {"evaluator": None}
    assert "secret" not in str(found)
    assert "reward" not in str(found)
    assert not (folder / "tests").is_relative_to(found["runtime"]["options"]["build"]["context"])


def test_a_task_file_holds_a_table_and_defaults_go_under_each_task(tmp_path: Path) -> None:
    make_folder(tmp_path, "a")
    make_folder(tmp_path, "b", **{"tests/test.sh": None})
    file = tmp_path / "set.toml"
    file.write_text("[harbor]\nfolders = 'tasks'\n[defaults]\nnum_samples = 3\nbudgets = { max_calls = 5 }\n")
    tasks, skipped = read_task_set(file)
    assert [(each.task_id, each.num_samples, each.budgets.max_calls) for each in tasks] == [("a", 3, 5)]
    assert tasks[0].budgets.run_s == 300.0
    assert [each.where for each in skipped] == ["tasks/b"]


def test_a_folder_of_tasks_needs_no_task_file(tmp_path: Path) -> None:
    make_folder(tmp_path, "a")
    make_folder(tmp_path, "b", **{"tests/test.sh": None})
    tasks, skipped = read_task_set(tmp_path / "tasks")
    assert [each.task_id for each in tasks] == ["a"] and [each.where for each in skipped] == ["tasks/b"]
    (alone,) = read_task_set(tmp_path / "tasks" / "a").tasks
    assert alone == tasks[0]


def test_folders_are_found_by_name_and_pattern(tmp_path: Path) -> None:
    for name in ("calc-1", "calc-2", "web-1"):
        make_folder(tmp_path, name)
    (tmp_path / "tasks" / ".git").mkdir()

    def names(**table: Any) -> list[str]:
        return [item.value["task_id"] for item in read(tmp_path, **table).items]

    assert names() == ["calc-1", "calc-2", "web-1"]
    assert names(names=["calc-*"]) == ["calc-1", "calc-2"]
    assert names(exclude=["*-1"]) == ["calc-2"]
    assert names(limit=1) == ["calc-1"]
    assert names(folders="tasks/web*") == ["web-1"]
    assert names(folders=["tasks/web-1", "tasks/calc-1", "tasks/web-1"]) == ["web-1", "calc-1"]


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"folders": "nonesuch"}, "'nonesuch' is no folder"),
        ({"folders": "tasks/*/nonesuch*"}, "is no folder"),
        ({"names": ["x*"]}, r"no folder matches x\*"),
        ({"limit": 0}, "limit: "),
        ({"networks": "open"}, "networks: "),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, table: dict[str, Any], why: str) -> None:
    make_folder(tmp_path)
    with pytest.raises(ConfigError, match=why):
        read(tmp_path, **table)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"task.toml": None}, "it has no task.toml"),
        ({"task.toml": "= 1"}, "task.toml cannot be read"),
        ({"task.toml": 'schema_version = "2.0"'}, "schema_version '2.0'; Polar knows 1.0 to 1.4"),
        ({"task.toml": "[agent]\ntimeout_sec = 'long'"}, "task.toml: agent.timeout_sec: "),
        ({"task.toml": "[metadata.polar]\nwhere = 'here'"}, "task.toml: where: "),
        ({"instruction.md": None}, "it has no instruction.md"),
        ({"instruction.md": "<!-- canary GUID -->\n\n"}, "instruction.md is empty"),
        ({"tests/test.sh": None}, "has no test.sh"),
        ({"environment/Dockerfile": None}, "its working folder is not known"),
        ({"environment/Dockerfile": "FROM debian:12\n"}, "its working folder is not known"),
        ({"environment/Dockerfile": "FROM a\nWORKDIR /app\nUSER me:me\n"}, "its verifier runs as me"),
        ({"task.toml": "[verifier]\nuser = 1000"}, "its verifier runs as 1000"),
        ({"environment/docker-compose.yaml": ""}, "one container per session"),
        ({"tests/Dockerfile": ""}, "an image of its own"),
        ({"trajectory.json": "{}"}, "an earlier conversation"),
        ({"task.toml": f"{TOML}gpus = 1"}, "asks for GPUs"),
        ({"task.toml": f"{TOML}os = 'windows'"}, "it needs windows"),
        ({"task.toml": f"{TOML}tpu = {{ type = 'v4', topology = '2x2' }}"}, "asks for a TPU"),
        ({"task.toml": f"{TOML}skills_dir = '/skills'"}, "brings skills"),
        ({"task.toml": f"{TOML}env = {{ A = 'b' }}"}, "by ENV in the Dockerfile"),
        ({"task.toml": f"{TOML}healthcheck = {{ command = 'true' }}"}, "health check"),
        ({"task.toml": f"{TOML}mcp_servers = [{{ name = 'a', url = 'http://a' }}]"}, "MCP servers"),
        ({"task.toml": f"{TOML}[verifier.environment]\ncpus = 1"}, "its verifier has an environment of its own"),
        ({"task.toml": f"{TOML}[[verifier.collect]]\ncommand = 'true'"}, "collect"),
        ({"task.toml": f"{TOML}[[steps]]\nname = 'one'"}, "several steps"),
        ({"task.toml": f"{TOML}memory = 'much'"}, "'much' is no size"),
        ({"tests/test.sh": "# curl\n  uvx pytest /tests\n"}, "uses uvx, but the verifier has no network"),
        ({"tests/test.sh": "apt-get update && apt-get install -y curl\n"}, "uses apt-get"),
    ],
)
def test_a_folder_that_cannot_run_is_skipped_with_its_fix(
    tmp_path: Path, changes: dict[str, str | None], why: str
) -> None:
    make_folder(tmp_path, **changes)
    assert why in why_skipped(tmp_path)


def test_one_that_leads_out_of_its_tests_is_skipped(tmp_path: Path) -> None:
    (make_folder(tmp_path) / "tests" / "data").symlink_to("/etc/passwd")
    assert "leads out of its folder" in why_skipped(tmp_path)


def test_marks_of_a_benchmark_are_not_part_of_the_instruction(tmp_path: Path) -> None:
    make_folder(
        tmp_path, **{"instruction.md": "<!-- a CANARY -->\n# canary too\n\nFix it.\n# canary in the text\n"}
    )
    assert task(tmp_path)["instruction"] == "Fix it.\n# canary in the text"


def test_values_of_older_schemas_are_read(tmp_path: Path) -> None:
    toml = 'version = "1.0"\n[environment]\nmemory = "2G"\ncpus = 1\nstorage = "10G"\nallow_internet = false\n'
    make_folder(tmp_path, **{"task.toml": toml})
    found = task(tmp_path)
    assert found["runtime"]["options"]["limits"] == {"cpus": 1.0, "memory_bytes": 2 * 2**30}
    assert found["metadata"]["harbor"]["network_mode"] == "no-network"
    assert found["metadata"]["harbor"]["not_enforced"] == ["disk_bytes"]
    assert "run_s" not in found["budgets"]
    assert "limits" not in task(tmp_path, limits=False)["runtime"]["options"]


def test_a_named_image_is_used_unless_the_table_wants_a_build(tmp_path: Path) -> None:
    folder = make_folder(tmp_path, **{"task.toml": f"{TOML}docker_image = 'org/fix:1'"})
    assert task(tmp_path)["runtime"]["options"] == {"workspace": "/app", "image": "org/fix:1", "cap_add": ROOT}
    built = task(tmp_path, build=True)["runtime"]["options"]
    assert "image" not in built
    assert built["build"] == {"context": str(folder / "environment")}
    mine = {"image": "mine", "cap_add": []}
    own = task(tmp_path, runtime={"name": "docker", "options": mine})["runtime"]["options"]
    assert own == {"workspace": "/app", **mine}


def test_the_working_folder_is_the_last_stages(tmp_path: Path) -> None:
    stages = "FROM a AS b\nWORKDIR /build\nFROM c\nWORKDIR /srv\nRUN <<END\nWORKDIR /no\nEND\nWORKDIR app\n"
    make_folder(tmp_path, **{"environment/Dockerfile": stages})
    assert task(tmp_path)["runtime"]["options"]["workspace"] == "/srv/app"
    make_folder(tmp_path, **{"task.toml": f"{TOML}workdir = '/root'"})
    assert task(tmp_path)["runtime"]["options"]["workspace"] == "/root"
    make_folder(tmp_path, **{"environment/Dockerfile": "FROM c\nWORKDIR $HOME\n"})
    assert task(tmp_path, workdir="/app")["runtime"]["options"]["workspace"] == "/app"


@pytest.mark.parametrize(
    ("asked", "agent", "verifier"),
    [
        ("", "open", {}),
        ("network_mode = 'no-network'", None, {}),
        ("[agent]\nnetwork_mode = 'no-network'", None, {"network": "open"}),
        ("[verifier]\nnetwork_mode = 'no-network'", "open", {"network": None}),
    ],
)
def test_the_network_of_the_task_has_to_be_asked_for(
    tmp_path: Path, asked: str, agent: str | None, verifier: dict[str, Any]
) -> None:
    make_folder(tmp_path, **{"task.toml": f"[environment]\n{asked}", "tests/test.sh": "uvx pytest\n"})
    for network in ("closed", "task"):
        found = task(tmp_path, network=network)
        wanted = (None, {}) if network == "closed" else (agent, verifier)
        judged_by = found["evaluator"]["options"].get("runtime", {})
        assert (found["runtime"]["options"].get("network"), judged_by) == wanted


def test_a_list_of_hosts_cannot_be_enforced(tmp_path: Path) -> None:
    asked = f"{TOML}network_mode = 'allowlist'\nallowed_hosts = ['pypi.org']"
    make_folder(tmp_path, **{"task.toml": asked})
    assert "network_mode allowlist" in why_skipped(tmp_path, network="task")
    assert "network" not in task(tmp_path, network="closed")["runtime"]["options"]


def test_users_of_agent_and_verifier(tmp_path: Path) -> None:
    make_folder(tmp_path, **{"task.toml": "[agent]\nuser = 1000\n[verifier]\nuser = 'root'"})
    found = task(tmp_path)
    assert found["runtime"]["options"]["user"] == "1000"
    assert found["evaluator"]["options"]["runtime"] == {"user": "root"}
    make_folder(tmp_path, **{"task.toml": "[agent]\nuser = 'me'"})
    assert task(tmp_path)["evaluator"]["options"]["runtime"] == {"user": None}
    make_folder(
        tmp_path,
        **{
            "task.toml": "[verifier]\nuser = 'root'",
            "environment/Dockerfile": "FROM a\nUSER b\nFROM c\nWORKDIR /app\nUSER me\n",
        },
    )
    assert task(tmp_path)["evaluator"]["options"]["runtime"] == {"user": "root"}


def test_variables_of_the_verifier_come_from_the_table_and_never_from_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "of the node")
    env = "{ A = 'plain', B = '${KEY:-none}', C = '${KEY}' }"
    make_folder(tmp_path, **{"task.toml": f"[verifier]\nenv = {env}"})
    assert "C needs KEY, and variables of the node are not passed" in why_skipped(tmp_path)
    judged_by = task(tmp_path, env={"KEY": "given"})["evaluator"]["options"]
    assert judged_by["env"] == {"A": "plain", "B": "given", "C": "given"}


def test_a_folder_can_set_options_of_its_evaluator_and_the_table_wins(tmp_path: Path) -> None:
    make_folder(tmp_path, **{"task.toml": "[metadata.polar]\nwhere = 'session'\nallowed = ['conftest.py']"})
    judged_by = task(tmp_path)["evaluator"]["options"]
    assert (judged_by["where"], judged_by["allowed"]) == ("session", ["conftest.py"])
    assert task(tmp_path, where="own")["evaluator"]["options"]["where"] == "own"
    assert "polar" not in task(tmp_path)["metadata"]["harbor"]["metadata"]


def test_artifacts_outside_the_working_folder_are_no_work(tmp_path: Path) -> None:
    separate = "artifacts = ['/app/out', '/var/db', { source = 'b' }]\n[verifier]\nenvironment_mode = 'separate'\n"
    make_folder(tmp_path, **{"task.toml": separate})
    assert "its verifier judges /var/db" in why_skipped(tmp_path)
    assert task(tmp_path, where="session")["evaluator"]["options"]["where"] == "session"


def test_a_slow_machine_gets_more_time(tmp_path: Path) -> None:
    make_folder(tmp_path)
    found = task(tmp_path, time_factor=2)
    assert (found["budgets"]["run_s"], found["budgets"]["postrun_s"]) == (600.0, 300.0)
    assert found["evaluator"]["options"]["timeout_s"] == 180.0


def test_values_that_json_has_not_become_text(tmp_path: Path) -> None:
    make_folder(tmp_path, **{"task.toml": "[metadata]\ncreated = 2026-01-02\n"})
    assert task(tmp_path)["metadata"]["harbor"]["metadata"] == {"created": "2026-01-02"}
