"""Lines of `polar nodes`, `polar actions` and `polar token ls`."""

from __future__ import annotations

import time
from typing import Any

import pytest

from node_abilities import able
from polar.cli.control import token
from polar.cli.control.actions import line_of
from polar.cli.control.nodes import abilities_line
from polar.types import Action, NodeAbilities, NodeStatus, TokenStatus


def a_node(abilities: NodeAbilities | None) -> NodeStatus:
    times = {"registered": 1.0, "last_seen": 1.0, "alive": True}
    return NodeStatus.model_validate({"node_id": "n", "name": "gpu", "slots": 1, **times, "abilities": abilities})


@pytest.mark.parametrize(
    ("can", "line"),
    [
        ({"runtimes": ["docker", "local"]}, "docker local"),
        ({"runtimes": []}, "no runtime"),
        (
            {"runtimes": ["local"], "engine": "vllm", "model": "Qwen/Qwen3-8B", "labels": ["gpu", "site:lab"]},
            "local; vllm Qwen/Qwen3-8B; labels gpu site:lab",
        ),
        ({"runtimes": ["local"], "labels": ["\x1b[2J\nred"]}, "local; labels ␛[2J red"),
    ],
)
def test_what_a_node_can_run_is_one_line(can: dict[str, Any], line: str) -> None:
    assert abilities_line(a_node(able(**can))) == line


def test_a_node_of_an_older_polar_says_so() -> None:
    assert abilities_line(a_node(None)) == "unknown: of an older Polar, gets no sessions"


def test_an_action_says_who_did_what_from_where() -> None:
    values = {"cursor": 41, "at": 0.0, "action": "tasks.submit", "by": "token", "token": "3f9a12c07d11"}
    done = Action.model_validate(
        {**values, "address": "10.0.0.7", "outcome": "done", "detail": {"task_id": "add"}}
    )
    line = line_of(done)
    assert line.startswith("    41  ")
    assert line.endswith("  tasks.submit           done     token 3f9a12c07d11 10.0.0.7  task_id=add")


def test_a_refusal_names_its_reason_and_cannot_disturb_the_terminal() -> None:
    values = {"cursor": 1, "at": 0.0, "action": "tasks.newest", "by": "unknown", "outcome": "refused"}
    line = line_of(Action.model_validate({**values, "detail": {"why": "no token\n\x1b[2J" + "x" * 400}}))
    assert "refused  unknown  why=no token ␛[2J" in line and line.endswith("…")
    assert "\n" not in line and "\x1b" not in line


@pytest.mark.parametrize(("ends_in_s", "valid"), [(None, "yes"), (3600.0, "until "), (-3600.0, "ended ")])
def test_a_token_says_how_long_it_is_valid(ends_in_s: float | None, valid: str) -> None:
    expires = None if ends_in_s is None else time.time() + ends_in_s
    one = TokenStatus(kind="control", fingerprint="3f9a12c07d11", made=1.0, expires=expires)
    kind, fingerprint, _, shown = token.row_of(one)
    assert (kind, fingerprint) == ("control", "3f9a12c07d11") and shown.startswith(valid)
