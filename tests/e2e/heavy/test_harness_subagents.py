"""Agents that work side by side for one harness: every call kept, each conversation in a chain of its own.

The main agent starts two agents in one reply. Each of them writes a file with its shell and reports; then the main
agent ends. Their first replies take half a second, so that both are under way at the same time.

Codex, Claude Code and OpenCode name the agent in a header, so two agents with the same prompt stay two. Gemini CLI
and Qwen Code send nothing that tells their agents apart: by their tools they are known to be agents, but two that
ask the same thing at the same time get one and the same reply. pi has no agents beside the main one, and neither
has Claude Code when it is `bare`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from exactly_once import assert_exactly_once
from harness_loop import Loop, Outcome, shell_call, tool_call

from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.types import Call

INSTRUCTION = "Share this work out to two agents."
SAME = ("Put hello into the file answer.txt.",) * 2
DIFFERENT = ("Put hello into the file answer.txt, first.", "Put hello into the file answer.txt, second.")
SHARED_OUT = "I share it out."
WRITING = "I am writing it"
REPORT = "It is written."
END = "Both agents are done."

Start = Callable[[str], tuple[str, dict[str, Any]]]
"""From an agent's prompt to the tool call that starts the agent."""
STARTS: dict[str, Start] = {
    "codex": lambda prompt: ("multi_agent_v1__spawn_agent", {"message": prompt}),
    "codex-fork": lambda prompt: ("multi_agent_v1__spawn_agent", {"message": prompt, "fork_context": True}),
    "claude_code": lambda prompt: ("Agent", _described(prompt, "general-purpose", run_in_background=False)),
    "claude_code-background": lambda prompt: ("Agent", _described(prompt, "general-purpose")),
    "claude_code-fork": lambda prompt: ("Agent", _described(prompt, "fork")),
    "opencode": lambda prompt: ("task", _described(prompt, "general")),
    "gemini_cli": lambda prompt: ("invoke_agent", {"agent_name": "generalist", "prompt": prompt}),
    "qwen_code": lambda prompt: ("agent", _described(prompt, "general-purpose", run_in_background=False)),
    "qwen_code-background": lambda prompt: ("agent", _described(prompt, "general-purpose")),
}
NAMED_BY_HEADERS = [name for name in STARTS if not name.startswith(("gemini", "qwen"))]
NOT_NAMED = [name for name in STARTS if name not in NAMED_BY_HEADERS]
ALONE = ["codex", "claude_code", "opencode"]
"""Where an agent begins with nothing but its prompt, and the main agent waits for it."""


def _described(prompt: str, kind: str, **further: Any) -> dict[str, Any]:
    return {"description": "write hello", "prompt": prompt, "subagent_type": kind, **further}


def script_of(name: str, prompts: tuple[str, ...], *, alike: bool) -> Callable[[str], str]:
    """`alike`: the agents' first replies are the same to the letter; else each says which one it is."""
    harness = name.partition("-")[0]
    begun: list[str] = []

    def agent(prompt: str) -> str:
        if WRITING in prompt:
            report = tool_call("complete_task", {"result": {"response": REPORT}})
            return report if harness == "gemini_cli" else REPORT
        begun.append(prompt)
        words = WRITING if alike else f"{WRITING} as number {len(begun)}"
        return f"{words}.\n{shell_call(harness, 'echo hello > answer.txt && echo written')}"

    def main(prompt: str) -> str:
        if SHARED_OUT not in prompt:
            return "\n".join([SHARED_OUT, *(tool_call(*STARTS[name](text)) for text in prompts)])
        waiting = _still_at_work(prompt) if harness == "codex" else []
        if waiting:
            return tool_call("multi_agent_v1__wait_agent", {"targets": waiting, "timeout_ms": 20_000})
        return END

    def reply(prompt: str) -> str:
        turns = prompt.split("<|im_start|>")
        is_agent = any(turn.startswith("user") and prompts[0][:20] in turn for turn in turns)
        return agent(prompt) if is_agent else main(prompt)

    return reply


def _still_at_work(prompt: str) -> list[str]:
    """Codex names an agent when it is started, and again with its report when it was waited for."""
    started = dict.fromkeys(re.findall(r'agent_id\\?":\s*\\?"([0-9a-f-]+)', prompt))
    return [name for name in started if not re.search(rf"{name}[^}}]{{0,40}}completed", prompt)]


async def share_out(name: str, loop: Loop, prompts: tuple[str, ...], *, alike: bool = False) -> Outcome:
    loop.instruction = INSTRUCTION
    loop.script = script_of(name, prompts, alike=alike)
    # Of the replies after the first, two are the agents' first; the main agent may say something in between.
    return await loop.run(name.partition("-")[0], faults=["", *["pause"] * 3], budgets={"max_calls": 20})


def assert_ended_well(outcome: Outcome) -> None:
    result = outcome.result
    assert (result.exit_code, result.failure, result.stage.value) == (0, None, "COMPLETED"), result
    assert result.score is not None and result.score.reward == 1.0
    assert all(call.received for call in outcome.calls)
    assert len(outcome.calls) == len(outcome.engine.requests)
    assert_exactly_once(outcome.calls, outcome.trajectory)


def chain_of(outcome: Outcome, end: Call) -> list[Call]:
    """A call and those it continues, the first one first."""
    by_id = {call.call_id: call for call in outcome.calls}
    chain = [end]
    while chain[0].continues and chain[0].parent_id:
        chain.insert(0, by_id[chain[0].parent_id])
    return chain


