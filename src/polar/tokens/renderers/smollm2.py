"""Renderer of the embedded default model, SmolLM2-135M: ChatML, with Hermes-style tools.

The model's own template has no tools, and a model of this size makes no calls from a tool description alone
(docs/design/default-model.md has the figures). It does follow worked examples in earlier turns, so a conversation
with a shell-like tool begins with some. Without tools the rendering equals the model's own template token for
token.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterable, Sequence
from copy import copy
from pathlib import Path
from typing import Any, TypeGuard, cast

from polar.store.weights import default_weights
from polar.tokens.renderers.gguf_vocabulary import Vocabulary, load_vocabulary
from polar.tokens.replies.reply_text import CLOSE, OPEN, TextTagReader, read_whole
from polar.types import Message, Retention, Strict, TokenIds, Tool, token_ids

DEFAULT_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
TOOL_PROMPT = "You act by calling tools. Answer each request with <tool_call>."
EXAMPLE_ANSWER = "Done."


class ExampleStep(Strict):
    command: str
    output: str = "(no output)"


class WorkedExample(Strict):
    """An earlier request and how it was answered: with one call of a shell-like tool for each step."""

    request: str
    steps: tuple[ExampleStep, ...]


def _one_step(request: str, command: str, output: str = "(no output)") -> WorkedExample:
    return WorkedExample(request=request, steps=(ExampleStep(command=command, output=output),))


WORKED_EXAMPLES = (
    _one_step("Write the word blue into the file sky.txt.", "echo blue > sky.txt"),
    _one_step("Make a folder named photos.", "mkdir photos"),
    _one_step("Write the word tiger into the file animal.txt.", "echo tiger > animal.txt"),
    _one_step("Show the file list.txt.", "cat list.txt", "milk"),
    _one_step("Write the number 12 into the file count.txt.", "echo 12 > count.txt"),
    _one_step("Make a folder named logs.", "mkdir logs"),
    _one_step("Write the word paris into the file city.txt.", "echo paris > city.txt"),
    _one_step("Copy the file a.txt to b.txt.", "cp a.txt b.txt"),
)


class SmolLM2Renderer:
    class Options(Strict):
        gguf: Path | None = None
        """Weights whose vocabulary to use; default: those of the default model."""
        worked_examples: bool | tuple[WorkedExample, ...] = True
        """True: `WORKED_EXAMPLES`. False: none. Others may be given instead."""

        @property
        def examples(self) -> tuple[WorkedExample, ...]:
            if isinstance(self.worked_examples, bool):
                return WORKED_EXAMPLES if self.worked_examples else ()
            return self.worked_examples

    takes_images = False
    _vocabulary: Vocabulary

    def __init__(self, options: Options) -> None:
        self._options = options

    async def load(self) -> None:
        weights = self._options.gguf or await default_weights()
        self._vocabulary = await asyncio.to_thread(load_vocabulary, weights)
        self._start = self._vocabulary.control("<|im_start|>")
        self._end = self._vocabulary.control("<|im_end|>")
        self._stops = (self._end, self._vocabulary.control("<|endoftext|>"))
        self._newline = self._vocabulary.encode("\n")
        self._opening = [self._start, *self._vocabulary.encode("assistant\n")]

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return self._stops

    @property
    def fingerprint(self) -> str:
        layout = repr((TOOL_PROMPT, self._options.examples, "chatml-hermes-1"))
        return hashlib.sha256(f"{self._vocabulary.fingerprint}{layout}".encode()).hexdigest()[:16]

    def retaining(self, retention: Retention) -> SmolLM2Renderer:
        return self

    def bounded(self, context_tokens: int) -> SmolLM2Renderer:
        other = copy(self)
        other._vocabulary = self._vocabulary.bounded(context_tokens)
        return other

    def added(self, tools: Sequence[Tool]) -> str:
        count = len(self._options.examples) if _shell_of(tools) else 0
        examples = "1 worked example" if count == 1 else f"{count} worked examples"
        return f"{examples} (docs/design/default-model.md)" if count else ""

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> TokenIds:
        system, rest = _leading_system(messages)
        head = [Message(role="system", content=_system_text(system, tools))]
        head.extend(_turns_of(self._options.examples, tools))
        return token_ids([*self._turns([*head, *rest]), *self._opening])

    def bridge(
        self,
        prompt_ids: TokenIds,
        completion_ids: TokenIds,
        new_messages: Sequence[Message],
        tools: Sequence[Tool],
    ) -> TokenIds | None:
        if not new_messages:
            return None
        closed = bool(completion_ids) and completion_ids[-1] == self._end
        close = [] if closed else [self._end]  # ends a truncated turn, as context
        return token_ids([*close, *self._newline, *self._turns(new_messages), *self._opening])

    def parse(self, prompt_ids: TokenIds, completion_ids: TokenIds, *, calls: bool = True) -> Message:
        return read_whole(self.reader(prompt_ids, calls=calls), completion_ids)

    def reader(self, prompt_ids: TokenIds, *, calls: bool = True) -> TextTagReader:
        return TextTagReader(self._vocabulary.bytes_by_id.__getitem__, self._stops, calls=calls)

    def encode(self, text: str) -> TokenIds:
        return token_ids(self._vocabulary.encode_layout(text))

    def decode(self, ids: TokenIds) -> str:
        return self._vocabulary.decode(ids)

    def _turns(self, messages: Iterable[Message]) -> list[int]:
        ids: list[int] = []
        texts = (f"{message.role}\n{_turn_text(message)}" for message in messages)
        for text_ids in self._vocabulary.encoder.encode_each(texts):
            ids += [self._start, *text_ids, self._end, *self._newline]
        return ids


def _leading_system(messages: Sequence[Message]) -> tuple[str | None, Sequence[Message]]:
    if messages and messages[0].role == "system":
        return messages[0].content, messages[1:]
    return None, messages


def _system_text(system: str | None, tools: Sequence[Tool]) -> str:
    if not tools:
        return DEFAULT_SYSTEM if system is None else system
    listing = "\n".join(_signature(tool) for tool in tools)
    tool_part = f"{TOOL_PROMPT}\n\n<tools>\n{listing}\n</tools>"
    return tool_part if system is None else f"{tool_part}\n\n{system}"


def _signature(tool: Tool) -> str:
    """A tool in one line: argument names and types, and the first sentence of its description."""
    required = _required(tool)
    properties = tool.parameters.get("properties")
    arguments = ", ".join(
        f"{name}{'' if name in required else '?'}: {schema.get('type', 'any') if _is_object(schema) else 'any'}"
        for name, schema in (properties.items() if _is_object(properties) else ())
    )
    return f"{tool.name}({arguments}): {tool.description.split('. ')[0].rstrip('.')}."


def _required(tool: Tool) -> Sequence[Any]:
    """A schema comes from the harness and may be anything."""
    required = tool.parameters.get("required")
    return cast("list[Any]", required) if isinstance(required, list) else ()


def _is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _shell_of(tools: Sequence[Tool]) -> Tool | None:
    return next((tool for tool in tools if "command" in _required(tool)), None)


def _turns_of(examples: Sequence[WorkedExample], tools: Sequence[Tool]) -> list[Message]:
    shell = _shell_of(tools)
    if shell is None:
        return []
    turns: list[Message] = []
    for example in examples:
        turns.append(Message(role="user", content=example.request))
        for step in example.steps:
            call = json.dumps({"name": shell.name, "arguments": {"command": step.command}})
            turns.append(Message(role="assistant", content=f"{OPEN}{call}{CLOSE}"))
            turns.append(Message(role="tool", content=step.output))
        turns.append(Message(role="assistant", content=EXAMPLE_ANSWER))
    return turns


def _turn_text(message: Message) -> str:
    calls = [f'{OPEN}{{"name": "{c.name}", "arguments": {c.arguments}}}{CLOSE}' for c in message.tool_calls]
    return "\n".join([*([message.content] if message.content else []), *calls])
