"""How each harness changes its history, and that its profile declares exactly that."""

from __future__ import annotations

import re
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.harnesses.claude_code import MATCHING
from polar.registry import make
from polar.tokens.matching import Matcher
from polar.types import Matching, Message, Spec, Tool, ToolCall

SIX = ("codex", "claude_code", "gemini_cli", "qwen_code", "opencode", "pi")


def tool(name: str, **arguments: Any) -> Tool:
    return Tool(name, parameters={"type": "object", "properties": arguments})


TEXT, NUMBER = {"type": "string"}, {"type": "number"}
TOOLS = (
    tool("Bash", command=TEXT, timeout=NUMBER, run_in_background={"type": "boolean"}),
    tool("Write", file_path=TEXT, content=TEXT),
    tool(
        "Edit", file_path=TEXT, old_string=TEXT, new_string=TEXT, replace_all={"type": "boolean", "default": False}
    ),
    tool("bash", command=TEXT, timeout=NUMBER),
    tool("edit", path=TEXT, edits={"type": "array"}),
)


def matching_of(harness: str) -> Matching:
    return make("harness", Spec(name=harness)).profile().matching


def overlooked(harness: str, said: tuple[str, dict[str, Any]], again: tuple[str, dict[str, Any]]) -> str | None:
    """What a match overlooks; None: no match."""
    matcher = Matcher(matching_of(harness))
    declared = matcher.declarations(TOOLS)
    before, now = (
        Message("assistant", tool_calls=(ToolCall(name, orjson.dumps(arguments).decode()),))
        for name, arguments in (said, again)
    )
    if matcher.key(before, declared) != matcher.key(now, declared):
        return None
    return " ".join(matcher.tolerances(before, now))


def bash(command: str, **further: Any) -> tuple[str, dict[str, Any]]:
    return "Bash", {"command": command, **further}


def write(content: str) -> tuple[str, dict[str, Any]]:
    return "Write", {"file_path": "/w/a.txt", "content": content}


def edit(new: str, old: str = "a", **further: Any) -> tuple[str, dict[str, Any]]:
    return "Edit", {"file_path": "/w/a.txt", "old_string": old, "new_string": new, **further}


@pytest.mark.parametrize(
    ("said", "again", "named"),
    [
        (edit("b"), edit("b", replace_all=False), "default_arguments"),
        (edit("b", replace_all="false"), edit("b", replace_all=False), "arguments_coerced"),
        (edit("b", replace_all="true"), edit("b", replace_all=True), "arguments_coerced"),
        (edit("b  \n c \t\n"), edit("b\n c\n", replace_all=False), "argument_rewritten default_arguments"),
        (write("one \ntwo\u00a0\n\t\nthree  "), write("one\ntwo\n\nthree"), "argument_rewritten"),
        (write("one \r\ntwo"), write("one\r\ntwo"), "argument_rewritten"),
        (bash("cd /w && make"), bash("make"), "argument_rewritten"),
        (bash("cd /my work && make"), bash("make"), "argument_rewritten"),
        (bash("cd /w && cd /w && make"), bash("cd /w && make"), "argument_rewritten"),
        (bash(r"find . -exec ls {} \\;"), bash(r"find . -exec ls {} \;"), "argument_rewritten"),
        (bash("ls", timeout="5000.0"), bash("ls", timeout=5000), "arguments_coerced"),
    ],
)
def test_claude_code_goes_on_from(said: Any, again: Any, named: str) -> None:
    assert overlooked("claude_code", said, again) == named
    assert overlooked("codex", said, again) is None, "no other harness does that"


@pytest.mark.parametrize(
    ("said", "again"),
    [
        (edit("b"), edit("b", replace_all=True)),
        (edit("b"), edit("b", old="a ")),
        (edit("b"), edit(" b")),
        (write("one\n\ntwo"), write("one\ntwo")),
        (write("a  b"), write("a b")),
        (bash("cd /w && make"), bash("cd /w; make")),
        (bash("cd /w && make"), bash("cd /w || make")),
        (bash("cd /w && make"), bash("make all")),
        (bash("ls; cd /w && make"), bash("ls; make")),
        (bash("make"), bash("make ")),
        (bash("ls", timeout="soon"), bash("ls", timeout=5000)),
    ],
)
def test_claude_code_forks_at(said: Any, again: Any) -> None:
    assert overlooked("claude_code", said, again) is None


def test_opencode_repairs_the_name_of_a_tool_and_replaces_what_it_cannot_repair() -> None:
    assert overlooked("opencode", ("BASH", {"command": "ls"}), ("bash", {"command": "ls"})) == "name_lowered"
    said = ("no_such_tool", {"a": 1})
    assert overlooked("opencode", said, ("invalid", {"tool": "no_such_tool", "error": "unknown"})) is None


def test_opencode_writes_the_date_anew_for_each_call() -> None:
    matcher = Matcher(matching_of("opencode"))
    declared = matcher.declarations(TOOLS)

    def key(role: Any, day: str, rest: str = "  Platform: linux") -> bytes:
        return matcher.key(Message(role, f"<env>\n{rest}\n  Today's date: {day}\n</env>"), declared)

    assert key("system", "Sun Nov 15 2026") == key("system", "Mon Nov 16 2026")
    assert key("user", "Sun Nov 15 2026") != key("user", "Mon Nov 16 2026"), "a user may speak of days"
    assert key("system", "Sun Nov 15 2026") != key("system", "Mon Nov 16 2026", "  Platform: darwin")
    assert key("system", "Sun Nov 15 2026") != key("system", "soon")


def test_pi_reads_a_list_that_was_written_as_a_text() -> None:
    said, again = {"path": "a", "edits": '[{"oldText": "x"}]'}, {"path": "a", "edits": [{"oldText": "x"}]}
    assert overlooked("pi", ("edit", said), ("edit", again)) == "arguments_coerced"
    assert overlooked("pi", ("edit", said), ("edit", {**again, "path": "b"})) is None


@pytest.mark.parametrize("harness", ["codex", "gemini_cli", "qwen_code"])
def test_harnesses_that_send_calls_back_as_they_were_need_no_rule(harness: str) -> None:
    assert matching_of(harness) == Matching()


@pytest.mark.parametrize("harness", SIX)
def test_every_pattern_can_be_read(harness: str) -> None:
    matching = matching_of(harness)
    for pattern in (*matching.volatile_lines, *matching.argument_rewrites):
        assert re.compile(pattern.pattern)


@given(st.lists(st.sampled_from([*"ab \t\r\n\\;&/", "cd /w && ", "cd ", " && "])).map("".join))
def test_rewriting_twice_is_rewriting_once(text: str) -> None:
    """Rewriting the harness's version of a text must give the same as rewriting the text."""
    for rule in MATCHING.argument_rewrites:
        once = re.sub(rule.pattern, rule.replacement, text)
        assert re.sub(rule.pattern, rule.replacement, once) == once


@pytest.mark.parametrize(
    ("name", "argument", "run"),
    [("Write", "content", " "), ("Edit", "new_string", "\t"), ("Bash", "command", "\\")],
)
def test_a_long_run_of_one_character_is_matched_in_one_pass(name: str, argument: str, run: str) -> None:
    """A pattern with quadratic time would not finish here."""
    matcher = Matcher(MATCHING)
    message = Message(
        role="assistant",
        content="",
        tool_calls=(ToolCall(name=name, arguments=orjson.dumps({argument: f"{run * 1_000_000}x"}).decode()),),
    )
    assert matcher.key(message, matcher.declarations(TOOLS))
