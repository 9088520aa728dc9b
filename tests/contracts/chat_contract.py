"""What every engine in chat mode must do. A test class inherits this and has the fixture `started` (an engine
and its info), and may replace `calling` (a prompt that the model answers by calling `look`) and `refused` (one
that the template refuses). The model's turns are those of ChatML."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from contracts.engine_contract import StartedEngine
from polar.engines.base import ChatEngine, ChatPiece, ChatPrompt, EngineInfo, Scorer
from polar.engines.remote.proof import prove_chat
from polar.errors import ChatRefused, ContextOverflow, SchemaRefused
from polar.types import Message, Sampling, TokenIds, Tool, ToolCall, token_ids

LOOK = Tool(
    name="look",
    description="Looks into a file.",
    parameters={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
)
GREETING = (Message(role="user", content="Say hi."),)


def talk(*messages: Message, session_id: str = "s", max_tokens: int | None = 8, **more: Any) -> ChatPrompt:
    return ChatPrompt(
        messages=messages or GREETING,
        tools=more.pop("tools", ()),
        stop=more.pop("stop", ()),
        seed=more.pop("seed", 7),
        json_schema=more.pop("json_schema", None),
        session_id=session_id,
        max_tokens=max_tokens,
        sampling=Sampling(**more),
    )


class WholeReply:
    """A whole reply, after the checks that every reply must pass."""

    def __init__(self, pieces: list[ChatPiece]) -> None:
        assert [bool(part.prompt_ids) for part in pieces] == [True] + [False] * (len(pieces) - 1)
        ended = [part.piece.finish_reason is not None for part in pieces]
        assert ended == [False] * (len(pieces) - 1) + [True]
        assert all(len(part.piece.ids) == len(part.piece.logprobs) for part in pieces)
        assert not any(part.stop_sequence or part.piece.policy_spans for part in pieces[:-1])
        last = pieces[-1]
        deltas = [delta for part in pieces for delta in part.deltas]
        self.pieces = pieces
        self.prompt_ids: TokenIds = pieces[0].prompt_ids or token_ids()
        self.ids = token_ids(i for part in pieces for i in part.piece.ids)
        self.logprobs = [value for part in pieces for value in part.piece.logprobs]
        self.finish_reason = last.piece.finish_reason
        self.stop_sequence = last.stop_sequence
        self.content = "".join(delta.content for delta in deltas)
        self.reasoning = "".join(delta.reasoning for delta in deltas)
        self.calls = [delta.tool_call for delta in deltas if delta.tool_call is not None]

    @property
    def message(self) -> Message:
        return Message(
            role="assistant", content=self.content, reasoning=self.reasoning, tool_calls=tuple(self.calls)
        )


async def whole_reply(engine: ChatEngine, prompt: ChatPrompt) -> WholeReply:
    return WholeReply([piece async for piece in engine.chat(prompt)])


class ChatContract(StartedEngine):
    @pytest.fixture
    def calling(self) -> ChatPrompt:
        return talk(Message(role="user", content="Look into e.txt"), tools=(LOOK,), max_tokens=60)

    @pytest.fixture
    def refused(self) -> ChatPrompt:
        return talk(Message(role="assistant", content="Hello."))

    async def test_the_engine_passes_its_self_test(self, engine: ChatEngine) -> None:
        await prove_chat(engine)

    async def test_the_prompt_spells_the_conversation(self, engine: ChatEngine) -> None:
        asked = talk(Message(role="system", content="Be brief, Zoë."), *GREETING, max_tokens=1)
        text = await engine.decode((await whole_reply(engine, asked)).prompt_ids)
        assert text.endswith("<|im_start|>assistant\n")
        assert "Be brief, Zoë.<|im_end|>" in text
        assert "Say hi.<|im_end|>" in text

    async def test_the_text_is_what_the_ids_spell(self, engine: ChatEngine) -> None:
        reply = await whole_reply(engine, talk(max_tokens=12))
        assert reply.ids
        assert reply.content
        assert (await engine.decode(reply.ids)).startswith(reply.content)

    async def test_every_id_has_a_logprob(self, engine: ChatEngine) -> None:
        reply = await whole_reply(engine, talk(max_tokens=12))
        assert all(-1e4 < value <= 0 for value in reply.logprobs)

    async def test_logprobs_are_those_of_the_ids_in_their_context(self, engine: ChatEngine) -> None:
        assert isinstance(engine, Scorer)
        reply = await whole_reply(engine, talk(max_tokens=12))
        ids = reply.prompt_ids + reply.ids
        scored = await engine.score(ids, range(len(reply.prompt_ids), len(ids)))
        assert reply.logprobs == pytest.approx(scored.tolist(), abs=1e-3)

    async def test_the_same_seed_gives_the_same_ids(self, engine: ChatEngine) -> None:
        one, other = [await whole_reply(engine, talk(session_id=name, seed=11)) for name in ("one", "two")]
        assert one.ids == other.ids

    async def test_a_prompt_is_counted_as_it_is_laid_out(self, engine: ChatEngine, calling: ChatPrompt) -> None:
        for asked in (talk(), calling):
            assert await engine.count(asked) == len((await whole_reply(engine, asked)).prompt_ids)

    async def test_max_tokens_ends_a_reply_as_length(self, engine: ChatEngine) -> None:
        reply = await whole_reply(engine, talk(max_tokens=3, temperature=0))
        assert (len(reply.ids), reply.finish_reason, reply.stop_sequence) == (3, "length", "")

    async def test_a_reply_may_take_what_the_context_leaves(self, engine: ChatEngine, info: EngineInfo) -> None:
        reply = await whole_reply(engine, talk(max_tokens=None, temperature=0))
        assert len(reply.ids) > 8
        assert len(reply.prompt_ids) + len(reply.ids) <= info.context_tokens + 1

    async def test_more_than_fits_may_be_asked_for(self, engine: ChatEngine, info: EngineInfo) -> None:
        long = Message(role="user", content="one two " * 300)
        asked = talk(long, max_tokens=10 * info.context_tokens, temperature=0)
        reply = await whole_reply(engine, asked)
        assert reply.ids
        assert len(reply.prompt_ids) + len(reply.ids) <= info.context_tokens + 1

    async def test_a_stop_text_ends_a_reply_and_its_ids_stay(self, engine: ChatEngine) -> None:
        free = await whole_reply(engine, talk(max_tokens=8, temperature=0))
        stop = free.content[6:9]
        reply = await whole_reply(engine, talk(max_tokens=8, temperature=0, stop=(stop,)))
        assert (reply.finish_reason, reply.stop_sequence) == ("stop", stop)
        assert reply.content == free.content[: free.content.index(stop)]
        assert reply.ids == free.ids[: len(reply.ids)]
        assert stop in await engine.decode(reply.ids)
        assert reply.logprobs == pytest.approx(free.logprobs[: len(reply.ids)], abs=1e-3)

    async def test_a_call_comes_whole_and_as_it_was_written(self, engine: ChatEngine, calling: ChatPrompt) -> None:
        reply = await whole_reply(engine, calling)
        assert [(call.name, json.loads(call.arguments)) for call in reply.calls] == [("look", {"path": "e.txt"})]
        assert reply.finish_reason == "stop"
        spelled = await engine.decode(reply.ids)
        assert reply.calls[0].arguments in spelled
        assert spelled.endswith("<|im_end|>")
        assert reply.calls[0].call_id

    async def test_the_next_turn_shows_the_call_and_its_result(
        self, engine: ChatEngine, calling: ChatPrompt
    ) -> None:
        call = ToolCall("look", '{"path": "é.txt"}', "c9")
        result = Message(role="tool", content="a poem", tool_call_id="c9")
        turns = (*calling.messages, Message(role="assistant", tool_calls=(call,)), result)
        asked = msgspec.structs.replace(calling, messages=turns, max_tokens=1)
        first, then = await whole_reply(engine, calling), await whole_reply(engine, asked)
        assert then.prompt_ids[: len(first.prompt_ids)] == first.prompt_ids
        text = await engine.decode(then.prompt_ids[len(first.prompt_ids) :])
        assert '{"path": "é.txt"}' in text
        assert "a poem" in text

    async def test_a_conversation_that_leaves_no_room_is_refused(
        self, engine: ChatEngine, info: EngineInfo
    ) -> None:
        long = talk(Message(role="user", content="one two " * info.context_tokens))
        with pytest.raises(ContextOverflow) as raised:
            await whole_reply(engine, long)
        assert raised.value.context_tokens == info.context_tokens
        assert raised.value.prompt_tokens == await engine.count(long) > info.context_tokens

    async def test_a_conversation_that_the_template_does_not_take_is_refused(
        self, engine: ChatEngine, refused: ChatPrompt
    ) -> None:
        with pytest.raises(ChatRefused, match="begins with its user"):
            await whole_reply(engine, refused)
        with pytest.raises(ChatRefused, match="begins with its user"):
            await engine.count(refused)

    async def test_a_schema_holds_the_reply_and_the_logprobs_are_the_models(self, engine: ChatEngine) -> None:
        assert isinstance(engine, Scorer)
        reply = await whole_reply(engine, talk(max_tokens=40, json_schema={"const": {"a": [1, 2]}}))
        assert json.loads(reply.content) == {"a": [1, 2]}
        assert len(reply.pieces) == 1
        ids = reply.prompt_ids + reply.ids
        scored = await engine.score(ids, range(len(reply.prompt_ids), len(ids)))
        assert reply.logprobs == pytest.approx(scored.tolist(), abs=1e-3)
        assert min(reply.logprobs) < -1

    async def test_a_schema_that_cannot_be_held_is_refused(self, engine: ChatEngine) -> None:
        with pytest.raises(SchemaRefused, match="json_schema"):
            await whole_reply(engine, talk(json_schema={"type": "no such type"}))

    async def test_several_chats_at_once(self, engine: ChatEngine) -> None:
        asked = [talk(session_id=f"at-once-{n}", max_tokens=4, temperature=0) for n in range(4)]
        replies = await asyncio.gather(*(whole_reply(engine, prompt) for prompt in asked))
        assert len({tuple(reply.ids) for reply in replies}) == 1

    async def test_replies_are_counted(self, engine: Any) -> None:
        before = engine.counters()
        reply = await whole_reply(engine, talk(max_tokens=5, temperature=0))
        after = engine.counters()
        assert after["calls"] - before["calls"] == 1
        assert after["sampled_tokens"] - before["sampled_tokens"] == len(reply.ids)
        evaluated = reply.pieces[-1].piece.evaluated_tokens
        assert evaluated is not None
        assert after["evaluated_tokens"] - before["evaluated_tokens"] == evaluated

    async def test_no_ids_are_no_text(self, engine: ChatEngine) -> None:
        assert await engine.decode(token_ids()) == ""
