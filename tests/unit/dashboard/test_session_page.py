"""The values of a session's page: every token once, with what became of it, and where calls part."""

from __future__ import annotations

from array import array
from pathlib import Path

from polar.dashboard.material import material_of_run
from polar.dashboard.page import PageCall, SessionPage, TokenKind
from polar.dashboard.session_page import page_of
from polar.store.paths import RunPaths
from polar.store.trajectories import read_trajectory, write_trajectory
from polar.types import EndpointUsage, Message, TokenIds, Trajectory
from viewed_session import Conversation, forked, store


def spelled(ids: TokenIds) -> str:
    return "".join(map(chr, ids))


def traces_of(run: RunPaths) -> Trajectory:
    return read_trajectory(run.session("add-0").traces)


async def a_page(tmp_path: Path, talk: Conversation | None = None) -> tuple[SessionPage, RunPaths]:
    run = await store(tmp_path, talk or forked())
    return page_of(await material_of_run(run, "add-0"), spelled), run


def text_of(page: SessionPage, start: int, size: int) -> str:
    words = array("I", page.tokens.words)
    return "".join(page.tokens.vocabulary[word] for word in words[start : start + size])


def own_prompt(page: SessionPage, call: PageCall) -> str:
    return text_of(page, call.start, call.prompt)


async def test_kinds_count_what_the_traces_hold(tmp_path: Path) -> None:
    page, run = await a_page(tmp_path)
    trajectory = traces_of(run)
    kinds = page.tokens.kinds
    assert kinds.count(TokenKind.TRAINED) == sum(trace.trainable_tokens for trace in trajectory.traces) > 0
    assert kinds.count(TokenKind.DROPPED) == sum(drop.length for drop in trajectory.dropped) > 0
    assert kinds.count(TokenKind.UNPLACED) == 0
    assert len(page.tokens.words) == 4 * len(kinds)


async def test_a_call_that_continues_adds_only_what_is_new(tmp_path: Path) -> None:
    page, _ = await a_page(tmp_path)
    first, second = page.calls[:2]
    assert (first.base, first.common, own_prompt(page, first)) == (None, 0, "<system>\n<add 2 and 2>")
    assert (second.base, second.common, own_prompt(page, second)) == (1, first.prompt_tokens + 8, "<two>")
    assert text_of(page, second.start + second.prompt, second.sampled) == "four"


async def test_a_rewritten_history_shows_both_sides_and_stores_the_common_part_once(tmp_path: Path) -> None:
    page, _ = await a_page(tmp_path)
    rewritten = page.calls[3]
    assert rewritten.fork is not None
    assert rewritten.fork.reason == "history_edited"
    assert (rewritten.base, rewritten.common) == (2, len("<system>\n<add "))
    assert (rewritten.fork.other, rewritten.fork.last_common) == (2, None), "not even call 1 is in common"
    assert rewritten.fork.other_text.startswith("2 and 2>I look.")
    assert rewritten.fork.own_text == own_prompt(page, rewritten) == "3 and 2>"


async def test_two_calls_that_continue_one_name_each_other(tmp_path: Path) -> None:
    page, _ = await a_page(tmp_path)
    side = page.calls[2]
    assert side.fork is not None
    assert (side.fork.reason, side.fork.last_common, side.fork.other) == ("fork", 1, 2)
    assert (side.fork.other_text, side.fork.own_text) == ("two>", "a subagent>")
    assert page.calls[0].chain == page.calls[1].chain != side.chain


async def test_dropped_tokens_have_their_reasons(tmp_path: Path) -> None:
    page, _ = await a_page(tmp_path)
    assert page.calls[0].drops == [(1, 1, "missing_logprob")]
    [(start, length, reason)] = page.calls[4].drops
    assert (start, length, reason) == (0, 4, "not_received")
    assert "not received by the harness" in page.calls[4].notes


async def test_the_echo_of_a_reply_is_compared_with_what_was_sampled(tmp_path: Path) -> None:
    page, _ = await a_page(tmp_path)
    assert [message.echo for message in page.calls[1].messages] == ["same", ""]


async def test_the_light_is_the_audit_s(tmp_path: Path) -> None:
    page, run = await a_page(tmp_path)
    assert (page.proof.light, page.proof.findings) == ("exact", [])
    trajectory = traces_of(run)
    trajectory.traces[0].loss_mask[1] = 1  # the token without a logprob
    write_trajectory(run.session("add-0").traces, trajectory)
    page = page_of(await material_of_run(run, "add-0"), spelled)
    assert page.proof.light == "wrong"
    assert any("logprob" in finding or "mask" in finding for finding in page.proof.findings)


async def test_a_session_without_traces_still_has_a_page(tmp_path: Path) -> None:
    run = await store(tmp_path, forked())
    run.session("add-0").traces.unlink()
    page = page_of(await material_of_run(run, "add-0"), spelled)
    assert page.proof.light == "wrong", "the result says that there were traces"
    assert page.tokens.kinds.count(TokenKind.UNPLACED) == sum(call.sampled for call in page.calls)


async def test_a_session_without_calls_has_a_page(tmp_path: Path) -> None:
    page, _ = await a_page(tmp_path, Conversation())
    assert (page.calls, page.tokens.words) == ([], b"")


async def test_a_conversation_beside_another_is_no_break(tmp_path: Path) -> None:
    """Two agents with the same system prompt share its tokens on the page, and neither left the other."""
    talk = Conversation()
    talk.say("<system><one>", "a")
    talk.say("<system><two>", "b")
    page, _ = await a_page(tmp_path, talk)
    second = page.calls[1]
    assert (second.fork, second.base, second.common) == (None, 1, len("<system><"))
    assert own_prompt(page, second) == "two>"


async def test_calls_without_token_ids_show_their_messages(tmp_path: Path) -> None:
    talk = Conversation()
    first = talk.say("", "", new_messages=(Message(role="user", content="hello"),), usage=EndpointUsage(3, 2))
    reply = Message(role="assistant", content="bye")
    talk.say("", "", parent=first, continues=False, response=reply, usage=EndpointUsage(5, 1))
    page, _ = await a_page(tmp_path, talk)
    assert page.calls[0].messages[0].content == "hello" and page.calls[1].reply.content == "bye"
    assert (page.tokens.words, page.calls[1].base) == (b"", None)


async def test_a_damaged_count_does_not_reach_the_arrays(tmp_path: Path) -> None:
    talk = Conversation()
    first = talk.say("<one>", "a")
    talk.say("<two>", "b", parent=first, prompt_tokens=10**12)
    page, _ = await a_page(tmp_path, talk)
    assert page.calls[1].common == len("<one>a")
    assert page.tokens.kinds[-1] == TokenKind.DROPPED, "its prompt is not proven"