def assert_chains_apart(outcome: Outcome, main: list[Call], agents: list[Call]) -> None:
    """The main agent's calls are one chain; each of the two agents has one of two calls; each is one trace."""
    assert chain_of(outcome, main[-1]) == main
    assert main[-1].response.content == END
    reports = [call for call in agents if WRITING not in call.response.content]
    chains = [main, *(chain_of(outcome, report) for report in reports)]
    assert [len(chain) for chain in chains[1:]] == [2, 2]
    assert len({call.call_id for chain in chains for call in chain}) == len(outcome.calls), "no call is in two"
    # A tool call's id names the call that made it: an echo with another id is the echo of another reply.
    assert not any("ids_renamed" in call.tolerant for call in outcome.calls)
    spans = sorted(tuple(span.call_id for span in trace.spans) for trace in outcome.trajectory.traces)
    assert spans == sorted(tuple(call.call_id for call in chain) for chain in chains)


def split(outcome: Outcome) -> tuple[list[Call], list[Call]]:
    """The main agent's calls and the others', by their content."""
    agents = [
        call
        for call in outcome.calls
        if WRITING in call.response.content
        or REPORT in call.response.content
        or any(tool.name == "complete_task" for tool in call.response.tool_calls)
    ]
    return [call for call in outcome.calls if call not in agents], agents


@pytest.mark.parametrize(
    ("name", "prompts"),
    [*((name, SAME) for name in NAMED_BY_HEADERS), *((name, DIFFERENT) for name in ALONE)],
    ids=[*(f"{name}-same" for name in NAMED_BY_HEADERS), *(f"{name}-different" for name in ALONE)],
)
async def test_two_agents_named_by_headers(
    name: str, prompts: tuple[str, ...], smollm2: SmolLM2Renderer, tmp_path: Path, report: Any
) -> None:
    outcome = await share_out(name, Loop(smollm2, tmp_path), prompts)
    report(name, {"agents": len(set(prompts))}, outcome)
    assert_ended_well(outcome)
    main, agents = split(outcome)
    assert {call.kind for call in main} == {"agent"}
    assert [call.kind for call in agents] == ["subagent"] * 4, "no call was taken for the retry of another"
    assert_chains_apart(outcome, main, agents)
    assert sorted(trace.kind for trace in outcome.trajectory.traces) == ["agent", "subagent", "subagent"]


def second_version(prompt: str) -> str:
    """Codex's multi-agent v2: agents begin with the main agent's history, and write to each other in messages."""
    if "Message Type: NEW_TASK" in prompt:
        if WRITING in prompt:
            return REPORT
        return f"{WRITING}.\n{shell_call('codex', 'echo hello > answer.txt && echo written')}"
    if "Message Type: FINAL_ANSWER" in prompt:
        return END
    if SHARED_OUT in prompt:
        return tool_call("collaboration__wait_agent", {"timeout_ms": 20_000})
    task = {"message": SAME[0], "task_name": "writer"}
    return f"{SHARED_OUT}\n{tool_call('collaboration__spawn_agent', task)}"


async def test_agents_of_codex_that_write_to_each_other(smollm2: SmolLM2Renderer, tmp_path: Path) -> None:
    loop = Loop(smollm2, tmp_path, instruction=INSTRUCTION, script=second_version)
    outcome = await loop.run("codex", extra_args=["-c", "features.multi_agent_v2=true"])
    assert_ended_well(outcome)
    main, agents = split(outcome)
    assert [call.kind for call in agents] == ["subagent", "subagent"]
    assert main[-1].response.content == END
    task = next(
        message for message in agents[0].new_messages if message.content.startswith("Message Type: NEW_TASK")
    )
    assert task.role == "user" and task.content.endswith(SAME[0]), "what the main agent wrote, in plain text"
    answer = next(
        message for message in main[-1].new_messages if message.content.startswith("Message Type: FINAL")
    )
    assert answer.content.endswith(REPORT)
    assert chain_of(outcome, main[-1]) == main and chain_of(outcome, agents[-1]) == agents


@pytest.mark.parametrize("name", ["gemini_cli", "qwen_code"])
async def test_two_agents_that_nothing_names(
    name: str, smollm2: SmolLM2Renderer, tmp_path: Path, report: Any
) -> None:
    outcome = await share_out(name, Loop(smollm2, tmp_path), DIFFERENT)
    report(name, {"agents": 2}, outcome)
    assert_ended_well(outcome)
    main, agents = split(outcome)
    assert {call.kind for call in main} == {"agent"} and {call.kind for call in agents} == {"subagent"}
    assert_chains_apart(outcome, main, agents)


@pytest.mark.parametrize("name", NOT_NAMED)
async def test_two_agents_that_nothing_names_with_the_same_prompt(
    name: str, smollm2: SmolLM2Renderer, tmp_path: Path, report: Any
) -> None:
    """The second agent's question is taken for a retry of the first's. What is sampled once stands once, and both
    agents go on from it."""
    outcome = await share_out(name, Loop(smollm2, tmp_path), SAME)
    report(name, {"agents": 1}, outcome)
    assert_ended_well(outcome)
    main, agents = split(outcome)
    assert chain_of(outcome, main[-1]) == main
    first, *later = agents
    assert [WRITING in call.response.content for call in agents] == [True] + [False] * len(later)
    assert {call.parent_id for call in later} == {first.call_id} and len(later) in (1, 2)


@pytest.mark.parametrize("name", ALONE)
async def test_two_agents_that_say_the_same(name: str, smollm2: SmolLM2Renderer, tmp_path: Path) -> None:
    """Not even the first replies tell the two apart, only the ids of the tool calls in them."""
    outcome = await share_out(name, Loop(smollm2, tmp_path), SAME, alike=True)
    assert_ended_well(outcome)
    assert_chains_apart(outcome, *split(outcome))
