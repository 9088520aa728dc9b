"""The official SDKs over a real node with the real default model: nothing between them is scripted.

What a model of this size says is its own affair, so no test here looks for a certain sentence. Several tool calls
in one reply cannot be had from it at will: the playbooks in `tests/integration/gateway` have them, with a script.
"""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest
from google.genai import errors
from openai import AsyncOpenAI
from pydantic import BaseModel
from speakers import COUNTING, Heard, Usage
from visits import CONTEXT_TOKENS, Bench, Visit

from polar.types import Call

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    # Google's SDK's own way to use aiohttp.
    pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning"),
]

STORY = "Tell me a long story about the sea."
SLICE_TOKENS = 32
"""So many ids the engine gives at a time."""


class City(BaseModel):
    name: str
    capital: bool


def usage_of(call: Call) -> Usage:
    """What the journal knows a reply to have cost."""
    assert call.evaluated_tokens is not None
    return Usage(call.prompt_tokens, call.prompt_tokens - call.evaluated_tokens, len(call.completion_ids))


async def only_call(visit: Visit, dialect: str) -> Call:
    (call,) = await visit.calls()
    assert call.dialect == dialect
    return call


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_tool_loop_goes_on_from_the_sampled_tokens(bench: Bench, dialect: str, streamed: bool) -> None:
    visit = await bench.visit()
    speaker = bench.speaker(dialect, visit.slot)
    ask = speaker.stream if streamed else speaker.ask
    history = [speaker.user("Write the word blue into the file sky.txt.")]
    first = await ask(history, 64, tools=True)
    (asked,) = first.asked
    assert (asked.name, "sky.txt" in asked.arguments["command"]) == ("bash", True)
    history += [*first.turn, speaker.result(asked, "(no output)")]
    second = await ask(history, 16, tools=True)
    assert second.text and not second.asked
    before, after = await visit.calls()
    assert (before.finish_reason, before.response.tool_calls[0].call_id) == ("tool_calls", asked.call_id)
    assert (after.parent_id, after.continues, after.break_reason) == (before.call_id, True, "")
    whole = before.prompt_tokens + len(before.completion_ids) + len(after.new_prompt_ids)
    assert after.prompt_tokens == whole and after.response.content == second.text
    assert (first.usage, second.usage) == (usage_of(before), usage_of(after))
    # The engine goes on from its own cache: of the first call it computes at most the last token again.
    assert second.usage.cached >= before.prompt_tokens + len(before.completion_ids) - 1
    trajectory = await visit.built()
    assert {dropped.reason for dropped in trajectory.dropped} == {"sampling_not_plain"}, "greedy is not trained on"


async def test_a_reply_of_the_plain_model_is_trained_on(bench: Bench, dialect: str) -> None:
    visit = await bench.visit(temperature=1.0, seed=7)
    speaker = bench.speaker(dialect, visit.slot)
    heard = await speaker.ask([speaker.user("What is the sea?")], 24)
    call = await only_call(visit, dialect)
    assert (heard.text, heard.asked) == (call.response.content, [])
    assert heard.text.strip() and heard.usage == usage_of(call)
    (trace,) = (await visit.built()).traces
    assert trace.prompt_ids == call.new_prompt_ids and trace.response_ids == call.completion_ids
    assert trace.logprobs == call.logprobs and set(trace.loss_mask) == {1}


async def test_a_long_reply_arrives_in_pieces(bench: Bench, dialect: str) -> None:
    visit = await bench.visit()
    speaker = bench.speaker(dialect, visit.slot)
    heard = await speaker.stream([speaker.user(STORY)], 2 * SLICE_TOKENS + 8)
    call = await only_call(visit, dialect)
    assert len(call.completion_ids) > 2 * SLICE_TOKENS and heard.pieces >= 3
    assert heard.text == call.response.content and heard.usage == usage_of(call)


async def test_streamed_and_whole_are_the_same_reply(bench: Bench, dialect: str) -> None:
    async def say(streamed: bool) -> tuple[Heard, Call]:
        visit = await bench.visit()
        speaker = bench.speaker(dialect, visit.slot)
        ask = speaker.stream if streamed else speaker.ask
        return await ask([speaker.user("Name three colours.")], 24), await only_call(visit, dialect)

    (whole, whole_call), (streamed, streamed_call) = await say(False), await say(True)
    assert whole.text == streamed.text and whole_call.completion_ids == streamed_call.completion_ids
    assert whole.usage == usage_of(whole_call) and streamed.usage == usage_of(streamed_call)


