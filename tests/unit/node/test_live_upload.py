"""What a node sends of a session that runs: bounded, and only when it changed."""

from __future__ import annotations

import pytest

from polar.node import live_upload
from polar.node.live_upload import LiveUploads, live_blob
from polar.node.uplink import ServerAway, Uplink
from polar.types import Call, CallTimes, Message, SessionFile, SessionUpload, logprobs, token_ids
from polar.types.codec import decode
from waiting import until


def a_call(number: int, tokens: int = 1) -> Call:
    return Call(
        call_id=f"t-0.1.{number}",
        session_id="t-0",
        parent_id=None,
        continues=False,
        new_prompt_ids=token_ids(),
        completion_ids=token_ids([1] * tokens),
        logprobs=logprobs([-0.5] * tokens),
        prompt_digest=b"",
        prompt_tokens=0,
        finish_reason="stop",
        new_messages=(),
        response=Message("assistant", "hello"),
        tools=None,
        new_items=(),
        dialect="openai_chat",
        kind="agent",
        sampling={},
        engine="scripted",
        logprob_mode="raw",
        times=CallTimes(0.0, 0.0, 0.0),
    )


class FakeUplink(Uplink):
    def __init__(self) -> None:
        super().__init__("http://nowhere", "token")
        self.sent: list[tuple[str, int, SessionUpload]] = []
        self.tried = 0
        self.away = False

    async def upload_live(self, session_id: str, attempt: int, blob: bytes) -> None:
        self.tried += 1
        if self.away:
            raise ServerAway("no answer")
        self.sent.append((session_id, attempt, decode(blob, SessionUpload)))


def test_of_a_log_there_is_the_end() -> None:
    log = b"a" * 10 + b"b" * live_upload.TAIL_BYTES
    [file] = decode(live_blob([], [SessionFile("logs/x", len(log), log)]), SessionUpload).files
    assert file.content == b"b" * live_upload.TAIL_BYTES and file.size_bytes == len(log)


def test_of_too_many_calls_there_are_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call is understood by those before it."""
    monkeypatch.setattr(live_upload, "MAX_BYTES", 20_000)
    blob = live_blob([a_call(number, 1000) for number in range(20)], [])
    calls = decode(blob, SessionUpload).calls
    assert len(blob) <= 20_000
    assert [call.call_id for call in calls] == [f"t-0.1.{number}" for number in range(len(calls))] and calls


async def test_a_session_is_sent_again_only_when_it_changed() -> None:
    uplink, calls, reads = FakeUplink(), [a_call(1)], 0

    async def calls_of(_: str) -> list[Call]:
        nonlocal reads
        reads += 1
        return calls

    live = LiveUploads(uplink, calls_of, lambda _: ())
    live.send({"t-0": 1})
    await until(lambda: len(uplink.sent) == 1 and not live.busy)
    live.send({"t-0": 1})
    await until(lambda: reads == 2 and not live.busy)
    assert len(uplink.sent) == 1
    calls.append(a_call(2))
    live.send({"t-0": 1})
    await until(lambda: len(uplink.sent) == 2 and not live.busy)
    assert [len(upload.calls) for _, _, upload in uplink.sent] == [1, 2]
    live.send({})
    live.send({"t-0": 1})  # watched again: the server has dropped what it had
    await until(lambda: len(uplink.sent) == 3 and not live.busy)
    await live.close()


async def test_a_server_that_is_away_gets_it_later() -> None:
    uplink = FakeUplink()
    uplink.away = True

    async def calls_of(_: str) -> list[Call]:
        return [a_call(1)]

    live = LiveUploads(uplink, calls_of, lambda _: ())
    live.send({"t-0": 1})
    await until(lambda: uplink.tried == 1 and not live.busy)
    uplink.away = False
    live.send({"t-0": 1})
    await until(lambda: uplink.sent)
    await live.close()
