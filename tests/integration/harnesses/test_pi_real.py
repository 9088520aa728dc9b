"""The real pi, installed from the registry and run in the local runtime against a scripted model server."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

import pytest

from polar.harnesses.base import HarnessContext
from polar.harnesses.pi import Pi, PiOptions
from polar.runtimes.base import Command, Finished
from polar.runtimes.host.processes import Family, find
from polar.runtimes.local.runtime import LocalRuntime
from polar.types import Slot
from waiting import hang_limit

KEY = "sk-$HOME-4f1c09a7-$$"
CONTEXT_TOKENS = 8192


class Model(Protocol):
    base_url: str
    script: list[str]
    used_tokens: list[int]
    requests: list[dict[str, Any]]
    keys: list[str]
    paths: list[str]

    async def has_been_called(self, times: int) -> None: ...

    def instruction(self) -> str: ...


RunPi = Callable[..., Coroutine[Any, Any, Finished]]


@pytest.fixture
def run_pi(model: Model, runtime: LocalRuntime, installed_pi: dict[str, Path]) -> RunPi:
    async def run(instruction: str, key: str = KEY, **options: Any) -> Finished:
        slot = Slot(base_url=model.base_url, key=key, model="Qwen/any:7b", context_tokens=CONTEXT_TOKENS)
        context = HarnessContext(instruction, slot, "s-1", runtime.workspace, runtime.home, installed_pi)
        launch = Pi(PiOptions(**options)).launch(context)
        for path, text in launch.home_files.items():
            await runtime.put(path, text.encode(), home=True)
        return await runtime.exec(Command(argv=launch.argv, env=launch.env, log_name="harness"))

    return run


async def test_a_tool_loop_of_two_turns(run_pi: RunPi, model: Model, runtime: LocalRuntime) -> None:
    model.script = ["$ echo hello >answer.txt; cat answer.txt", "All done."]

    finished = await run_pi("Write hello into answer.txt")

    assert (finished.exit_code, finished.stdout_tail, finished.stderr_tail) == (0, "All done.\n", "")
    assert await runtime.get("answer.txt") == b"hello\n"
    first, second = model.requests
    assert [tool["function"]["name"] for tool in first["tools"]] == ["read", "bash", "edit", "write"]
    assert first["model"] == "Qwen/any:7b"
    assert first["max_completion_tokens"] == 1024
    assert second["messages"][: len(first["messages"])] == first["messages"]
    assert second["messages"][-1]["content"] == "hello\n"


@pytest.mark.parametrize(
    "instruction",
    [
        "- summarise these points",
        "--version",
        "@notes.txt says what to do",
        "@@twice, and space at the end \n\n",
        "/mcp list the servers",
        "/skill:none is text too",
        "\n  space at both ends \t",
        """it's "quoted" `twice` $(touch x) $HOME \\ !1""",
        "first line\nsecond line\r\n\tthird",
        "héllo wörld — 你好 🌍",
        "a\0b",
    ],
)
async def test_an_instruction_arrives_as_it_was_written(run_pi: RunPi, model: Model, instruction: str) -> None:
    finished = await run_pi(instruction)
    assert finished.exit_code == 0, finished.stderr_tail
    assert model.instruction() == instruction


async def test_an_instruction_longer_than_any_argument(run_pi: RunPi, model: Model) -> None:
    instruction = "Line äöü 123\n" * 75_000
    finished = await run_pi(instruction)
    assert finished.exit_code == 0, finished.stderr_tail
    assert model.instruction() == instruction


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_the_key_stands_on_no_command_line_and_in_no_environment(
    run_pi: RunPi, model: Model, runtime: LocalRuntime
) -> None:
    model.script = ["$ cat /proc/[0-9]*/cmdline /proc/$PPID/environ 2>/dev/null >seen; env >>seen"]
    await run_pi("Look around")
    seen = await runtime.get("seen")
    assert seen.count(b"POLAR_SESSION=s-1") == 2  # pi's own environment, and its tool's
    assert b"4f1c09a7" not in seen


