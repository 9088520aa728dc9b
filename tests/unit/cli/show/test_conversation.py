"""`polar show --messages` and `--call`: what was said, each message once, long texts folded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from typer.testing import Result

from polar.cli.show.messages import Fold, folded
from polar.config import Config
from polar.store.journal import Journal
from polar.store.paths import RunPaths
from polar.types import Call, Lease, Message, Session, TaskRequest, Tool, ToolCall

from ..conftest import a_call

Polar = Callable[..., Result]

SHELL = Tool(name="bash", parameters={"required": ["command"]})
LONG = "\n".join(f"line {number}" for number in range(1, 401))


def talk() -> list[Call]:
    """An agent that runs a command and hands half of it to a sub-agent."""
    asks = ToolCall(name="bash", arguments='{"command": "ls"}', call_id="c1")
    first = a_call(
        "1",
        "p",
        "q",
        new_messages=(Message(role="system", content=LONG), Message(role="user", content="do it")),
        response=Message(role="assistant", reasoning="hm", tool_calls=(asks,)),
        tools=(SHELL,),
        finish_reason="tool_calls",
    )
    echo = Message(role="assistant", tool_calls=(asks,))
    output = Message(role="tool", content=f"a\x1b[31m\n{LONG}", tool_call_id="c1")
    second = a_call(
        "3", "r", "s", parent=first, new_messages=(echo, output), tools=None, response=Message("assistant", "done")
    )
    sub = a_call("2", "t", "u", kind="subagent", new_messages=(Message("user", "half of it"),), tools=())
    return [first, sub, second]


@pytest.fixture
def spoken(run: RunPaths) -> RunPaths:
    """The run has one more session, with this conversation."""
    asyncio.run(_add(run))
    return run


async def _add(run: RunPaths) -> None:
    session = Session(session_id="talk-0", task_id="talk", index=0)
    async with await Journal.open(run.journal) as journal:
        await journal.add_session(Lease(session=session, task=TaskRequest(task_id="talk", instruction="do it")))
        for call in talk():
            names = {"session_id": "talk-0", "call_id": call.call_id.replace("add-0", "talk-0")}
            parent = call.parent_id and call.parent_id.replace("add-0", "talk-0")
            await journal.append_call(_replaced(call, **names, parent_id=parent))


def _replaced(call: Call, **changes: object) -> Call:
    return Call(**{name: getattr(call, name) for name in call.__struct_fields__} | changes)


def test_each_chain_is_told_once_and_in_order(spoken: RunPaths, polar: Polar) -> None:
    assert polar("show", "talk-0", "--messages").stdout.splitlines() == [
        "=== agent, 2 calls",
        "system",
        *(f"  line {number}" for number in range(1, 7)),
        "  … 394 more lines (--full shows them)",
        "user",
        "  do it",
        "assistant  call 1.1, 1 tokens sampled, tool_calls",
        "  [reasoning] hm",
        '  → bash {"command": "ls"}',
        "tool",
        "  a␛[31m",
        *(f"  line {number}" for number in range(1, 12)),
        "  … 389 more lines (--full shows them)",
        "assistant  call 1.3, 1 tokens sampled, stop",
        "  done",
        "",
        "=== subagent, 1 call",
        "user",
        "  half of it",
        "assistant  call 1.2, 1 tokens sampled, stop",
        "  u",
    ]


def test_full_unfolds(spoken: RunPaths, polar: Polar) -> None:
    shown = polar("show", "talk-0", "--messages", "--full").stdout
    assert shown.count("  line 400\n") == 2 and "more lines" not in shown


def test_one_call_shows_what_was_new_in_it(spoken: RunPaths, polar: Polar) -> None:
    shown = polar("show", "talk-0", "--call", "3").stdout
    assert shown.startswith("call 1.3 of session talk-0: agent, openai_chat, engine scripted\n")
    assert "3 tokens, 5 of them evaluated; 1 tokens sampled, mean logprob -0.500; finish reason stop" in shown
    assert "tools as in the call before" in shown and "continues the tokens of call 1.1" in shown
    assert "  a␛[31m" in shown and "  done" in shown
    assert "do it" not in shown, "the parent's request had it"
    assert polar("show", "talk-0", "--call", "1.3").stdout == shown


def test_the_tokens_of_one_call(spoken: RunPaths, polar: Polar) -> None:
    assert polar("show", "talk-0", "--call", "3", "--tokens").stdout.endswith(
        "      id  logprob  token\n     115   -0.500  s\n"
    )


def test_a_call_that_is_not_there_is_refused_with_those_that_are(spoken: RunPaths, polar: Polar) -> None:
    refused = polar("show", "talk-0", "--call", "9")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "session talk-0 has no call '9'; it has 1.1, 1.2, 1.3" in refused.stderr


def test_json_has_the_messages(spoken: RunPaths, polar: Polar) -> None:
    calls = json.loads(polar("show", "talk-0", "--json").stdout)["calls"]
    assert [call["tools"] for call in calls] == [["bash"], [], None]
    assert calls[0]["new_messages"][1] == {"role": "user", "content": "do it"}
    assert calls[2]["response"] == {"role": "assistant", "content": "done"}
    one = json.loads(polar("show", "talk-0", "--call", "3", "--json", "--tokens").stdout)
    assert (one["call_id"], one["completion_ids"], one["logprobs"]) == ("talk-0.1.3", [115], [-0.5])


def test_worked_examples_of_the_renderer_are_marked(spoken: RunPaths, polar: Polar) -> None:
    record = spoken.read_record()
    spoken.write_record(record.model_copy(update={"config": Config()}))
    added = "the renderer added 8 worked examples (docs/design/default-model.md) to the prompt"
    lines = polar("show", "talk-0", "--messages").stdout.splitlines()
    assert [line for line in lines if added in line] == lines[1:2], "the sub-agent has no shell"
    assert added in polar("show", "talk-0", "--call", "1").stdout
    assert added not in polar("show", "talk-0", "--call", "3").stdout, "its parent's prompt has them"


def test_a_session_without_calls_says_so(run: RunPaths, polar: Polar) -> None:
    assert "session add-1 has no calls" in polar("show", "add-1", "--messages").stdout


@pytest.mark.parametrize(
    ("text", "fold", "shown"),
    [
        ("a\nb", Fold(2, 10), ("a\nb", "")),
        ("a\nb\nc", Fold(2, 10), ("a\nb", "… 1 more line (--full shows them)")),
        ("x" * 12, Fold(2, 10), ("x" * 10, "… 2 more characters (--full shows them)")),
        ("x" * 12, None, ("x" * 12, "")),
    ],
)
def test_what_is_folded(text: str, fold: Fold | None, shown: tuple[str, str]) -> None:
    assert folded(text, fold) == shown
