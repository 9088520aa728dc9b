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
async def test_a_node_that_does_not_allow_it_is_not_offered_the_session(
    allowing: Service, marker: Path, fields: dict[str, Any]
) -> None:
    served = await allowing.add_node()
    await allowing.client.submit(agent_task(task_id="named", **fields))
    await allowing.client.submit(agent_task(task_id="plain"))
    assert (await results_of(allowing, "plain"))["plain-0"].stage is Stage.COMPLETED
    waiting = await allowing.client.session("named-0")
    assert (waiting.stage, waiting.attempt, waiting.node_id) == (Stage.QUEUED, 1, None)
    assert waiting.waits == "no live node has the module marking_grader in node.allowed_modules (1 node: none)"
    assert (await allowing.client.task("named")).waits == waiting.waits
    assert served.node.health.sick is None and not marker.exists()


async def test_another_node_that_allows_it_runs_the_session(allowing: Service, marker: Path) -> None:
    await allowing.add_node()
    await allowing.client.submit(agent_task(task_id="named", evaluator=NAMED))
    allowing.node_modules = ("marking_grader",)
    await allowing.add_node()
    result = (await results_of(allowing, "named"))["named-0"]
    assert (result.reward, result.attempts) == (0.5, ())
    assert marker.exists()


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
