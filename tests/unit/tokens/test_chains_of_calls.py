"""Which calls of a session follow each other, as `polar show --messages` and the viewer's map have them."""

from __future__ import annotations

from polar.tokens.chains import chains_of
from polar.types import Message
from viewed_session import Conversation, forked


def numbers(talk: Conversation) -> list[list[int]]:
    return [[int(call.call_id.rpartition(".")[2]) for call in chain.calls] for chain in chains_of(talk.calls)]


def test_where_a_chain_forks_the_longest_continuation_stays_in_it() -> None:
    talk = Conversation()
    root = talk.say("a", "b")
    talk.say("c", "d", parent=root)
    long = talk.say("e", "f", parent=root)
    talk.say("g", "h", parent=long)
    assert numbers(talk) == [[1, 3, 4], [2]]
    assert chains_of(talk.calls)[1].parent is root


def test_of_equal_ones_the_earliest_stays() -> None:
    talk = Conversation()
    root = talk.say("a", "b")
    talk.say("c", "d", parent=root)
    talk.say("e", "f", parent=root)
    assert numbers(talk) == [[1, 2], [3]]


def test_a_subagent_does_not_take_over_the_chain() -> None:
    talk = Conversation()
    root = talk.say("a", "b")
    side = talk.say("c", "d", parent=root, kind="subagent")
    talk.say("e", "f", parent=side, kind="subagent")
    talk.say("g", "h", parent=root)
    assert numbers(talk) == [[1, 4], [2, 3]]


def test_a_call_that_leaves_the_tokens_begins_a_chain_if_another_continues_them() -> None:
    assert numbers(forked()) == [[1, 2, 5], [3], [4]]


def test_calls_without_token_ids_follow_their_messages() -> None:
    talk = Conversation()
    first = talk.say("", "")
    second = talk.say("", "", parent=first, continues=False)
    talk.say("", "", parent=second, continues=False)
    assert numbers(talk) == [[1, 2, 3]]


def test_a_parent_that_is_not_there_or_comes_later_begins_no_loop() -> None:
    talk = Conversation()
    talk.say("a", "b", parent_id="add-0.1.2")
    talk.say("c", "d", parent_id="add-0.1.1")
    talk.say("e", "f", parent_id="add-0.1.9")
    assert sorted(number for chain in numbers(talk) for number in chain) == [1, 2, 3]


def test_the_echo_of_a_reply_is_no_new_turn() -> None:
    talk = Conversation()
    first = talk.say("a", "b")
    echo, asked = Message(role="assistant", content="b "), Message(role="user", content="c")
    second = talk.say("c", "d", parent=first, new_messages=(echo, asked))
    assert (second.echo, second.new_turns) == (echo, (asked,))
    silent = talk.say("c", "d", parent=first, new_messages=(asked,))
    assert (silent.echo, silent.new_turns) == (None, (asked,))
    few_shot = talk.say("x", "y", new_messages=(echo, asked))
    assert (few_shot.echo, few_shot.new_turns) == (None, (echo, asked)), "it has no parent"
