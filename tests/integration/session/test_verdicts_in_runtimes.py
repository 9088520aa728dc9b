"""One end, one verdict, in every runtime: signals, exit codes, limits, and what an agent leaves behind."""

from __future__ import annotations

from typing import Any

import pytest
from workshop import Workshop, agent_task, shell_task

from polar import registry
from polar.runtimes.base import Runtime
from polar.types import Stage, TaskRequest
from skips import skip_without_runtime

AGENT = r"""
address=${OPENAI_BASE_URL#http://} address=${address%%/*}
body='{"model": "polar", "messages": [{"role": "user", "content": "Go."}]}'
exec 3<>"/dev/tcp/${address%:*}/${address##*:}"
printf 'POST /v1/chat/completions HTTP/1.1\r\nHost: polar\r\nAuthorization: Bearer %s\r\n' "$OPENAI_API_KEY" >&3
printf 'Content-Type: application/json\r\nContent-Length: %d\r\n' "${#body}" >&3
printf 'Connection: close\r\n\r\n%s' "$body" >&3
cat <&3 >/dev/null
echo hello >answer.txt
"""
"""One call and an answer, with what the smallest image has."""
SCRIPT = ["Done."]
CONTAINED = ("bubblewrap", "docker", "apptainer")
RUNTIMES = ["local", *(pytest.param(name, marks=pytest.mark.check) for name in CONTAINED)]
OPTIONS: dict[str, dict[str, Any]] = {"bubblewrap": {"image": "polar-base"}}


async def task_in(runtime: str, end: str, limits: dict[str, Any] | None = None, **fields: Any) -> TaskRequest:
    """An agent that writes its answer and then ends in its own way; it is skipped where the runtime is missing."""
    known: type[Runtime] = registry.find("runtime", runtime)
    skip_without_runtime(runtime, await known.lacking())
    options = OPTIONS.get(runtime, {}) | ({"limits": limits} if limits else {})
    spec = {"name": runtime, "options": options}
    return shell_task(f"bash agent.sh\n{end}", runtime=spec, files={"agent.sh": AGENT}, **fields)


ENDS = {
    "killed": ("kill -9 $$", "UnknownSignal", False),
    "killed-in-sh": ("sh -c 'kill -9 $$; :'; exit $?", "UnknownSignal", False),
    "exit-137": ("exit 137", "UnknownSignal", False),
    "terminated": ("kill -TERM $$", "UnknownSignal", False),
    "crashed": ("kill -SEGV $$", "HarnessCrashed", True),
    "crashed-in-sh": ("sh -c 'kill -SEGV $$; :'; exit $?", "HarnessCrashed", True),
    "exit-3": ("exit 3", "HarnessExit", True),
}


@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_ends_of_a_harness(workshop: Workshop, runtime: str) -> None:
    tasks = [await task_in(runtime, end, task_id=name) for name, (end, _, _) in ENDS.items()]
    await workshop.run(SCRIPT, tasks)
    verdicts = {
        result.task_id: (result.failure.type, result.failure.agent)
        for result in workshop.results.values()
        if result.failure is not None
    }
    assert verdicts == {name: (kind, policy) for name, (_, kind, policy) in ENDS.items()}
    for result in workshop.results.values():
        assert result.failure and result.stage == Stage.FAILED
        reward = result.score.reward if result.score else None
        assert reward == (0.0 if result.failure.agent else None)


@pytest.mark.check
@pytest.mark.parametrize("runtime", CONTAINED)
@pytest.mark.parametrize("end", ["exec tail /dev/zero", "tail /dev/zero; exit $?"])
async def test_the_memory_limit(workshop: Workshop, runtime: str, end: str) -> None:
    await workshop.run(SCRIPT, [await task_in(runtime, end, limits={"memory_bytes": "96MiB"})])
    failure = workshop.only.failure
    assert failure and (failure.type, failure.agent) == ("MemoryLimit", True), failure
    assert workshop.only.score and workshop.only.score.reward == 0.0


TESTED = {
    "name": "test_on_output",
    "options": {
        "command": "sh tests/check.sh",
        "files": {"tests/check.sh": "cat answer.txt | grep -q '^hello$'\n"},
    },
}
LEFT_BEHIND = {
    "right": (":", 1.0),
    "wrong": ("echo no > answer.txt", 0.0),
    "none": ("rm answer.txt", 0.0),
    "pipe": ("rm answer.txt; mkfifo answer.txt", 0.0),
    "pipe-elsewhere": ('mkfifo "$HOME/p"; ln -sf "$HOME/p" answer.txt', 0.0),
    "read-only": ("chmod 555 .", 1.0),
    "read-only-wrong": ("echo no > answer.txt; chmod 555 .", 0.0),
    "test-is-a-folder": ("echo no > answer.txt; mkdir -p tests/check.sh/deep; chmod 555 tests/check.sh", 0.0),
    "test-is-a-pipe": ("echo no > answer.txt; mkdir tests; mkfifo tests/check.sh", 0.0),
    "test-leads-outside": ("echo no > answer.txt; mkdir tests; ln -s /etc/passwd tests/check.sh", 0.0),
    "tests-lead-outside": ("echo no > answer.txt; ln -s /etc tests", 0.0),
    "tests-are-a-file": ("echo no > answer.txt; echo > tests", 0.0),
    "tests-are-read-only": ("echo no > answer.txt; mkdir tests; chmod 000 tests", 0.0),
    "no-workspace": ('here=$PWD; cd /; rm -rf "$here" 2>/dev/null', 0.0),
}


@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_what_an_agent_leaves_does_not_void_its_zero(workshop: Workshop, runtime: str) -> None:
    tasks = [
        await task_in(runtime, f"{end}; exit 0", task_id=name, evaluator=TESTED)
        for name, (end, _) in LEFT_BEHIND.items()
    ]
    await workshop.run(SCRIPT, tasks)
    rewards = {
        result.task_id: (
            result.score.reward if result.score else None,
            result.failure is None or result.failure.agent,
        )
        for result in workshop.results.values()
    }
    assert rewards == {name: (reward, True) for name, (_, reward) in LEFT_BEHIND.items()}
    took_s = {result.task_id: result.stage_s["POSTRUN"] for result in workshop.results.values()}
    assert max(took_s.values()) < agent_task().budgets.postrun_s * 0.8, "none had to be broken off"
