"""Renderers of known model families, through the `renderers` package (extra `renderers`).

What becomes of earlier thinking is the task's choice. Preserved, it stays in its exact tokens. By the template's
own habit a turn is not bridged where the template would rewrite; stripped, it is not bridged where there was any.

Where the model's folder holds a chat template, the package's layout is measured against it. A layout that is not
the template's is no ground to go on from by the template's habit: then nothing is bridged.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any

import msgspec
from pydantic import Field
from renderers import ParsedToolCall, ToolCallParseStatus, config_from_name
from renderers import create_renderer as create  # pyright: ignore[reportUnknownVariableType]
from tokenizers import Tokenizer

from polar.errors import ConfigError
from polar.tokens.preflight.parity import parity
from polar.tokens.preflight.probes import HISTORIES
from polar.tokens.renderers.chat_template import OwnTemplate, calls_one_by_one, wire_message, wire_tools
from polar.tokens.renderers.encoder import TextEncoder
from polar.tokens.renderers.gguf_vocabulary import bytes_by_id
from polar.tokens.renderers.template import TemplateRenderer
from polar.tokens.replies.call_block import is_text
from polar.tokens.replies.id_tags import IdTagReader, IdTags
from polar.tokens.replies.reply_text import read_whole
from polar.types import Message, Retention, Strict, TokenIds, Tool, ToolCall, token_ids

READ_BY_ID_TAGS = ("qwen3", "qwen3-vl")
"""The families whose replies are `<think>`, text and `<tool_call>` blocks of JSON, each tag one token. Others of
the package have the tags and write their calls in another way, or have no token for a tag."""


class FamilyRenderer:
    class Options(Strict):
        family: str
        """A family the `renderers` package knows, such as `qwen3`."""
        tokenizer: Path
        """Folder with the model's tokenizer.json, and its chat template if it has one."""
        settings: dict[str, Any] = Field(default={})
        """Further settings of the family's renderer, such as `enable_thinking`."""

    takes_images = False
    _tokenizer: _LocalTokenizer
    _layout_tokenizer: _LocalTokenizer
    """Makes control tokens of text that spells them."""
    _own_template: OwnTemplate | None
    _renderer: Any
    _is_as_template: bool = True
    """Conversations are laid out as the model's own template does it; trusted where there is none."""
    _stock: TemplateRenderer | None = None
    """Renders in the package's place, where the task wants the template's layout and the package has another."""
    _parser: Any
    """The same renderer for what is no content: it finds the head of the turn in a prompt by encoding it."""
    _retention: Retention = "preserve"
    _tags: IdTags | None = None
    _token_bytes: Sequence[bytes] = ()

    def __init__(self, options: Options) -> None:
        self._options = options

    async def load(self) -> None:
        await asyncio.to_thread(self._load, self._options)

    def _load(self, options: Options) -> None:
        self._tokenizer = _LocalTokenizer(options.tokenizer)
        self._layout_tokenizer = _LocalTokenizer(options.tokenizer, makes_control=True)
        self._own_template = OwnTemplate.found_in(options.tokenizer)
        self._renderer = self._created(self._tokenizer)
        self._parser = self._created(self._layout_tokenizer)
        if options.family in READ_BY_ID_TAGS:
            self._tags = IdTags(
                *(self._tokenizer.id_of(f"<{tag}>") for tag in ("think", "/think", "tool_call", "/tool_call")),
                stop_ids=frozenset(self.stop_ids),
            )
            self._token_bytes = self._tokenizer.bytes_by_id()

    def _created(self, tokenizer: _LocalTokenizer) -> Any:
        """The package's renderer, which keeps what thinking it is given or does as its family's template does."""
        kept: dict[str, Any] = {} if self._retention == "template" else {"thinking_retention": "all"}
        try:
            config: Any = type(config_from_name(self._options.family))(**{**self._options.settings, **kept})
            given = copy(self._layout_tokenizer)  # some look their control tokens up by encoding them
            created: Any = create(given, config)
        except (ValueError, KeyError, AssertionError) as error:  # the last: a token of the family is missing
            raise ConfigError(f"renderer family {self._options.family!r}: {error}") from error
        given.encode_like(tokenizer)
        return created

    def retaining(self, retention: Retention) -> FamilyRenderer:
        if retention == self._retention:
            return self
        other = copy(self)
        other._retention = retention
        other._renderer = other._created(self._tokenizer)
        other._stock, other._is_as_template = None, True
        if retention == "template" and any(parity(other, HISTORIES).values()):
            other._is_as_template, other._stock = False, self._stock_template()
        return other

    def _stock_template(self) -> TemplateRenderer | None:
        """The model's own template with its own tokenizer, for prompts where the package's layout is another. None
        where that renderer cannot read the tokenizer."""
        stops = tuple(self._tokenizer.decode(stop) for stop in self.stop_ids)
        options = TemplateRenderer.Options(
            tokenizer=self._options.tokenizer, settings=self._template_settings(), tool_calls="none", stop=stops
        )
        stock = TemplateRenderer(options)
        try:
            stock.load_now()
        except ConfigError:
            return None
        return stock.retaining("template")

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return tuple(self._renderer.get_stop_token_ids())

    @property
    def fingerprint(self) -> str:
        options = self._options.model_dump_json(exclude={"tokenizer"})
        whole = f"{self._tokenizer.fingerprint}{options}{self._retention}"
        return hashlib.sha256(whole.encode()).hexdigest()[:16]

    def bounded(self, context_tokens: int) -> FamilyRenderer:
        other = copy(self)
        other._tokenizer = self._tokenizer.bounded(context_tokens)
        other._layout_tokenizer = self._layout_tokenizer.bounded(context_tokens)
        other._renderer, other._parser = other._created(other._tokenizer), other._created(other._layout_tokenizer)
        other._stock = self._stock.bounded(context_tokens) if self._stock else None
        return other

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> TokenIds:
        if self._stock is not None:
            return self._stock.render(messages, tools)
        if self._retention == "strip":
            messages = [msgspec.structs.replace(message, reasoning="") for message in messages]
        return calls_one_by_one(self.own_layout, messages, tools)

    def own_layout(self, messages: Sequence[Message], tools: Sequence[Tool]) -> TokenIds:
        """By the package."""
        self._begin_prompt()
        ids: list[int] = self._renderer.render_ids(
            [wire_message(m) for m in messages], tools=wire_tools(tools), add_generation_prompt=True
        )
        return token_ids(ids)

    def by_template(self, messages: Sequence[Message], tools: Sequence[Tool]) -> TokenIds | None:
        """The conversation as the model's own template lays it out; None where it has none. Raises where the
        template refuses it. Only for conversations whose text spells no control token."""
        if self._own_template is None:
            return None
        wire = [wire_message(message) for message in messages]
        return self.encode(self._own_template.text(wire, wire_tools(tools), self._template_settings()))

    def _template_settings(self) -> dict[str, Any]:
        config = self._renderer.config
        return {name: getattr(config, name) for name in config.template_field_names()}

    def bridge(
        self,
        prompt_ids: TokenIds,
        completion_ids: TokenIds,
        new_messages: Sequence[Message],
        tools: Sequence[Tool],
    ) -> TokenIds | None:
        if not self._is_as_template:
            return None
        if self._retention == "strip" and self.parse(prompt_ids, completion_ids).reasoning:
            return None
        self._begin_prompt()
        # The package does not go on from thinking that the model itself has left open when it ended its turn. What
        # is appended behind the end is the same with and without.
        completion_ids = self._with_closed_thinking(prompt_ids, completion_ids)
        prompt, completion = prompt_ids.tolist(), completion_ids.tolist()
        stored = prompt + completion
        bridged: Any = self._renderer.bridge_to_next_turn(
            prompt,
            completion,
            [wire_message(m) for m in new_messages],
            tools=wire_tools(tools),
        )
        # A bridge may cut tokens after the end of turn; what was sampled stays or the bridge is not taken.
        if bridged is None or bridged.token_ids[: len(stored)] != stored:
            return None
        return token_ids(bridged.token_ids[len(stored) :])

    def _with_closed_thinking(self, prompt_ids: TokenIds, completion_ids: TokenIds) -> TokenIds:
        said, ended = completion_ids[:-1], completion_ids[-1:]
        if self._retention != "preserve" or self._tags is None or not set(ended) & self._tags.stop_ids:
            return completion_ids
        thinks = self._tags.thinking_at_end(prompt_ids + said)
        return said + token_ids([self._tags.think_end]) + ended if thinks else completion_ids

    def parse(self, prompt_ids: TokenIds, completion_ids: TokenIds, *, calls: bool = True) -> Message:
        reader = self.reader(prompt_ids, calls=calls)
        return read_whole(reader, completion_ids) if reader else self._parsed(prompt_ids, completion_ids, calls)

    def _parsed(self, prompt_ids: TokenIds, completion_ids: TokenIds, calls: bool) -> Message:
        self._begin_prompt()
        parsed: Any = self._parser.parse_response(completion_ids.tolist(), prompt_ids=prompt_ids.tolist())
        attempts: list[ParsedToolCall] = parsed.tool_calls
        readable = [a for a in attempts if calls and _is_readable(a)]
        unread = [a.raw for a in attempts if a not in readable]
        return Message(
            role="assistant",
            content="".join([parsed.content, *unread]),
            reasoning=parsed.reasoning_content or "",
            tool_calls=tuple(map(_tool_call, readable)),
        )

    def reader(self, prompt_ids: TokenIds, *, calls: bool = True) -> IdTagReader | None:
        if self._tags is None:
            return None
        thinking = self._tags.thinking_at_end(prompt_ids)
        return IdTagReader(self._tags, self._token_bytes, thinking=thinking, calls=calls)

    def _begin_prompt(self) -> None:
        self._tokenizer.begin_prompt()
        self._layout_tokenizer.begin_prompt()

    def encode(self, text: str) -> TokenIds:
        self._begin_prompt()
        return token_ids(self._layout_tokenizer.encode(text))

    def decode(self, ids: TokenIds) -> str:
        return self._tokenizer.decode(ids.tolist())