async def test_structured_output_is_what_was_asked_for_and_not_trained_on(bench: Bench, dialect: str) -> None:
    visit = await bench.visit()
    speaker = bench.speaker(dialect, visit.slot)
    city = await speaker.parsed([speaker.user("Describe the city of Paris as JSON.")], City, 48)
    assert isinstance(city, City)
    call = await only_call(visit, dialect)
    assert City.model_validate_json(call.response.content) == city
    assert set(call.sampling["json_schema"]["properties"]) == {"name", "capital"}
    trajectory = await visit.built()
    (dropped,) = trajectory.dropped
    assert (dropped.reason, dropped.length) == ("constrained", len(call.completion_ids))
    assert trajectory.traces == ()


@pytest.mark.parametrize("counting", COUNTING)
async def test_a_count_is_what_the_call_then_has(bench: Bench, counting: str) -> None:
    visit = await bench.visit()
    client = COUNTING[counting](visit.slot.base_url, visit.slot.key)
    history = [client.user("Wie groß ist das Meer? \U0001f30a")]
    try:
        counted = await client.count(history)
        assert await visit.calls() == []
        heard = await client.ask(history, 16)
    finally:
        await client.close()
    call = await only_call(visit, counting)
    assert counted == call.prompt_tokens == heard.usage.prompt


OVERFLOWS: dict[str, tuple[type[Exception], str]] = {
    "openai_chat": (openai.BadRequestError, f"maximum context length is {CONTEXT_TOKENS} tokens"),
    "openai_responses": (openai.BadRequestError, f"maximum context length is {CONTEXT_TOKENS} tokens"),
    "anthropic": (anthropic.BadRequestError, rf"prompt is too long: \d+ tokens > {CONTEXT_TOKENS} maximum"),
    "google": (errors.ClientError, rf"exceeds the maximum number of tokens allowed \({CONTEXT_TOKENS}\)"),
}


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_overflow_is_written_in_the_providers_words(bench: Bench, dialect: str, streamed: bool) -> None:
    visit = await bench.visit()
    speaker = bench.speaker(dialect, visit.slot)
    kind, wording = OVERFLOWS[dialect]
    with pytest.raises(kind, match=wording) as caught:
        await (speaker.stream if streamed else speaker.ask)([speaker.user("sea " * CONTEXT_TOKENS)], 16)
    if isinstance(caught.value, openai.BadRequestError):
        assert caught.value.code == "context_length_exceeded"
    assert await visit.calls() == []


REFUSALS: dict[str, type[Exception]] = {
    "openai_chat": openai.AuthenticationError,
    "openai_responses": openai.AuthenticationError,
    "anthropic": anthropic.AuthenticationError,
    "google": errors.ClientError,
}


async def test_a_wrong_key_is_refused(bench: Bench, dialect: str) -> None:
    visit = await bench.visit()
    speaker = bench.speaker(dialect, visit.slot, key="wrong")
    with pytest.raises(REFUSALS[dialect], match="unknown key") as caught:
        await speaker.ask([speaker.user("hello")], 16)
    status: Any = caught.value
    assert (status.code if isinstance(status, errors.ClientError) else status.status_code) == 401
    assert await visit.calls() == []


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_prompt_laid_out_by_its_sender(bench: Bench, streamed: bool) -> None:
    """OpenAI's legacy completions: the prompt's tokens are as the sender has them, and the reply is raw text."""
    visit = await bench.visit()
    prompt: Any = "The sea is" if streamed else bench.node.prompts.renderer.encode("The sea is").tolist()
    fields: dict[str, Any] = {"model": "polar", "prompt": prompt, "max_tokens": SLICE_TOKENS + 8}
    async with AsyncOpenAI(base_url=f"{visit.slot.base_url}/v1", api_key=visit.slot.key) as client:
        if streamed:
            options = {"include_usage": True}
            chunks: Any = await client.completions.create(**fields, stream=True, stream_options=options)
            replies = [chunk async for chunk in chunks]
        else:
            replies = [await client.completions.create(**fields)]
    texts = [choice.text for reply in replies for choice in reply.choices if choice.text]
    call = await only_call(visit, "openai_completions")
    assert call.new_prompt_ids == bench.node.prompts.renderer.encode("The sea is")
    assert "".join(texts) == call.response.content == bench.node.prompts.renderer.decode(call.completion_ids)
    assert len(texts) >= (2 if streamed else 1)
    usage = replies[-1].usage
    cached = usage.prompt_tokens_details.cached_tokens
    assert Usage(usage.prompt_tokens, cached, usage.completion_tokens) == usage_of(call)


async def test_completions_refuse_in_openais_shape(bench: Bench) -> None:
    visit = await bench.visit()
    async with AsyncOpenAI(base_url=f"{visit.slot.base_url}/v1", api_key=visit.slot.key) as client:
        with pytest.raises(openai.BadRequestError, match="maximum context length") as caught:
            await client.completions.create(model="polar", prompt="sea " * CONTEXT_TOKENS, max_tokens=16)
        assert caught.value.code == "context_length_exceeded"
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="wrong").completions.create(model="polar", prompt="The sea")
    assert await visit.calls() == []
