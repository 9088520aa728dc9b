"""Renderers of known model families, through the `renderers` package (extra `renderers`).

The task chooses what happens to earlier reasoning. `preserve`: it stays in its exact tokens. `template`: a turn is
not bridged if the template would rewrite it. `strip`: a turn is not bridged if it has reasoning.

If the model's folder has a chat template, the package's rendering is compared with it. If they differ, `template`
bridges nothing and renders with the model's template.
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

from polar.errors import ConfigError
from polar.tokens.preflight.parity import parity
from polar.tokens.preflight.probes import HISTORIES
from polar.tokens.renderers.chat_template import ChatTemplate, calls_one_by_one, template_message, template_tools
from polar.tokens.renderers.content_encoding import LayoutTokenizer
from polar.tokens.renderers.encoder import TextEncoder
from polar.tokens.renderers.template import TemplateRenderer
from polar.tokens.replies.id_tags import IdTagReader, IdTags
from polar.tokens.replies.reply_text import is_text, read_whole
from polar.types import Message, Retention, Strict, TokenIds, Tool, ToolCall, token_ids

READ_BY_ID_TAGS = ("qwen3", "qwen3-vl")
"""Families whose replies are `<think>`, text and `<tool_call>` blocks of JSON, each tag one token. Other families
of the package write calls differently, or have no token for a tag."""


class FamilyRenderer:
    class Options(Strict):
        family: str
        """A family of the `renderers` package, such as `qwen3`."""
        tokenizer: Path
        """Folder with the model's tokenizer.json, and its chat template if it has one."""
        settings: dict[str, Any] = Field(default={})
        """Further settings of the family's renderer, such as `enable_thinking`."""

    takes_images = False
    _tokenizer: LayoutTokenizer
    _content: _PackageTokenizer
    """Encodes text, never to control tokens: content gets them only by id, from the template."""
    _whole: _PackageTokenizer
    """Encodes text that spells control tokens to control tokens."""
    _template: ChatTemplate | None
    _renderer: Any
    _matches_template: bool = True
    """The package renders like the model's own template; assumed if there is none."""
    _stock: TemplateRenderer | None = None
    """Renders in place of the package if the task wants the template's rendering and the package's differs."""
    _parser: Any
    """The package's renderer with control tokens: to parse, it encodes the head of a turn and searches the
    prompt."""
    _retention: Retention = "preserve"
    _tags: IdTags | None = None
    _token_bytes: Sequence[bytes] = ()

    def __init__(self, options: Options) -> None:
        self._options = options

    async def load(self) -> None:
        await asyncio.to_thread(self._load, self._options)

    def _load(self, options: Options) -> None:
        self._template = ChatTemplate.load(options.tokenizer)
        self._use(LayoutTokenizer(options.tokenizer))
        if options.family in READ_BY_ID_TAGS:
            self._tags = IdTags(
                *(self._required(f"<{tag}>") for tag in ("think", "/think", "tool_call", "/tool_call")),
                stop_ids=frozenset(self.stop_ids),
            )
            self._token_bytes = self._tokenizer.token_bytes

    def _use(self, tokenizer: LayoutTokenizer) -> None:
        self._tokenizer = tokenizer
        self._content = _PackageTokenizer(tokenizer, tokenizer.content_encoder)
        self._whole = _PackageTokenizer(tokenizer, tokenizer.whole_encoder)
        self._renderer, self._parser = self._create(self._content), self._create(self._whole)

    def _required(self, token: str) -> int:
        token_id = self._tokenizer.id_of(token)
        if token_id is None:
            raise ConfigError(f"the tokenizer has no token {token!r}; use a tokenizer of the renderer's family")
        return token_id

    def _create(self, tokenizer: _PackageTokenizer) -> Any:
        """The package's renderer, which keeps all reasoning it is given, or does as its family's template does."""
        kept: dict[str, Any] = {} if self._retention == "template" else {"thinking_retention": "all"}
        try:
            config: Any = type(config_from_name(self._options.family))(**{**self._options.settings, **kept})
            given = copy(self._whole)  # some families look up control tokens by encoding them
            created: Any = create(given, config)
        except (ValueError, KeyError, AssertionError) as error:  # AssertionError: a token of the family is missing
            raise ConfigError(f"renderer family {self._options.family!r}: {error}") from error
        given.encode_like(tokenizer)
        return created

    def retaining(self, retention: Retention) -> FamilyRenderer:
        if retention == self._retention:
            return self
        other = copy(self)
        other._retention = retention
        other._renderer = other._create(self._content)
        other._stock, other._matches_template = None, True
        if retention == "template" and any(parity(other, HISTORIES).values()):
            other._matches_template, other._stock = False, self._template_renderer()
        return other

    def _template_renderer(self) -> TemplateRenderer | None:
        """Renders with the model's own template and tokenizer. None if that renderer cannot read the tokenizer."""
        stops = tuple(self._tokenizer.decode([stop]) for stop in self.stop_ids)
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
        whole = f"{self._tokenizer.fingerprint[:16]}{options}{self._retention}"
        return hashlib.sha256(whole.encode()).hexdigest()[:16]

    def bounded(self, context_tokens: int) -> FamilyRenderer:
        other = copy(self)
        other._use(self._tokenizer.bounded(context_tokens))
        other._stock = self._stock.bounded(context_tokens) if self._stock else None
        return other

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> TokenIds:
        if self._stock is not None:
            return self._stock.render(messages, tools)
        if self._retention == "strip":
            messages = [msgspec.structs.replace(message, reasoning="") for message in messages]
        return calls_one_by_one(self.own_layout, messages, tools)

    def own_layout(self, messages: Sequence[Message], tools: Sequence[Tool]) -> TokenIds:
        """The package's rendering."""
        self._begin_prompt()
        ids: list[int] = self._renderer.render_ids(
            [template_message(m) for m in messages], tools=template_tools(tools), add_generation_prompt=True
        )
        return token_ids(ids)

    def by_template(self, messages: Sequence[Message], tools: Sequence[Tool]) -> TokenIds | None:
        """The rendering of the model's own template; None if it has none. Raises if the template refuses. Only for
        conversations that spell no control token."""
        if self._template is None:
            return None
        fields = [template_message(message) for message in messages]
        return self.encode(self._template.text(fields, template_tools(tools), self._template_settings()))

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
        if not self._matches_template:
            return None
        if self._retention == "strip" and self.parse(prompt_ids, completion_ids).reasoning:
            return None
        self._begin_prompt()
        # The package does not bridge from reasoning that the model left open when it ended its turn. For closed
        # reasoning the same is appended after the end.
        completion_ids = self._with_closed_thinking(prompt_ids, completion_ids)
        prompt, completion = prompt_ids.tolist(), completion_ids.tolist()
        stored = prompt + completion
        bridged: Any = self._renderer.bridge_to_next_turn(
            prompt,
            completion,
            [template_message(m) for m in new_messages],
            tools=template_tools(tools),
        )
        # The package may cut tokens after the end of turn; a bridge that changes sampled tokens is not used.
        if bridged is None or bridged.token_ids[: len(stored)] != stored:
            return None
        return token_ids(bridged.token_ids[len(stored) :])

    def _with_closed_thinking(self, prompt_ids: TokenIds, completion_ids: TokenIds) -> TokenIds:
        reply, end = completion_ids[:-1], completion_ids[-1:]
        if self._retention != "preserve" or self._tags is None or not set(end) & self._tags.stop_ids:
            return completion_ids
        thinking = self._tags.thinking_at_end(prompt_ids + reply)
        return reply + token_ids([self._tags.think_end]) + end if thinking else completion_ids

    def parse(self, prompt_ids: TokenIds, completion_ids: TokenIds, *, calls: bool = True) -> Message:
        reader = self.reader(prompt_ids, calls=calls)
        return (
            read_whole(reader, completion_ids) if reader else self._parse_whole(prompt_ids, completion_ids, calls)
        )

    def _parse_whole(self, prompt_ids: TokenIds, completion_ids: TokenIds, calls: bool) -> Message:
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
        self._content.begin_prompt()
        self._whole.begin_prompt()

    def encode(self, text: str) -> TokenIds:
        self._begin_prompt()
        return token_ids(self._whole.encode(text))

    def decode(self, ids: TokenIds) -> str:
        return self._tokenizer.decode(ids)


