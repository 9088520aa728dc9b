"""The providers' official SDKs, one for each dialect, behind one face: what a user writes with each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import orjson
from anthropic import AsyncAnthropic
from google import genai
from google.genai import types
from openai import AsyncOpenAI
from pydantic import BaseModel

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"command": {"type": "string"}},
    "required": ["command"],
}
BASH = {"name": "bash", "description": "Run a command."}


class Usage(NamedTuple):
    """Tokens, as the provider's fields say them."""

    prompt: int
    cached: int
    completion: int


class Asked(NamedTuple):
    """A tool call as the SDK reads it."""

    call_id: str
    name: str
    arguments: Any


class Heard(NamedTuple):
    """A reply as the SDK reads it."""

    text: str
    asked: list[Asked]
    usage: Usage
    turn: list[Any]
    """What a harness puts behind its history."""
    pieces: int = 1
    """In how many parts the text came."""


class Speaker(Protocol):
    def __init__(self, base_url: str, key: str) -> None: ...

    def user(self, text: str) -> Any: ...

    def result(self, asked: Asked, text: str) -> Any: ...

    async def ask(self, history: list[Any], max_tokens: int, *, tools: bool = False) -> Heard: ...

    async def stream(self, history: list[Any], max_tokens: int, *, tools: bool = False) -> Heard: ...

    async def parsed(self, history: list[Any], shape: type[BaseModel], max_tokens: int) -> Any: ...

    async def close(self) -> None: ...


class Counting(Speaker, Protocol):
    """A provider that counts tokens on request."""

    async def count(self, history: list[Any]) -> int: ...


class ChatSpeaker:
    def __init__(self, base_url: str, key: str) -> None:
        client = AsyncOpenAI(base_url=f"{base_url}/v1", api_key=key)
        self._chat, self.close = client.chat.completions, client.close

    def user(self, text: str) -> Any:
        return {"role": "user", "content": text}

    def result(self, asked: Asked, text: str) -> Any:
        return {"role": "tool", "tool_call_id": asked.call_id, "content": text}

    async def ask(self, history: list[Any], max_tokens: int, *, tools: bool = False) -> Heard:
        return self._heard(await self._chat.create(**self._fields(history, max_tokens, tools)))

    async def stream(self, history: list[Any], max_tokens: int, *, tools: bool = False) -> Heard:
        fields = self._fields(history, max_tokens, tools)
        async with self._chat.stream(**fields, stream_options={"include_usage": True}) as events:
            pieces = [event.delta async for event in events if event.type == "content.delta"]
            # The SDK's final completion refuses a reply that the limit has cut off; this is the same without.
            heard = self._heard(events.current_completion_snapshot)
        assert "".join(pieces) == heard.text
        return heard._replace(pieces=len(pieces))

    async def parsed(self, history: list[Any], shape: type[BaseModel], max_tokens: int) -> Any:
        fields = self._fields(history, max_tokens, tools=False)
        return (await self._chat.parse(**fields, response_format=shape)).choices[0].message.parsed

    def _fields(self, history: list[Any], max_tokens: int, tools: bool) -> dict[str, Any]:
        fields: dict[str, Any] = {"model": "polar", "messages": history, "max_tokens": max_tokens}
        tool = {"type": "function", "function": {**BASH, "parameters": SCHEMA}}
        return {**fields, "tools": [tool]} if tools else fields

    def _heard(self, reply: Any) -> Heard:
        message, usage = reply.choices[0].message, reply.usage
        calls = [
            Asked(call.id, call.function.name, orjson.loads(call.function.arguments))
            for call in message.tool_calls or ()
        ]
        cached = usage.prompt_tokens_details.cached_tokens
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
        counted = Usage(usage.prompt_tokens, cached, usage.completion_tokens)
        return Heard(message.content or "", calls, counted, [message])


