"""Warnings and errors wait in the buffer until they have arrived."""

from __future__ import annotations

import logging

import pytest

from polar import log_buffer
from polar.log_buffer import LogBuffer

LOGGER = logging.getLogger("polar.test_log_buffer")


def messages(buffer: LogBuffer, count: int = 100) -> list[str]:
    return [line.message for line in buffer.pending(count)[1]]


def test_warnings_and_errors_are_kept_and_nothing_below() -> None:
    buffer = LogBuffer()
    with buffer.listening():
        LOGGER.info("all is well")
        LOGGER.warning("the disk is %d %% full", 90)
        LOGGER.error("it broke", extra={"session_id": "t-0"})
    LOGGER.error("after the end")
    _, (warning, error) = buffer.pending(100)
    assert (warning.level, warning.message, warning.session_id) == ("warning", "the disk is 90 % full", None)
    assert (error.level, error.message, error.session_id) == ("error", "it broke", "t-0")


def test_an_error_is_named_in_one_line() -> None:
    buffer = LogBuffer()
    with buffer.listening():
        try:
            raise ValueError("no such thing")
        except ValueError:
            LOGGER.exception("session %s failed", "t-0")
    assert messages(buffer) == ["session t-0 failed: ValueError: no such thing"]


def test_lines_stay_until_they_are_delivered() -> None:
    buffer = LogBuffer()
    with buffer.listening():
        for name in "abc":
            LOGGER.warning(name)
    assert buffer.pending(2)[0] == 0 and messages(buffer, 2) == ["a", "b"]
    assert messages(buffer, 2) == ["a", "b"], "the heartbeat got no answer"
    buffer.delivered(2)
    assert buffer.pending(2)[0] == 2 and messages(buffer, 2) == ["c"]
    buffer.delivered(2)  # a second answer
    assert messages(buffer) == ["c"]


def test_the_oldest_are_dropped_and_the_numbers_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_buffer, "MAX_PENDING", 2)
    buffer = LogBuffer()
    with buffer.listening():
        for name in "abcd":
            LOGGER.warning(name)
    assert buffer.pending(5)[0] == 2 and messages(buffer) == ["c", "d"]


def test_only_wanted_loggers_are_heard() -> None:
    buffer = LogBuffer(lambda record: not record.name.startswith("polar.test"))
    with buffer.listening():
        LOGGER.warning("mine")
        logging.getLogger("elsewhere").warning("yours")
    assert messages(buffer) == ["yours"]


def test_whatever_is_logged_can_be_sent() -> None:
    buffer = LogBuffer()
    text = "lone \ud800, nul \0, %s"
    record = logging.LogRecord("polar", logging.WARNING, __file__, 1, text, ("long " * 1000,), None)
    record.session_id = "x" * 500
    buffer.handle(record)  # not logged: pytest could not send what it captures
    _, [line] = buffer.pending(1)
    assert len(line.message) == 2000 and line.message.startswith("lone ?, nul \0")
    assert line.model_dump_json()


def test_a_message_that_cannot_be_formatted_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    buffer = LogBuffer()
    record = logging.LogRecord("polar", logging.WARNING, __file__, 1, "%d lines", ("many",), None)
    buffer.handle(record)
    assert messages(buffer) == []
