"""Verdicts that take longer than sessions: what waits for them is bounded."""

from __future__ import annotations

from workshop import WRITE, Workshop, agent_task

from polar.data.source import TaskFileSource
from polar.node import Node
from polar.types import Stage

SLOW = {"name": "test_on_output", "options": {"command": "sleep 1"}}


async def test_sessions_that_wait_for_postrun_are_bounded(workshop: Workshop) -> None:
    """One runs, one is judged, one waits: so many have begun to run when the second is judged."""
    begun: list[float] = []
    judged: list[float] = []

    async def look(node: Node, source: TaskFileSource) -> None:
        await node.serve(source)
        for session_id in workshop.results:
            at = dict(await node.journal.stages(session_id))
            begun.append(at[Stage.RUNNING])
            judged.append(at[Stage.POSTRUN])

    task = agent_task(task_id="t", num_samples=6, evaluator=SLOW)
    await workshop.run([WRITE, "Done."] * 6, [task], look, ready=6, init=2, running=1, postrun=1, waiting=1)
    assert {result.stage for result in workshop.results.values()} == {Stage.COMPLETED}
    assert sum(at < sorted(judged)[1] for at in begun) <= 3
