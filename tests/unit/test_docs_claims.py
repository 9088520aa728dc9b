"""Sentences of the documentation that code can contradict."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from polar import registry
from polar.harnesses.base import HarnessContext
from polar.harnesses.shell import Shell, ShellOptions
from polar.types import Drain, Policy, Slot

ROOT = Path(__file__).parent.parent.parent
QUICKSTART = (ROOT / "docs/quickstart.md").read_text()


def row(field: str) -> str:
    (found,) = re.findall(rf"^\| `{re.escape(field)}` \|(.*)$", QUICKSTART, re.MULTILINE)
    return found


@pytest.mark.parametrize(
    ("kind", "field"),
    [(kind, kind) for kind in ("runtime", "harness", "builder", "evaluator", "engine")]
    + [("renderer", "model.renderer")],
)
def test_the_row_of_a_plug_point_names_all_that_ship(kind: str, field: str) -> None:
    assert set(registry.BUILT_IN[kind]) <= set(re.findall(r"`(\w+)`", row(field)))


def test_every_variable_of_the_shell_harness_is_in_the_table() -> None:
    slot = Slot(base_url="http://x", key="k", model="m", context_tokens=10)
    context = HarnessContext(session_id="s", instruction="x", slot=slot, workspace="/w", home="/h", installed={})
    for name in Shell(ShellOptions(command="true")).launch(context).env:
        assert f"`{name}`" in QUICKSTART, name


def test_the_fields_of_a_drain_are_those_of_its_json() -> None:
    page = (ROOT / "docs/policy.md").read_text().partition("| field | is |")[2].partition("\n\n")[0]
    drain = Drain(policy=Policy(), generating=0)
    assert set(re.findall(r"^\| `(\w+)`", page, re.MULTILINE)) == drain.model_dump(mode="json").keys()


@pytest.mark.parametrize("field", ["callback_url", "priority", "group_id"])
def test_what_the_server_uses_is_not_called_unused(field: str) -> None:
    """tests/integration/server shows each at work: test_callbacks, test_state_leases, test_state_groups."""
    assert "server" in row(field) or "client" in row(field)
    assert "yet" not in row(field)
