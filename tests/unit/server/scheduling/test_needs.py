"""What a session needs of a node, from its task, and what a node lacks of it."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from node_abilities import able
from polar.server.scheduling.needs import SessionNeeds, missing, needs_of
from polar.types import TaskRequest


def task(**fields: Any) -> TaskRequest:
    return TaskRequest.model_validate({"instruction": "x", **fields})


SHELL = {"name": "shell", "options": {"command": "true"}}
DOCKER = {"name": "docker", "options": {"image": "docker.io/library/python:latest"}}
MOUNTING = {"mounts": [{"source": "/data", "target": "/data"}], "prepare_network": "open"}
JUDGED = {
    "name": "combine",
    "options": {"parts": [{"name": "my_grader.deep:half"}, {"name": "session_completion"}]},
}


@pytest.mark.parametrize(
    ("fields", "needed"),
    [
        ({}, {"runtimes": ("local",), "harness": "pi"}),
        ({"harness": SHELL}, {"runtimes": ("local",)}),
        ({"harness": {"name": "pi", "options": {"program": ["pi"]}}}, {"runtimes": ("local",)}),
        (
            {"runtime": "docker", "harness": SHELL},
            {"runtimes": ("docker",), "images": (("docker", "polar-base"),)},
        ),
        ({"runtime": DOCKER, "harness": SHELL}, {"runtimes": ("docker",), "images": (("docker", "python"),)}),
        ({"runtime": "bubblewrap", "harness": SHELL}, {"runtimes": ("bubblewrap",)}),
        (
            {"runtime": {"name": "docker", "options": {"build": {"context": "/x"}}}, "harness": SHELL},
            {"runtimes": ("docker",), "permits": ("build",)},
        ),
        (
            {"runtime": {"name": "bubblewrap", "options": MOUNTING}, "harness": SHELL},
            {"runtimes": ("bubblewrap",), "permits": ("mounts", "prepare_network")},
        ),
        ({"runtime": "mine:Runtime", "harness": "mine.deep:Harness"}, {"modules": ("mine", "mine.deep")}),
        ({"harness": SHELL, "evaluator": JUDGED}, {"runtimes": ("local",), "modules": ("my_grader.deep",)}),
        (
            {"harness": SHELL, "needs": {"labels": ["gpu", "a", "gpu"], "model": "m", "engine": "e"}},
            {"runtimes": ("local",), "labels": ("a", "gpu"), "model": "m", "engine": "e"},
        ),
    ],
)
def test_what_a_task_needs(fields: dict[str, Any], needed: dict[str, Any]) -> None:
    assert needs_of(task(**fields)) == SessionNeeds(**needed)
    assert not {"mine", "my_grader"} & set(sys.modules)


@pytest.mark.parametrize(
    ("options", "image"),
    [
        ({"image": "localhost/mine:latest"}, "mine"),
        ({"image": "registry.example/mine:2"}, "registry.example/mine:2"),
        ({"image": "mine@sha256:" + "0" * 64}, ""),
        ({"image": "0123456789ab"}, ""),
        ({"image": "mine", "engine": "unix:///other.sock"}, ""),
        ({"build": {"context": "/somewhere"}}, ""),
    ],
)
def test_an_image_is_needed_by_the_name_that_its_engine_lists(options: dict[str, Any], image: str) -> None:
    found = needs_of(task(harness=SHELL, runtime={"name": "docker", "options": options})).images
    assert found == ((("docker", image),) if image else ())


@pytest.mark.parametrize(("image", "needed"), [("mine", "mine"), ("/opt/root", ""), ("docker://python", "")])
def test_an_image_that_only_the_node_can_find_is_not_asked_for(image: str, needed: str) -> None:
    found = needs_of(task(harness=SHELL, runtime={"name": "apptainer", "options": {"image": image}})).images
    assert found == ((("apptainer", needed),) if needed else ())


def test_the_runtime_of_an_evaluator_is_needed_too() -> None:
    evaluator = {
        "name": "harbor",
        "options": {"folder": "/task", "runtime": {"image": "graders"}},
    }
    found = needs_of(
        task(harness=SHELL, runtime={"name": "docker", "options": {"image": "x"}}, evaluator=evaluator)
    )
    assert (found.runtimes, found.images) == (("docker",), (("docker", "graders"), ("docker", "x")))


@pytest.mark.parametrize(
    ("needed", "can", "lacks"),
    [
        ({}, {}, []),
        ({"runtimes": ("docker",)}, {"runtimes": ("docker",)}, []),
        ({"runtimes": ("docker",)}, {"runtimes": ("local",)}, [("the runtime docker", "local")]),
        ({"harness": "pi"}, {"harnesses": ("shell",)}, [("the harness pi", "shell")]),
        ({"images": (("docker", "a"),)}, {}, []),
        ({"images": (("docker", "a"),)}, {"images": {"docker": ("a", "b")}}, []),
        ({"images": (("docker", "a"),)}, {"images": {"docker": ()}}, [("the image a for docker", "")]),
        ({"images": (("docker", "a"),)}, {"images": {"apptainer": ()}}, []),
        ({"modules": ("mine.deep",)}, {"modules": ("mine",)}, []),
        ({"modules": ("mine",)}, {"modules": ("*",)}, []),
        (
            {"modules": ("mine",)},
            {"modules": ("mine.deep",)},
            [("the module mine in node.allowed_modules", "mine.deep")],
        ),
        ({"permits": ("build",)}, {"permits": ("build", "mounts")}, []),
        ({"permits": ("build",)}, {"permits": ("mounts",)}, [("build in [permits] of its polar.toml", "mounts")]),
        ({"labels": ("a", "b")}, {"labels": ("b", "c")}, [("the label a", "b, c")]),
        ({"engine": "x", "model": "m"}, {"engine": "x", "model": "m"}, []),
        ({"engine": "x", "model": "m"}, {"engine": "y"}, [("the engine x", "y"), ("the model m", "")]),
    ],
)
def test_what_a_node_lacks(needed: dict[str, Any], can: dict[str, Any], lacks: list[tuple[str, str]]) -> None:
    assert [tuple(lack) for lack in missing(SessionNeeds(**needed), able(**can))] == lacks


def test_a_long_list_is_cut() -> None:
    [lack] = missing(SessionNeeds(labels=("z",)), able(labels=[f"l{n}" for n in range(9)]))
    assert lack.has == "l0, l1, l2, l3, l4, l5 and 3 more"


def test_equal_needs_have_one_digest() -> None:
    one, same = needs_of(task(instruction="a", priority=3)), needs_of(task(instruction="b", num_samples=7))
    assert one.digest == same.digest
    assert one.digest != needs_of(task(needs={"labels": ["x"]})).digest
