"""From bytes of a node to a checked result, and from a blob to a trajectory."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polar.server.errors import Invalid, NotAcceptable, NotFound
from polar.server.records.uploads import checked, trajectory_json, trajectory_msgpack
from polar.types import (
    Call,
    CallTimes,
    Message,
    SessionResult,
    SessionUpload,
    Span,
    Stage,
    Trace,
    Trajectory,
    logprobs,
    loss_mask,
    token_ids,
)
from polar.types.codec import decode, encode
from polar.types.packed import unpack_upload


def result_of(**fields: Any) -> SessionResult:
    values: dict[str, Any] = {"session_id": "add-0", "task_id": "add", "index": 0, "attempt": 1}
    return SessionResult.model_validate({**values, "stage": Stage.COMPLETED, **fields})


def trajectory_of(session_id: str = "add-0", trace_of: str = "add-0", **fields: Any) -> Trajectory:
    trace = Trace(
        session_id=trace_of,
        prompt_ids=token_ids([1]),
        response_ids=token_ids([2, 3]),
        loss_mask=loss_mask([1, 0]),
        logprobs=logprobs([-0.25, 0.0]),
        spans=(Span("c1", 0, 1, "7"),),
    )
    return Trajectory(session_id=session_id, builder="b", traces=(trace,), **fields)


def call_of(session_id: str) -> Call:
    return Call(
        call_id="c1",
        session_id=session_id,
        parent_id=None,
        continues=False,
        new_prompt_ids=token_ids([1]),
        completion_ids=token_ids([2]),
        logprobs=logprobs([float("nan")]),
        prompt_digest=b"",
        prompt_tokens=1,
        finish_reason="stop",
        new_messages=(),
        response=Message(role="assistant"),
        tools=(),
        new_items=(),
        dialect="openai_chat",
        kind="agent",
        sampling={},
        engine="scripted",
        logprob_mode="raw",
        times=CallTimes(0.0, 0.0, 0.0),
    )


def blob(result: SessionResult | bytes, trajectory: Trajectory | None = None, *calls: Call) -> bytes:
    body = result if isinstance(result, bytes) else result.model_dump_json().encode()
    return encode(SessionUpload(result=body, trajectory=trajectory, calls=calls))


def test_an_upload_is_stored_packed_and_says_the_same() -> None:
    sent = blob(result_of(), trajectory_of(), call_of("add-0"))
    upload = checked(sent, "add-0", 1)
    assert upload.blob != sent
    assert encode(unpack_upload(upload.blob)) == sent
    assert upload.result == result_of()


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b"", "not a SessionUpload"),
        (b"\xc1", "not a SessionUpload"),
        (msgspec.msgpack.encode({"result": b"{}"}), "not a SessionUpload"),
        (msgspec.msgpack.encode({"result": b"{}", "trajectory": None, "calls": [1]}), "not a SessionUpload"),
        (msgspec.msgpack.encode({"result": msgspec.msgpack.Ext(99, b"x"), "trajectory": None}), "not a Session"),
        (blob(b"{"), "result: .*JSON"),
        (blob(b'{"session_id": "add-0"}'), "result: task_id"),
        (blob(result_of(session_id="add-1")), "the path does not match"),
        (blob(result_of(attempt=2)), "attempt 2"),
        (blob(result_of(stage=Stage.POSTRUN)), "POSTRUN is not final"),
        (blob(result_of(), trajectory_of("other-0", "other-0")), "'other-0'"),
        (blob(result_of(), trajectory_of("add-0", "other-0")), "'other-0'"),
        (blob(result_of(), None, call_of("add-0"), call_of("other-0")), "'other-0'"),
    ],
)
def test_a_wrong_upload_is_refused_with_its_reason(sent: bytes, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        checked(sent, "add-0", 1)


@pytest.mark.parametrize("code", [1, 2])
def test_a_token_array_that_is_cut_is_refused(code: int) -> None:
    whole: dict[str, Any] = msgspec.msgpack.decode(blob(result_of(), trajectory_of()))
    whole["trajectory"]["traces"][0]["prompt_ids"] = msgspec.msgpack.Ext(code, b"\1\2\3")
    with pytest.raises(Invalid):
        checked(msgspec.msgpack.encode(whole), "add-0", 1)


def test_a_trace_that_would_lie_is_refused() -> None:
    whole: dict[str, Any] = msgspec.msgpack.decode(blob(result_of(), trajectory_of()))
    whole["trajectory"]["traces"][0]["logprobs"] = msgspec.msgpack.Ext(2, b"\0\0\xc0\x7f" * 2)
    with pytest.raises(Invalid, match="logprob nan"):
        checked(msgspec.msgpack.encode(whole), "add-0", 1)


@settings(deadline=None)
@given(noise=st.binary(max_size=200))
def test_noise_is_refused_and_nothing_else_happens(noise: bytes) -> None:
    with pytest.raises(Invalid):
        checked(noise, "add-0", 1)


@settings(deadline=None)
@given(position=st.integers(0, 10_000), value=st.integers(0, 255))
def test_one_wrong_byte_is_refused_or_harmless(position: int, value: int) -> None:
    sent = bytearray(blob(result_of(), trajectory_of()))
    sent[position % len(sent)] = value
    try:
        upload = checked(bytes(sent), "add-0", 1)
    except Invalid:
        return
    assert upload.result.session_id == "add-0"
    json.dumps(upload.result.model_dump(mode="json"), allow_nan=False)


def test_numbers_json_cannot_say_are_left_out() -> None:
    body = result_of(score={"reward": 1.0, "metrics": {"a": 1.0, "b": 2.0}}, stage_s={"RUNNING": 3.0, "INIT": 4.0})
    text = body.model_dump_json().replace('"b":2.0', '"b":Infinity').replace('"INIT":4.0', '"INIT":NaN')
    text = text.replace('"merge_rate":null', '"merge_rate":NaN')
    result = checked(blob(text.encode()), "add-0", 1).result
    assert result.score is not None
    assert (result.score.metrics, result.stage_s) == ({"a": 1.0}, {"RUNNING": 3.0})
    assert result.score.reasons == ("metric b was not a finite number",)
    assert result.statistics.merge_rate is None


def test_a_trajectory_comes_out_in_both_forms() -> None:
    sent = blob(result_of(), trajectory_of())
    assert encode(decode(trajectory_msgpack(sent, "add-0"), Trajectory)) == encode(trajectory_of())
    plain = json.loads(trajectory_json(sent, "add-0"))
    assert plain["traces"][0]["prompt_ids"] == [1]
    assert plain["traces"][0]["loss_mask"] == [1, 0]
    assert plain["traces"][0]["spans"][0]["policy_version"] == "7"


def test_a_session_without_one_says_so() -> None:
    with pytest.raises(NotFound, match="no trajectory"):
        trajectory_msgpack(blob(result_of()), "add-0")


def test_what_json_cannot_say_is_refused_in_json() -> None:
    sent = blob(result_of(), trajectory_of(statistics={"odd": {(1, 2): 3}}))
    with pytest.raises(NotAcceptable, match="msgpack"):
        trajectory_json(sent, "add-0")
