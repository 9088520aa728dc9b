"""The health of real sessions: from the gateway's calls, and from the log that a harness keeps in its home."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pydantic import BaseModel
from workshop import AGENT, WRITE, Workshop, agent_task

from polar.harnesses.base import HarnessContext, Launch
from polar.harnesses.shell import Shell, ShellOptions
from polar.types import HarnessUsage, ReplyCount, TaskRequest

SCRIPT = [f"I write it. {WRITE}", "Done."]


class Bookkeeper(Shell):
    """Writes its replies down: a line for each, with the tokens of prompt and reply."""

    Options: type[BaseModel] = ShellOptions

    def launch(self, context: HarnessContext) -> Launch:
        launch = super().launch(context)
        return Launch(launch.argv, launch.env, launch.home_files, launch.workspace_files, logs=("book.txt",))

    def usage_of(self, logs: Path) -> HarnessUsage | None:
        lines = [line.split() for line in (logs / "book.txt").read_text().splitlines()]
        return HarnessUsage(
            replies=tuple(ReplyCount(prompt_tokens=int(a), completion_tokens=int(b)) for a, b in lines)
        )


class Sleeper(Bookkeeper):
    def usage_of(self, logs: Path) -> HarnessUsage | None:
        sys.exit("I do not read")


def task(book: str, name: str = "Bookkeeper", task_id: str = "a") -> TaskRequest:
    """An agent that then runs `book`."""
    command = f"{' '.join(AGENT)}; code=$?; {book}; exit $code"
    return agent_task(task_id=task_id, harness={"name": f"{__name__}:{name}", "options": {"command": command}})


def writing(pairs: list[tuple[int, int]]) -> str:
    told = " ".join(f"'{prompt} {reply}'" for prompt, reply in pairs)
    return f"printf '%s\\n' {told} >\"$HOME/book.txt\""


async def sizes(workshop: Workshop) -> list[tuple[int, int]]:
    """Tokens of prompt and reply of the agent's calls, which are the same in each session."""
    await workshop.run(SCRIPT, [agent_task(task_id="first")])
    trajectory, result = workshop.trajectories["first-0"], workshop.results["first-0"]
    assert trajectory is not None and result.health is not None
    assert (result.health.verdict, result.health.calls, result.health.own_calls) == ("ok", 2, None)
    (trace,) = trajectory.traces
    return [(len(trace.prompt_ids) + span.start, span.length) for span in trace.spans]


async def test_a_log_that_agrees_and_one_that_does_not(workshop: Workshop) -> None:
    pairs = await sizes(workshop)
    escaped = writing([*pairs, (500, 20)])
    await workshop.run(SCRIPT, [task(writing(pairs), task_id="agrees"), task(escaped, task_id="escaped")])
    health = workshop.results["agrees-0"].health
    assert health is not None and (health.verdict, health.calls, health.own_calls) == ("ok", 2, 2), health
    result = workshop.results["escaped-0"]
    assert result.health is not None and result.health.verdict == "broken"
    assert [finding.what for finding in result.health.findings] == ["not_captured"]
    assert result.reward == 1.0 and result.failure is None, "the reward is another matter"


@pytest.mark.parametrize("book", ['echo nonsense >"$HOME/book.txt"', "true"])
async def test_a_log_that_cannot_be_read_changes_nothing_else(workshop: Workshop, book: str) -> None:
    await workshop.run(SCRIPT, [task(f'mkdir -p "$HOME"; {book}')])
    result = workshop.only
    assert result.reward == 1.0 and result.health is not None
    if book == "true":
        assert result.health.findings == () and result.health.own_calls is None
    else:
        assert [finding.what for finding in result.health.findings] == ["own_log_unreadable"]


async def test_a_harness_that_exits_while_it_reads_changes_nothing_else(workshop: Workshop) -> None:
    await workshop.run(SCRIPT, [task('echo 1 1 >"$HOME/book.txt"', "Sleeper")])
    result = workshop.only
    assert result.reward == 1.0 and result.health is not None
    assert [finding.what for finding in result.health.findings] == ["own_log_unreadable"]


async def test_a_budget_that_ends_a_session_is_noted(workshop: Workshop) -> None:
    await workshop.run(SCRIPT, [agent_task(task_id="a", budgets={"max_calls": 1})])
    health = workshop.only.health
    assert health is not None and "budget_end" in {finding.what for finding in health.findings}
    assert not health.has("calls_refused"), "the refusal after a budget is the budget's"


async def test_a_harness_without_calls_is_healthy(workshop: Workshop) -> None:
    harness = {"name": "shell", "options": {"command": "true"}}
    await workshop.run([], [agent_task(task_id="a", harness=harness)])
    health = workshop.only.health
    assert health is not None and (health.verdict, health.calls) == ("ok", 0)