class ResponsesSpeaker:
    def __init__(self, base_url: str, key: str) -> None:
        client = AsyncOpenAI(base_url=f"{base_url}/v1", api_key=key)
        self._responses, self.close = client.responses, client.close

    def user(self, text: str) -> Any:
        return {"role": "user", "content": text}

    def result(self, asked: Asked, text: str) -> Any:
        return {"type": "function_call_output", "call_id": asked.call_id, "output": text}

    async def ask(self, history: list[Any], max_tokens: int, *, tools: bool = False) -> Heard:
        return self._heard(await self._responses.create(**self._fields(history, max_tokens, tools)))

    async def stream(self, history: list[Any], max_tokens: int, *, tools: bool = False) -> Heard:
        async with self._responses.stream(**self._fields(history, max_tokens, tools)) as events:
            pieces = [event.delta async for event in events if event.type == "response.output_text.delta"]
            heard = self._heard(await events.get_final_response())
        assert "".join(pieces) == heard.text
        return heard._replace(pieces=len(pieces))

    async def parsed(self, history: list[Any], shape: type[BaseModel], max_tokens: int) -> Any:
        fields = self._fields(history, max_tokens, tools=False)
        return (await self._responses.parse(**fields, text_format=shape)).output_parsed

    async def count(self, history: list[Any]) -> int:
        return (await self._responses.input_tokens.count(model="polar", input=history)).input_tokens

    def _fields(self, history: list[Any], max_tokens: int, tools: bool) -> dict[str, Any]:
        fields: dict[str, Any] = {"model": "polar", "input": history, "max_output_tokens": max_tokens}
        tool = {"type": "function", **BASH, "strict": False, "parameters": SCHEMA}
        return {**fields, "tools": [tool]} if tools else fields

    def _heard(self, reply: Any) -> Heard:
        calls = [
            Asked(item.call_id, item.name, orjson.loads(item.arguments))
            for item in reply.output
            if item.type == "function_call"
        ]
        usage = reply.usage
        assert usage.total_tokens == usage.input_tokens + usage.output_tokens
        counted = Usage(usage.input_tokens, usage.input_tokens_details.cached_tokens, usage.output_tokens)
        turn = [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in reply.output]
        return Heard(reply.output_text, calls, counted, turn)


class AnthropicSpeaker:
    def __init__(self, base_url: str, key: str) -> None:
        client = AsyncAnthropic(base_url=base_url, api_key=key)
        self._messages, self.close = client.messages, client.close

    def user(self, text: str) -> Any:
        return {"role": "user", "content": text}

    def result(self, asked: Asked, text: str) -> Any:
        block = {"type": "tool_result", "tool_use_id": asked.call_id, "content": text}
        return {"role": "user", "content": [block]}

    async def ask(self, history: list[Any], max_tokens: int, *, tools: bool = False) -> Heard:
        return self._heard(await self._messages.create(**self._fields(history, max_tokens, tools)))

    async def stream(self, history: list[Any], max_tokens: int, *, tools: bool = False) -> Heard:
        async with self._messages.stream(**self._fields(history, max_tokens, tools)) as events:
            pieces = [text async for text in events.text_stream]
            heard = self._heard(await events.get_final_message())
        assert "".join(pieces) == heard.text
        return heard._replace(pieces=len(pieces))

    async def parsed(self, history: list[Any], shape: type[BaseModel], max_tokens: int) -> Any:
        fields = self._fields(history, max_tokens, tools=False)
        return (await self._messages.parse(**fields, output_format=shape)).parsed_output

    async def count(self, history: list[Any]) -> int:
        return (await self._messages.count_tokens(model="polar", messages=history)).input_tokens

    def _fields(self, history: list[Any], max_tokens: int, tools: bool) -> dict[str, Any]:
        fields: dict[str, Any] = {"model": "polar", "messages": history, "max_tokens": max_tokens}
        return {**fields, "tools": [{**BASH, "input_schema": SCHEMA}]} if tools else fields

    def _heard(self, reply: Any) -> Heard:
        calls = [Asked(b.id, b.name, b.input) for b in reply.content if b.type == "tool_use"]
        text = "".join(block.text for block in reply.content if block.type == "text")
        usage = reply.usage
        cached = usage.cache_read_input_tokens
        blocks = [block.model_dump(exclude_none=True, exclude={"parsed_output"}) for block in reply.content]
        counted = Usage(usage.input_tokens + cached, cached, usage.output_tokens)
        return Heard(text, calls, counted, [{"role": "assistant", "content": blocks}])


