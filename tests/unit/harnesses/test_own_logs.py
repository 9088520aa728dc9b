"""What each harness's own log says about its replies: small logs in the form that the harness writes."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polar.harnesses import own_logs
from polar.harnesses.own_logs import OwnLogError
from polar.registry import make
from polar.session.health import own_usage
from polar.types import Spec


def pi(number: int, prompt: int, cached: int, reply: int) -> Iterator[dict[str, Any]]:
    usage = {"input": prompt - cached, "output": reply, "cacheRead": cached, "cacheWrite": 0}
    message = {"role": "assistant", "usage": usage, "responseId": f"chatcmpl-{number}"}
    yield {"type": "message", "id": str(number), "message": message}
    yield {"type": "message", "id": f"t{number}", "message": {"role": "toolResult", "content": []}}


def codex(number: int, prompt: int, cached: int, reply: int) -> Iterator[dict[str, Any]]:
    usage = {"input_tokens": prompt, "cached_input_tokens": cached, "output_tokens": reply}
    payload = {"response_id": f"resp_{number}", "usage": usage}
    yield {"type": "token_usage_record", "payload": payload}
    yield {"type": "event_msg", "payload": {"type": "token_count", "info": {"total_token_usage": usage}}}


def claude_code(number: int, prompt: int, cached: int, reply: int) -> Iterator[dict[str, Any]]:
    """A line for each block of a reply; the first may have the count of the beginning."""
    for counted in (1, reply, reply):
        usage = {"input_tokens": prompt - cached, "cache_read_input_tokens": cached, "output_tokens": counted}
        yield {"type": "assistant", "message": {"id": f"msg_{number}", "usage": usage}}
    yield {"type": "user", "message": {"role": "user", "content": "a result"}}


def gemini_cli(number: int, prompt: int, cached: int, reply: int) -> Iterator[dict[str, Any]]:
    """The same reply again, with the results of its tools."""
    tokens = {"input": prompt, "output": reply - 1, "cached": cached, "thoughts": 1, "tool": 0}
    yield {"id": f"g{number}", "type": "gemini", "tokens": tokens}
    yield {"id": f"g{number}", "type": "gemini", "tokens": tokens, "toolCalls": [{"status": "success"}]}
    yield {"$set": {"lastUpdated": "2026-11-16T13:43:45Z"}}


def qwen_code(number: int, prompt: int, cached: int, reply: int) -> Iterator[dict[str, Any]]:
    event = {
        "event.name": "qwen-code.api_response",
        "response_id": f"chatcmpl-{number}",
        "input_token_count": prompt,
        "output_token_count": reply,
        "cached_content_token_count": cached,
        "total_token_count": prompt + reply,
    }
    yield {"type": "system", "systemPayload": {"uiEvent": event}}
    yield {"type": "system", "systemPayload": {"uiEvent": {"event.name": "qwen-code.tool_call"}}}


FILES = {
    "pi": (".pi/agent/sessions/--work--/one.jsonl", pi),
    "codex": (".codex/sessions/2026/11/16/rollout-1.jsonl", codex),
    "claude_code": (".claude/projects/-work/one.jsonl", claude_code),
    "gemini_cli": (".gemini/tmp/work/chats/session-1.jsonl", gemini_cli),
    "qwen_code": (".qwen/projects/-work/chats/one.jsonl", qwen_code),
}
REPLIES = ((100, 0, 7), (120, 107, 3))


def write(home: Path, harness: str, lines: list[dict[str, Any]], tail: str = "") -> None:
    path = home / FILES[harness][0]
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines) + tail)


def lines_of(harness: str) -> list[dict[str, Any]]:
    return [line for number, reply in enumerate(REPLIES) for line in FILES[harness][1](number, *reply)]


def counts(harness: str, home: Path) -> list[tuple[int, int]] | None:
    usage = own_usage(Spec(name=harness), home)
    return None if usage is None else [(each.prompt_tokens, each.completion_tokens) for each in usage.replies]


@pytest.mark.parametrize("harness", FILES)
def test_each_reply_is_counted_once_with_its_whole_prompt(harness: str, tmp_path: Path) -> None:
    write(tmp_path, harness, lines_of(harness))
    assert counts(harness, tmp_path) == [(100, 7), (120, 3)]


@pytest.mark.parametrize("harness", FILES)
def test_a_log_that_breaks_off_ends_there(harness: str, tmp_path: Path) -> None:
    write(tmp_path, harness, lines_of(harness), tail='{"type": "assis')
    assert counts(harness, tmp_path) == [(100, 7), (120, 3)]


@pytest.mark.parametrize("harness", FILES)
@pytest.mark.parametrize("tail", ["no json\n", '{"x": ' + "[" * 2000 + "]" * 2000 + "}\n"])
def test_a_log_with_something_else_in_it_is_an_error(harness: str, tail: str, tmp_path: Path) -> None:
    write(tmp_path, harness, lines_of(harness), tail)
    with pytest.raises(OwnLogError, match="line"):
        counts(harness, tmp_path)


@pytest.mark.parametrize("harness", [*FILES, "opencode", "shell"])
def test_without_a_log_there_are_no_counts(harness: str, tmp_path: Path) -> None:
    spec = Spec(name=harness, options={"command": "true"} if harness == "shell" else {})
    assert own_usage(spec, tmp_path) is None
    assert own_usage(spec, tmp_path / "nothing") is None


def test_numbers_that_are_none_are_an_error(tmp_path: Path) -> None:
    message = {"role": "assistant", "usage": {"input": -5, "output": 1}}
    write(tmp_path, "pi", [{"type": "message", "message": message}])
    with pytest.raises(OwnLogError, match="-5"):
        counts("pi", tmp_path)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere", "pi", lines_of("pi"))
    folder = tmp_path / "home/.pi/agent/sessions"
    folder.mkdir(parents=True)
    (folder / "one.jsonl").symlink_to(tmp_path / "elsewhere" / FILES["pi"][0])
    assert counts("pi", tmp_path / "home") is None


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / ".local/share/opencode/opencode.db"
    path.parent.mkdir(parents=True)
    return path


def fill(database: Path, *statements: tuple[str, tuple[Any, ...]]) -> sqlite3.Connection:
    connection = sqlite3.connect(database, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    for statement, values in statements:
        connection.execute(statement, values)
    return connection


def row(number: int, prompt: int, cached: int, reply: int) -> tuple[str, tuple[Any, ...]]:
    tokens = {"input": prompt - cached, "output": reply - 1, "reasoning": 1, "cache": {"read": cached, "write": 0}}
    data = json.dumps({"role": "assistant", "tokens": tokens})
    return "INSERT INTO message VALUES (?, ?)", (f"msg_{number}", data)


TABLE = ("CREATE TABLE message (id TEXT PRIMARY KEY, data TEXT)", ())


def test_opencode_keeps_its_replies_in_a_database(database: Path, tmp_path: Path) -> None:
    asked = ("INSERT INTO message VALUES ('u', '{\"role\": \"user\"}')", ())
    writer = fill(database, TABLE, asked, *(row(number, *reply) for number, reply in enumerate(REPLIES)))
    assert counts("opencode", tmp_path) == [(100, 7), (120, 3)], "also what is only in its write-ahead log"
    writer.close()
    before = {path.name: path.read_bytes() for path in database.parent.iterdir()}
    assert counts("opencode", tmp_path) == [(100, 7), (120, 3)]
    assert {path.name: path.read_bytes() for path in database.parent.iterdir()} == before


def test_a_database_that_is_none_is_an_error(database: Path, tmp_path: Path) -> None:
    database.write_bytes(b"no database" * 100)
    with pytest.raises(OwnLogError, match=r"opencode\.db"):
        counts("opencode", tmp_path)


def test_a_query_without_end_is_broken_off(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_logs, "MOST_STEPS", 100_000)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS id, '{}' AS data FROM n"
    fill(database, (f"CREATE VIEW message AS {endless}", ())).close()
    with pytest.raises(OwnLogError, match="interrupted"):
        counts("opencode", tmp_path)


def test_all_six_have_one() -> None:
    assert all(hasattr(make("harness", Spec(name=name)), "usage_of") for name in [*FILES, "opencode"])
