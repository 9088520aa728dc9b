"""The first of equal traces stays: equal in tokens, or equal in words."""

from __future__ import annotations

import msgspec

from exported_sessions import LAST, PROMPT, a_call, a_session, two_turns
from polar.data.export.plan import ExportedGroup, ExportedSession, ExportPlan
from polar.data.export.selection import LeftOut, choose
from polar.runs.generate.duplicates import Duplicates
from polar.types import Message, ToolCall


def repeated(*sessions: ExportedSession) -> tuple[list[str], dict[str, int]]:
    """Ids of the sessions whose first trace repeats another, and the reasons."""
    found = Duplicates()
    for session in sessions:
        found.add(session)
    assert all(number == 0 for _, number in found.repeated)
    every = {session.result.session_id for session in sessions}
    assert found.fresh == every - {session_id for session_id, _ in found.repeated}
    return sorted(session_id for session_id, _ in found.repeated), dict(found.reasons)


def said(name: str, text: str, ids: list[int]) -> ExportedSession:
    call = a_call(name, PROMPT, PROMPT, ids, response=Message(role="assistant", content=text))
    call = msgspec.structs.replace(call, new_messages=(Message(role="user", content="Do it."),))
    return a_session(f"{name}-0", 1.0, [call])


def test_equal_tokens_go_out_once() -> None:
    assert repeated(a_session("a-0", 1.0), a_session("a-1", 1.0), a_session("b-0", 1.0)) == (
        ["a-1", "b-0"],
        {"same_tokens": 2},
    )


def test_equal_words_in_other_tokens_go_out_once() -> None:
    assert repeated(said("a", "hello", [10, 11]), said("b", "hello", [12])) == (["b-0"], {"same_text": 1})


def test_ids_of_tool_calls_make_no_difference() -> None:
    def with_id(name: str, call_id: str, last: list[int]) -> ExportedSession:
        first, second = two_turns(last)
        asked = (ToolCall(name="bash", arguments='{"command": "ls"}', call_id=call_id),)
        first = msgspec.structs.replace(first, response=Message(role="assistant", tool_calls=asked))
        told = Message(role="tool", content="a.txt", tool_call_id=call_id)
        echo = Message(role="assistant", tool_calls=asked)
        return a_session(name, 1.0, [first, msgspec.structs.replace(second, new_messages=(echo, told))])

    assert repeated(with_id("a-0", "c1", LAST), with_id("a-1", "c2", [15])) == (["a-1"], {"same_text": 1})


def test_other_words_stay() -> None:
    assert repeated(said("a", "hello", [10, 11]), said("b", "good day", [12])) == ([], {})


def test_what_repeats_is_left_out_of_an_export_and_counted() -> None:
    session = a_session("a-1", 1.0)
    left_out = LeftOut()
    plan = ExportPlan(to="tokens", repeated=frozenset({("a-1", 0)}))
    assert choose(ExportedGroup("a", (session,)), plan, left_out) == []
    assert left_out.traces == {"repeated": 1}
