"""Modules that tasks name: the server imports none, and a node only those that its operator allows."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from served_node import Service, agent_task, results_of

from polar.client import ServerError
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.types import Stage

NAMED: dict[str, Any] = {"name": "marking_grader:half"}
COMBINED: dict[str, Any] = {"name": "combine", "options": {"parts": [NAMED]}}


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Written when the module is imported."""
    written = tmp_path / "imported"
    text = f"open({str(written)!r}, 'w').close()\n\n\ndef half(evidence):\n    return 0.5\n"
    (tmp_path / "marking_grader.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("marking_grader", None)
    return written


@pytest.fixture
async def allowing(smollm2: SmolLM2Renderer, tmp_path: Path) -> AsyncIterator[Service]:
    """A service whose server allows the module."""
    async with Service(smollm2, tmp_path, lease_beats=60, allowed_modules=("marking_grader",)) as made:
        yield made


@pytest.mark.parametrize("evaluator", [NAMED, COMBINED])
async def test_a_server_refuses_it_unless_the_operator_allows_it(
    service: Service, marker: Path, evaluator: dict[str, Any]
) -> None:
    with pytest.raises(ServerError, match=r'add "marking_grader" to server\.allowed_modules') as refused:
        await service.client.submit(agent_task(task_id="t", evaluator=evaluator))
    assert refused.value.status == 422
    assert not marker.exists()


@pytest.mark.parametrize("fields", [{"evaluator": NAMED}, {"evaluator": COMBINED}, {"runtime": NAMED}])
async def test_a_node_that_does_not_allow_it_fails_the_session_and_goes_on(
    allowing: Service, marker: Path, fields: dict[str, Any]
) -> None:
    served = await allowing.add_node()
    await allowing.client.submit(agent_task(task_id="named", **fields))
    await allowing.client.submit(agent_task(task_id="plain"))
    results = await results_of(allowing, "named", "plain")
    failed = results["named-0"]
    assert failed.failure is not None and failed.failure.infrastructure
    assert (failed.stage, failed.attempts, failed.reward) == (Stage.FAILED, (), None)
    assert (failed.failure.where, failed.failure.type) == ("init", "ModuleNotAllowed")
    assert 'add "marking_grader" to node.allowed_modules in polar.toml' in failed.failure.message
    assert results["plain-0"].stage is Stage.COMPLETED and served.node.health.sick is None
    assert not marker.exists()


@pytest.mark.parametrize("evaluator", [NAMED, COMBINED])
async def test_where_both_allow_it_only_the_node_imports_it(
    allowing: Service, marker: Path, evaluator: dict[str, Any]
) -> None:
    await allowing.client.submit(agent_task(task_id="t", evaluator=evaluator))
    assert not marker.exists()
    allowing.node_modules = ("marking_grader",)
    await allowing.add_node()
    assert (await results_of(allowing, "t"))["t-0"].reward == 0.5
    assert marker.exists()