class GoogleSpeaker:
    def __init__(self, base_url: str, key: str) -> None:
        client = genai.Client(api_key=key, http_options=types.HttpOptions(base_url=base_url))
        self._client, self._models = client, client.aio.models

    async def close(self) -> None:
        await self._client.aio.aclose()
        self._client.close()

    def user(self, text: str) -> Any:
        return types.Content(role="user", parts=[types.Part(text=text)])

    def result(self, asked: Asked, text: str) -> Any:
        answer = types.FunctionResponse(id=asked.call_id, name=asked.name, response={"output": text})
        return types.Content(role="user", parts=[types.Part(function_response=answer)])

    async def ask(self, history: list[Any], max_tokens: int, *, tools: bool = False) -> Heard:
        config = self._config(max_tokens, tools)
        return self._heard([await self._models.generate_content(model="polar", contents=history, config=config)])

    async def stream(self, history: list[Any], max_tokens: int, *, tools: bool = False) -> Heard:
        config = self._config(max_tokens, tools)
        chunks = await self._models.generate_content_stream(model="polar", contents=history, config=config)
        return self._heard([chunk async for chunk in chunks])

    async def parsed(self, history: list[Any], shape: type[BaseModel], max_tokens: int) -> Any:
        config = types.GenerateContentConfig(
            max_output_tokens=max_tokens, response_mime_type="application/json", response_schema=shape
        )
        return (await self._models.generate_content(model="polar", contents=history, config=config)).parsed

    async def count(self, history: list[Any]) -> int:
        return (await self._models.count_tokens(model="polar", contents=history)).total_tokens or 0

    def _config(self, max_tokens: int, tools: bool) -> types.GenerateContentConfig:
        string = types.Schema(type=types.Type.STRING)
        schema = types.Schema(type=types.Type.OBJECT, properties={"command": string}, required=["command"])
        bash = types.Tool(function_declarations=[types.FunctionDeclaration(**BASH, parameters=schema)])
        return types.GenerateContentConfig(
            max_output_tokens=max_tokens,
            tools=[bash] if tools else None,
            automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
        )

    def _heard(self, chunks: list[types.GenerateContentResponse]) -> Heard:
        usage: Any = chunks[-1].usage_metadata
        assert usage.total_token_count == usage.prompt_token_count + usage.candidates_token_count
        asked = [Asked(c.id or "", c.name or "", c.args) for chunk in chunks for c in chunk.function_calls or ()]
        texts = [chunk.text for chunk in chunks if chunk.text]
        turn = [chunk.candidates[0].content for chunk in chunks if chunk.candidates]
        counted = Usage(
            usage.prompt_token_count, usage.cached_content_token_count or 0, usage.candidates_token_count
        )
        return Heard("".join(texts), asked, counted, turn, len(texts))


SPEAKERS: dict[str, Callable[[str, str], Speaker]] = {
    "openai_chat": ChatSpeaker,
    "openai_responses": ResponsesSpeaker,
    "anthropic": AnthropicSpeaker,
    "google": GoogleSpeaker,
}
COUNTING: dict[str, Callable[[str, str], Counting]] = {
    "openai_responses": ResponsesSpeaker,
    "anthropic": AnthropicSpeaker,
    "google": GoogleSpeaker,
}