class _Spent(threading.local):
    """The package encodes a prompt in many parts and knows no limit: they are added up here, for each thread."""

    tokens = 0


class _LocalTokenizer:
    """A tokenizer.json in the shape `renderers` asks for. Text becomes no control token unless it
    `makes_control`: into content those enter only by id, from the template."""

    unk_token_id: int | None = None
    name_or_path = "local"

    def __init__(self, folder: Path, *, makes_control: bool = False) -> None:
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(f"no tokenizer.json in {folder}")
        self._tokenizer = Tokenizer.from_file(str(path))
        self._tokenizer.encode_special_tokens = not makes_control
        self._encoder = TextEncoder(self._tokenizer)
        self._spent = _Spent()
        self.fingerprint = hashlib.sha256(path.read_bytes()).hexdigest()[:16]

    def id_of(self, token: str) -> int:
        token_id = self._tokenizer.token_to_id(token)
        if token_id is None:
            raise ConfigError(f"the tokenizer has no token {token!r}; use that of the renderer's family")
        return token_id

    def encode_like(self, other: _LocalTokenizer) -> None:
        self._tokenizer, self._encoder, self._spent = other._tokenizer, other._encoder, other._spent

    def bounded(self, context_tokens: int) -> _LocalTokenizer:
        other = copy(self)
        other._encoder, other._spent = self._encoder.bounded(context_tokens), _Spent()
        return other

    def begin_prompt(self) -> None:
        """What this thread encodes from now on belongs to one prompt, which has to fit."""
        self._spent.tokens = 0

    def bytes_by_id(self) -> list[bytes]:
        return bytes_by_id(self._tokenizer)

    def encode(self, text: str, **_: Any) -> list[int]:
        ids = self._encoder.encode(text)
        self._spent.tokens = self._encoder.added(self._spent.tokens, len(ids))
        return ids

    def decode(self, token_ids: list[int] | int, **_: Any) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def convert_tokens_to_ids(self, tokens: str | list[str]) -> int | list[int | None] | None:
        if isinstance(tokens, str):
            return self._tokenizer.token_to_id(tokens)
        return [self._tokenizer.token_to_id(token) for token in tokens]


def _is_readable(attempt: ParsedToolCall) -> bool:
    name: Any = attempt.name  # JSON can give a call any name
    return attempt.status == ToolCallParseStatus.OK and isinstance(name, str) and is_text(name)


def _tool_call(parsed: ParsedToolCall) -> ToolCall:
    arguments = parsed.arguments
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    if not is_text(text):  # half a surrogate pair has no bytes of its own; escaped it has
        text = json.dumps(arguments)
    return ToolCall(name=parsed.name or "", arguments=text)
