"""Programs that know no base URL: the official SDKs at their default hosts, in each runtime that contains them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from intercepting import complaint, intercepting_task, permit_python, printed
from workshop import Workshop

from polar.data.source import TaskFileSource
from polar.node import Node
from polar.types import Call, Stage

pytestmark = pytest.mark.check
AGENT = (Path(__file__).parent / "default_url_agent.py").read_text()
ASKED = (
    *("openai chat", "openai chat streamed", "openai responses", "openai responses streamed"),
    *("anthropic", "anthropic streamed", "google", "google streamed"),
)
DIALECTS = ["openai_chat"] * 2 + ["openai_responses"] * 2 + ["anthropic"] * 2 + ["google"] * 2
REPLIES = [f"Hello number {number}." for number in range(len(ASKED))]
BASE_URLS = ["ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL", "OPENAI_BASE_URL"]


@pytest.mark.parametrize("runtime", ["bubblewrap", "docker", "apptainer"])
async def test_three_sdks_at_their_default_hosts(workshop: Workshop, runtime: str) -> None:
    """The same calls are captured as with base URLs, token for token."""
    permit_python(workshop)
    calls: dict[str, list[Call]] = {}
    tasks = [
        await intercepting_task(runtime, "$PYTHON agent.py", intercept, files={"agent.py": AGENT}, task_id=task_id)
        for task_id, intercept in {"default": True, "based": False}.items()
    ]

    async def serve(node: Node, source: TaskFileSource) -> None:
        await node.serve(source)
        calls.update({task_id: await node.journal.calls(f"{task_id}-0") for task_id in ("default", "based")})

    await workshop.run(REPLIES, tasks, during=serve)

    for task_id, variables in {"default": [], "based": BASE_URLS}.items():
        result = workshop.results[f"{task_id}-0"]
        assert result.stage == Stage.COMPLETED, (result.failure, complaint(workshop, result.session_id))
        said = json.loads(printed(workshop, result.session_id))
        assert said.pop("base URLs") == variables
        assert said == dict(zip(ASKED, REPLIES, strict=True))
        assert [call.dialect for call in calls[task_id]] == DIALECTS
        assert all(call.received for call in calls[task_id])
    captured, expected = [[_tokens(call) for call in calls[name]] for name in ("default", "based")]
    assert captured == expected
    assert all(completion for _, completion, _ in captured)


def _tokens(call: Call) -> tuple[Any, Any, Any]:
    return call.new_prompt_ids.tolist(), call.completion_ids.tolist(), call.logprobs.tolist()