@pytest.mark.parametrize("key", [KEY, "!echo stolen", "$!x", "plain"])
async def test_the_key_arrives_as_it_is(run_pi: RunPi, model: Model, key: str) -> None:
    await run_pi("Say hello", key=key)
    assert model.keys == [key]


async def test_a_cancelled_pi_leaves_nothing_alive(run_pi: RunPi, model: Model, tmp_path: Path) -> None:
    """Not even the server that its tool started with setsid."""
    model.script = ["$ setsid sleep 1000 >/dev/null 2>&1 & echo started", "<never answers>"]
    task = asyncio.create_task(run_pi("Start a server"))
    async with hang_limit():
        await model.has_been_called(times=2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    root = (tmp_path / "root").resolve()
    assert not find(Family(f"POLAR_PLACE={root}:".encode(), leaders=frozenset()))


async def test_options_reach_the_model(run_pi: RunPi, model: Model) -> None:
    await run_pi(
        "Say hello",
        tools=("bash",),
        system_prompt="  You are terse.\n",
        append_system_prompt="Never apologise.",
        max_tokens=77,
    )
    (request,) = model.requests
    system = request["messages"][0]["content"]
    assert [tool["function"]["name"] for tool in request["tools"]] == ["bash"]
    assert request["max_completion_tokens"] == 77
    assert system.startswith("  You are terse.\n")
    assert "Never apologise." in system


@pytest.mark.parametrize(
    ("api", "path"),
    [
        ("openai-completions", "/v1/chat/completions"),
        ("openai-responses", "/v1/responses"),
        ("anthropic-messages", "/v1/messages"),
        ("google-generative-ai", "/v1beta/models/Qwen/any:7b:streamGenerateContent"),
    ],
)
async def test_each_api_is_called_where_the_gateway_serves_it(
    run_pi: RunPi, model: Model, api: str, path: str
) -> None:
    await run_pi("Say hello", api=api)
    assert model.paths == [path]


async def test_no_tools(run_pi: RunPi, model: Model) -> None:
    await run_pi("Say hello", tools=())
    assert not model.requests[0].get("tools")


@pytest.mark.parametrize("context_files", [False, True])
async def test_notes_of_the_node_stay_out_of_the_prompt(
    run_pi: RunPi, model: Model, tmp_path: Path, context_files: bool
) -> None:
    for folder in (tmp_path, tmp_path / "root"):  # above the workspace as the node sees it, and as pi does
        (folder / "AGENTS.md").write_text("Sing while you work.")
    await run_pi("Say hello", context_files=context_files)
    assert ("Sing while you work." in str(model.requests[0])) == context_files


async def test_a_small_window_is_used_to_its_end(run_pi: RunPi, model: Model) -> None:
    model.script = ["$ true", "$ true"]
    model.used_tokens = [CONTEXT_TOKENS // 2, CONTEXT_TOKENS * 5 // 8]
    await run_pi("Say hello")
    assert [request["max_completion_tokens"] for request in model.requests] == [1024, 1024, 1024]


@pytest.mark.parametrize("compaction", [True, False])
async def test_old_turns_are_summarised_in_a_small_window_too(
    run_pi: RunPi, model: Model, compaction: bool
) -> None:
    model.script = ["$ seq 1800", "$ seq 900"]
    model.used_tokens = [CONTEXT_TOKENS // 3, CONTEXT_TOKENS * 7 // 8]
    finished = await run_pi("Count", compaction=compaction)
    assert finished.exit_code == 0
    assert [bool(request.get("tools")) for request in model.requests] == [True, True, *[False] * compaction, True]


async def test_pi_leaves_nothing_in_the_workspace(run_pi: RunPi, tmp_path: Path) -> None:
    await run_pi("Say hello")
    assert {path.name for path in (tmp_path / "root/home").iterdir()} == {".pi"}
    assert list((tmp_path / "root/work").iterdir()) == []
