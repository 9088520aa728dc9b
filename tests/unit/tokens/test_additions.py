"""What a renderer adds to prompts beside the harness's messages."""

from __future__ import annotations

from polar.tokens.additions import added_to, additions_of
from polar.tokens.base import Renderer
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.types import Call, CallTimes, Message, Tool, logprobs, token_ids

SHELL = Tool(name="bash", parameters={"required": ["command"]})


def call(tools: tuple[Tool, ...] | None, *, continues: bool = False) -> Call:
    return Call(
        call_id="s.1.1",
        session_id="s",
        parent_id="s.1.0" if continues else None,
        continues=continues,
        new_prompt_ids=token_ids([1]),
        completion_ids=token_ids([2]),
        logprobs=logprobs([-0.5]),
        prompt_digest=b"",
        prompt_tokens=1,
        finish_reason="stop",
        new_messages=(Message(role="user", content="x"),),
        response=Message(role="assistant", content="y"),
        tools=tools,
        new_items=(),
        dialect="openai_chat",
        kind="agent",
        sampling={},
        engine="scripted",
        logprob_mode="raw",
        times=CallTimes(0.0, 0.0, 0.0),
    )


def renderer(**options: object) -> Renderer:
    return SmolLM2Renderer(SmolLM2Renderer.Options.model_validate(options))


def test_worked_examples_are_added_where_a_shell_is_offered() -> None:
    told = added_to(renderer(), call((SHELL,)))
    assert told.startswith("the renderer added 8 worked examples (docs/design/default-model.md)")
    assert added_to(renderer(), call((Tool(name="read"),))) == ""
    assert added_to(renderer(), call(())) == ""


def test_a_call_that_continues_another_adds_nothing() -> None:
    assert added_to(renderer(), call(None, continues=True)) == ""


def test_without_examples_or_a_renderer_nothing_is_added() -> None:
    assert added_to(renderer(worked_examples=False), call((SHELL,))) == ""
    assert added_to(None, call((SHELL,))) == ""


def test_a_session_names_each_addition_once() -> None:
    calls = [call((SHELL,)), call((SHELL,)), call(None, continues=True)]
    assert len(additions_of(renderer(), calls)) == 1
