"""Renderers and engines that call `sys.exit`, or fail unexpectedly: a failed call, one line in the log."""

from __future__ import annotations

import logging
import sys
from typing import Any

import pytest
from playbook import OpenGateway

HELLO = [{"role": "user", "content": "Hello."}]


def leave(*_: Any, **__: Any) -> Any:
    sys.exit(7)


@pytest.mark.parametrize("text", ["Hello.", "Hello. " * 20_000], ids=["short", "long, in a thread"])
async def test_a_renderer_that_exits_fails_the_call_and_not_the_node(
    open_gateway: OpenGateway, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    gateway = await open_gateway(["Fine."])
    slot = await gateway.open()
    with monkeypatch.context() as patch:
        patch.setattr(type(gateway.renderer), "render", leave)
        status, body, _ = await gateway.post(slot, {"messages": [{"role": "user", "content": text}]})
    assert (status, body["error"]["code"]) == (400, "not_renderable")
    status, body, _ = await gateway.post(slot, {"messages": HELLO})
    assert status == 200 and body["choices"][0]["message"]["content"] == "Fine."


async def test_a_reader_that_exits_fails_the_call(
    open_gateway: OpenGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = await open_gateway(["Fine."])
    slot = await gateway.open()
    monkeypatch.setattr(gateway.renderer, "reader", leave)
    assert (await gateway.post(slot, {"messages": HELLO}))[0] == 500
    (failure,) = gateway.slots.outcome("s1").failures
    assert failure and (failure.where, failure.type) == ("renderer", "SystemExit")


async def test_an_engine_that_exits_has_failed(open_gateway: OpenGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = await open_gateway(["Fine."])
    slot = await gateway.open()
    monkeypatch.setattr(gateway.engine, "generate", leave)
    assert (await gateway.post(slot, {"messages": HELLO}))[0] == 502
    (failure,) = gateway.slots.outcome("s1").failures
    assert failure and (failure.where, failure.type) == ("engine", "SystemExit")


async def test_an_unexpected_error_is_logged_once_with_traceback_and_session(
    open_gateway: OpenGateway, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    gateway = await open_gateway(["Fine."])
    slot = await gateway.open()

    async def broken(*_: Any) -> None:
        raise KeyError("a defect")

    monkeypatch.setattr(gateway.calls_served._mode, "attach", broken)  # pyright: ignore[reportPrivateUsage]
    assert (await gateway.post(slot, {"messages": HELLO}))[0] == 500
    (record,) = [record for record in caplog.records if record.exc_info]
    assert record.exc_info and record.exc_info[0] is KeyError
    assert "session s1" in record.getMessage() and record.session_id == "s1"  # type: ignore[attr-defined]