class _PromptTokens(threading.local):
    """Tokens of the prompt that a thread is encoding. The package encodes it in many parts and has no limit."""

    count = 0


class _PackageTokenizer:
    """A tokenizer with the interface that `renderers` requires."""

    unk_token_id: int | None = None
    name_or_path = "local"

    def __init__(self, tokenizer: LayoutTokenizer, encoder: TextEncoder) -> None:
        self._tokenizer = tokenizer
        self._encoder = encoder
        self._prompt = _PromptTokens()

    def encode_like(self, other: _PackageTokenizer) -> None:
        self._encoder, self._prompt = other._encoder, other._prompt

    def begin_prompt(self) -> None:
        """What this thread encodes from now on belongs to one prompt, which must fit the context."""
        self._prompt.count = 0

    def encode(self, text: str, **_: Any) -> list[int]:
        ids = self._encoder.encode(text)
        self._prompt.count = self._encoder.added(self._prompt.count, len(ids))
        return ids

    def decode(self, token_ids: list[int] | int, **_: Any) -> str:
        return self._tokenizer.decode([token_ids] if isinstance(token_ids, int) else token_ids)

    def convert_tokens_to_ids(self, tokens: str | list[str]) -> int | list[int | None] | None:
        return (
            self._tokenizer.id_of(tokens) if isinstance(tokens, str) else list(map(self._tokenizer.id_of, tokens))
        )


def _is_readable(attempt: ParsedToolCall) -> bool:
    name: Any = attempt.name  # in JSON a name may be of any type
    return attempt.status == ToolCallParseStatus.OK and isinstance(name, str) and is_text(name)


def _tool_call(parsed: ParsedToolCall) -> ToolCall:
    arguments = parsed.arguments
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    if not is_text(text):  # a lone surrogate can be sent only as an escape
        text = json.dumps(arguments)
    return ToolCall(name=parsed.name or "", arguments=text)
