"""What the scripted model of the fidelity table says: a conversation of five turns, in the tools of each harness.

It holds what makes token identity break: thinking, two tool calls in one turn, arguments whose JSON is spelled as
no serialiser would (key order, white space, escapes beside raw characters, `1.0` for a whole number, nested and
empty values), text outside of ASCII, characters that span tokens, a control token spelled in a tool's output.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from polar.testing import ScriptedReply
from polar.tokens.base import Renderer
from polar.types import TokenIds

INSTRUCTION = "Schreibe »größer« in die Datei answer.txt und prüfe, was in ihr steht. 写完请报告 ✅"
ANSWER = "größer 你好 😀"
"""What the tools have written in the end."""
EXPECTED = "^größer 你好 😀$"
OUTPUTS = ("Ä\tö", "erstens-❤️", "drittens 🏳️‍🌈", "<|im_end|>", "café 🚀", ANSWER)
"""What its tools print, all of which the model reads."""
TITLE = "Größer 📝"
"""Said to whoever asks without tools."""
TAGS = re.compile("(</?think>|</?tool_call>)")


class Tools(NamedTuple):
    """How a harness calls its shell, and a tool of it whose arguments are nested."""

    shell: str
    command: str
    """The argument that takes the command."""
    further: dict[str, Any]
    """Other arguments of the shell, spelled before the command."""
    nested: tuple[str, dict[str, Any]]
    """May be refused by the harness: its answer is read all the same."""


TOOLS = {
    "codex": Tools(
        "exec_command",
        "cmd",
        {"yield_time_ms": 1000, "tty": False},
        ("multi_agent_v1__wait_agent", {"timeout_ms": 1000.0, "targets": ["größer", ""]}),
    ),
    "claude_code": Tools(
        "Bash",
        "command",
        {"timeout": 60000.0, "description": "größer"},
        ("ReportFindings", {"level": "low", "findings": []}),
    ),
    "gemini_cli": Tools(
        "run_shell_command",
        "command",
        {"is_background": False, "description": "größer"},
        (
            "list_directory",
            {"ignore": [], "file_filtering_options": {"respect_git_ignore": False}, "dir_path": "."},
        ),
    ),
    "qwen_code": Tools(
        "run_shell_command",
        "command",
        {"timeout": 60000.0, "is_background": False, "description": "größer"},
        ("tool_call", {"arguments": {"é": {"leer": {}, "eins": 1.0}}, "name": "größer"}),
    ),
    "opencode": Tools(
        "bash",
        "command",
        {"timeout": 60000.0},
        ("todowrite", {"todos": [{"status": "pending", "content": "größer 😀", "priority": "high"}]}),
    ),
    "pi": Tools(
        "bash",
        "command",
        {"timeout": 60.0},
        ("edit", {"edits": [{"newText": "grösser", "oldText": ""}], "path": "größer.txt"}),
    ),
}


class Step(NamedTuple):
    """One turn of the script."""

    mark: str
    """Stands in this turn and in nothing before it."""
    thought: str
    said: str
    calls: tuple[str, ...] = ()


def steps(harness: str) -> list[Step]:
    tools = TOOLS[harness]

    def shell(command: str, spelled: Callable[[dict[str, Any]], str] = json.dumps, **further: Any) -> str:
        return f'{{"name": "{tools.shell}", "arguments": {spelled({**further, tools.command: command})}}}'

    name, nested = tools.nested
    return [
        Step(
            "erstens",
            "Zuerst schreiben.\n\nTwo files at once: naïve, but 快い 👩‍👩‍👧‍👦.",
            "Ich schreibe erstens beides. 🎉",
            (
                shell("printf 'größer 你好 ' > answer.txt; echo 'Ä\tö \\ \"ü\"'", raw),
                shell("printf 'café 🚀\\n' > other.txt && echo erstens-❤️", escaped),
            ),
        ),
        Step(
            "zweitens",
            "Das Zweite hat geschachtelte Werte: {} und [].",
            "zweitens",
            (f'{{"arguments" : {escaped(nested)} , "name":"{name}"}}',),
        ),
        Step(
            "drittens",
            "",
            "",
            (
                shell(
                    "printf '😀' >> answer.txt; echo drittens 🏳️‍🌈; printf '<|im_%s|>' end", raw, **tools.further
                ),
                shell("cat other.txt", spaced),
            ),
        ),
        Step(
            "viertens",
            "Nachsehen, ob »größer« da steht … 見る",
            "viertens: nachsehen\n\n",
            (shell("cat answer.txt; echo; : 'viertens é'", escaped, **tools.further),),
        ),
        Step("fünftens", "Fertig. ✓", f"fünftens: `answer.txt` sagt »{ANSWER}«, 完了 ✅👍🏽."),
    ]


def raw(arguments: dict[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))


def escaped(arguments: dict[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=True, separators=(" ,  ", " :"))


def spaced(arguments: dict[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False, indent=3)


def script_of(harness: str, renderer: Renderer, *, thinks: bool) -> Callable[[int, TokenIds], ScriptedReply]:
    """The first step whose mark the prompt does not hold: so a harness that asks twice is told the same."""
    conversation = steps(harness)

    def reply(_: int, prompt_ids: TokenIds) -> ScriptedReply:
        prompt = renderer.decode(prompt_ids)
        if not re.search(rf'\n{TOOLS[harness].shell}\(|"name": "{TOOLS[harness].shell}"', prompt):
            return ScriptedReply(ids=(*renderer.encode(TITLE), renderer.stop_ids[0]))
        step = next((step for step in conversation if step.mark not in prompt), conversation[-1])
        return ScriptedReply(ids=(*_spelled(renderer, _text(step, thinks=thinks)), renderer.stop_ids[0]))

    return reply


def _text(step: Step, *, thinks: bool) -> str:
    blocks = [f"<tool_call>\n{call}\n</tool_call>" for call in step.calls]
    said = "\n".join([*([step.said] if step.said else []), *blocks])
    return f"<think>\n{step.thought}\n</think>\n\n{said}" if thinks else said


def _spelled(renderer: Renderer, text: str) -> Sequence[int]:
    """Every other word one character at a time, as no tokenizer would; tags as they are."""
    ids: list[int] = []
    for at, part in enumerate(TAGS.split(text)):
        words = [part] if at % 2 else re.split(r"(?<=\s)(?=\S)", part)
        for number, word in enumerate(words):
            pieces = [word] if at % 2 or number % 2 else word
            ids += [token_id for piece in pieces for token_id in renderer.encode(piece)]
    return ids
