"""What the commands that serve write: levels, JSON, and options that reach their children."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from polar.cli.logs import LogLevel, LogOptions
from polar.cli.service.server import ServerChild
from polar.cluster.gateway_process import GatewayProcess


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    root, own = logging.getLogger(), logging.getLogger("polar")
    level, own_level = root.level, own.level
    yield
    root.setLevel(level)
    own.setLevel(own_level)


def written(options: LogOptions, monkeypatch: pytest.MonkeyPatch) -> str:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # as in a process of its own
    options.apply()
    log = logging.getLogger("polar.node")
    log.debug("a detail")
    log.info("leased %d", 3)
    logging.getLogger("some.library").info("chatter")
    try:
        raise ValueError("a defect")
    except ValueError:
        log.exception("session t-0: evaluator failed", extra={"session_id": "t-0"})
    return stream.getvalue()


def test_lines_have_the_time_and_the_part(monkeypatch: pytest.MonkeyPatch) -> None:
    text = written(LogOptions(), monkeypatch)
    assert " polar.node: leased 3\n" in text and "a detail" not in text and "chatter" not in text
    assert text.count("session t-0: evaluator failed") == 1 and "ValueError: a defect" in text


def test_json_has_an_object_for_each_record(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = map(json.loads, written(LogOptions(json=True), monkeypatch).splitlines())
    assert (first["level"], first["logger"], first["message"]) == ("info", "polar.node", "leased 3")
    assert (second["level"], second["session_id"]) == ("error", "t-0")
    assert second["traceback"].endswith("ValueError: a defect")


@pytest.mark.parametrize(("level", "lines"), [("debug", 3), ("info", 2), ("warning", 1), ("error", 1)])
def test_a_level_is_the_least_that_is_written(monkeypatch: pytest.MonkeyPatch, level: str, lines: int) -> None:
    assert len(written(LogOptions(LogLevel(level), json=True), monkeypatch).splitlines()) == lines


def test_children_write_as_their_parent_was_told() -> None:
    options = LogOptions(LogLevel.ERROR, json=True)
    node = GatewayProcess("gateway 1", "http://here", Path("runs"), None, log_options=tuple(options.arguments()))
    server = ServerChild(0, None, None, None, Path("address"), None, options)
    for arguments in (node.arguments(), server.arguments()):
        assert arguments[arguments.index("--log-level") :][:3] == ["--log-level", "error", "--log-json"]
