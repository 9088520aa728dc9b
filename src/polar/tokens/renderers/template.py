"""A renderer for any model with a chat template: the template renders, no knowledge of the family is needed.

What a template writes after a reply is found by difference. A short stand-in conversation that ends with a reply
is rendered with and without the new messages; the longer text, from the end of that reply's turn on, is appended
to the exact tokens. Sampled text is never encoded. If the two texts differ before that point, nothing is bridged.

`preserve`: reasoning stays in its exact tokens as long as turns are bridged; a prompt that is rendered whole shows
what the template shows. `template`: a turn is not bridged if the template would rewrite what came before.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
from jinja2 import TemplateError
from pydantic import Field

from polar.errors import ConfigError
from polar.tokens.base import ReplyReader
from polar.tokens.renderers.chat_template import (
    ChatTemplate,
    calls_one_by_one,
    template_message,
    template_tools,
    unchanged,
)
from polar.tokens.renderers.content_encoding import ControlEscape, LayoutTokenizer
from polar.tokens.replies.id_tags import IdTagReader, IdTags
from polar.tokens.replies.reply_text import CLOSE, OPEN, TextTagReader, read_whole
from polar.types import Message, Retention, Strict, TokenIds, Tool, ToolCall, token_ids

ABSENT = -1
"""No token has this id."""
SYSTEM = Message(role="system", content="Be kind.")
USER = Message(role="user", content="Go on.")
REPLY = Message(role="assistant", content="So be it.")
REASONING = "Let me see."
"""The stand-in conversation: what a template writes after a reply does not depend on these words."""
_PROBE_TOOL = Tool(name="look", parameters={"type": "object", "properties": {}})
_CALL_AND_RESULT = (
    USER,
    Message(role="assistant", tool_calls=(ToolCall(name="look", arguments="{}", call_id="call_s_1_1_0"),)),
    Message(role="tool", content="Done.", tool_call_id="call_s_1_1_0"),
)
SHORT_ID = 9
"""Length of a tool-call id that Mistral's templates accept: letters and digits."""


class TemplateRenderer:
    class Options(Strict):
        tokenizer: Path
        """Folder with the model's tokenizer.json, and with its chat template."""
        chat_template: Path | None = None
        """Another template file, in place of the folder's."""
        settings: dict[str, Any] = Field(default={})
        """Further variables of the template, such as `enable_thinking`."""
        tool_calls: Literal["hermes", "none"] = "hermes"
        """How the model writes calls: hermes is JSON inside `<tool_call>`; none: calls are not read."""
        thinking: tuple[str, str] = ("<think>", "</think>")
        """Tokens around the reasoning. A model without them does not reason."""
        stop: tuple[str, ...] = ()
        """Tokens that end a reply. Default: the one with which the template ends a turn, the tokenizer's end of
        text, and those of the folder's generation_config.json."""

    takes_images = False
    _tokenizer: LayoutTokenizer
    _template: ChatTemplate
    _beginning: Sequence[Message]
    """Start of the stand-in conversation."""
    _end: int | None
    """The token with which the template ends a reply's turn; None: no control token."""
    _stop_ids: tuple[int, ...]
    _tags: IdTags | None
    """None: tags are text."""
    _token_bytes: Sequence[bytes]
    _retention: Retention = "preserve"
    _short_ids: bool = False
    """The template accepts tool-call ids only as nine letters and digits."""

    def __init__(self, options: Options) -> None:
        self._options = options

    async def load(self) -> None:
        await asyncio.to_thread(self.load_now)

    def load_now(self) -> None:
        options = self._options
        self._tokenizer = LayoutTokenizer(options.tokenizer)
        self._token_bytes = self._tokenizer.token_bytes
        if options.chat_template is not None and not options.chat_template.is_file():
            raise ConfigError(f"no chat template at {options.chat_template}")
        try:
            template = ChatTemplate.load(options.tokenizer, options.chat_template)
        except TemplateError as error:
            raise ConfigError(f"cannot read the chat template: {error}") from error
        if template is None:
            raise ConfigError(
                f"no chat template in {options.tokenizer}; name its file in the option `chat_template`"
            )
        self._template = template
        self._short_ids = self._wants_short_ids()
        self._beginning = self._find_beginning()
        self._end = self._find_end()
        self._stop_ids = self._find_stops()
        self._tags = self._find_tags()
        if options.tool_calls == "hermes":
            self._check_calls()

    def _wants_short_ids(self) -> bool:
        try:
            self._text(_CALL_AND_RESULT, [_PROBE_TOOL])
        except ValueError:
            try:
                self._text(list(map(_with_short_ids, _CALL_AND_RESULT)), [_PROBE_TOOL])
            except ValueError:
                return False
            return True
        return False

    def _check_calls(self) -> None:
        """Fails for a model whose calls would never be read. A template without calls is for conversations without
        tools."""
        try:
            text = self._text(_CALL_AND_RESULT, [_PROBE_TOOL])
        except ValueError:
            return
        if OPEN not in text:
            raise ConfigError(
                f"the chat template does not write tool calls as {OPEN}, so this model's calls would not be read: "
                'use its family (renderer "family"), let the engine render prompts ([model] mode = "chat"), or'
                ' set tool_calls = "none" for conversations without tools'
            )

    def _find_beginning(self) -> Sequence[Message]:
        """With a system message if the template accepts one, because the template may move it later."""
        try:
            self._text([USER, REPLY, USER], ())
        except ValueError as error:
            raise ConfigError(f"the chat template refuses every conversation: {error}") from error
        try:
            self._text([SYSTEM, USER], ())
        except ValueError:
            return [USER]
        return [SYSTEM, USER]

    def _find_end(self) -> int | None:
        """The control token after a reply."""
        text = self._text([USER, REPLY, USER], ())
        reply = text.find(REPLY.content)
        found = self._tokenizer.next_control(text, reply) if reply >= 0 else None
        return found[0] if found else None

    def _find_stops(self) -> tuple[int, ...]:
        if self._options.stop:
            return tuple(self._required(name) for name in self._options.stop)
        path = self._options.tokenizer / "generation_config.json"
        config: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        configured: Any = config.get("eos_token_id")
        ends = [self._end, self._tokenizer.id_of(self._template.special["eos_token"])]
        ends += configured if isinstance(configured, list) else [configured]
        stops = tuple(dict.fromkeys(end for end in ends if end is not None))
        if not stops:
            raise ConfigError(
                "neither the template nor the tokenizer defines the end of a reply; set the option `stop`"
            )
        return stops

    def _find_tags(self) -> IdTags | None:
        find = self._tokenizer.id_of
        thinking = [find(tag) for tag in self._options.thinking]
        calls = [find(tag) for tag in (OPEN, CLOSE)] if self._options.tool_calls == "hermes" else [ABSENT, ABSENT]
        if None in thinking:
            thinking = [ABSENT, ABSENT]
        if None in calls and ABSENT not in thinking:
            raise ConfigError(
                f"the tokenizer has tokens for {' and '.join(self._options.thinking)} but none for {OPEN}, so the "
                'model writes calls differently; set tool_calls = "none"'
            )
        ids = [token_id for token_id in (*thinking, *calls) if token_id is not None]
        return IdTags(*ids, stop_ids=frozenset(self._stop_ids)) if len(ids) == 4 else None

    def _required(self, name: str) -> int:
        token_id = self._tokenizer.id_of(name)
        if token_id is None:
            raise ConfigError(f"the tokenizer has no token {name!r}; correct the option `stop`")
        return token_id

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return self._stop_ids

    @property
    def fingerprint(self) -> str:
        options = self._options.model_dump_json(exclude={"tokenizer", "chat_template"})
        template = f"{self._template.source}{self._template.special}"
        whole = f"{self._tokenizer.fingerprint}{template}{options}{self._stop_ids}{self._retention}"
        return hashlib.sha256(whole.encode()).hexdigest()[:16]

    def retaining(self, retention: Retention) -> TemplateRenderer:
        if retention == self._retention:
            return self
        other = copy(self)
        other._retention = retention
        return other

    def bounded(self, context_tokens: int) -> TemplateRenderer:
        other = copy(self)
        other._tokenizer = self._tokenizer.bounded(context_tokens)
        return other

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> TokenIds:
        if self._retention == "strip":
            messages = [msgspec.structs.replace(message, reasoning="") for message in messages]
        return calls_one_by_one(self.own_layout, messages, tools)

    def own_layout(self, messages: Sequence[Message], tools: Sequence[Tool]) -> TokenIds:
        """The template's rendering of exactly these messages."""
        escape = self._escaping(messages, tools)
        try:
            text = self._text(messages, tools, escape.escape)
        except ValueError as refusal:
            raise ValueError(f"the model's chat template refuses this conversation: {refusal}") from refusal
        return token_ids(self._tokenizer.ids(text, escape))

    def by_template(self, messages: Sequence[Message], tools: Sequence[Tool]) -> TokenIds | None:
        """The template's text, encoded as a whole. Only for conversations that spell no control token."""
        return self.encode(self._text(messages, tools))

    def _escaping(self, messages: Sequence[Message], tools: Sequence[Tool]) -> ControlEscape:
        return self._tokenizer.escaping(list(map(template_message, messages)), template_tools(tools))

    def _text(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        escape: Callable[[Any], Any] = unchanged,
        *,
        opens_turn: bool = True,
    ) -> str:
        """`opens_turn`: up to the model's next turn. Raises `ValueError` with the template's reason to refuse."""
        settings = {**self._options.settings, "add_generation_prompt": opens_turn}
        if self._short_ids:
            messages = list(map(_with_short_ids, messages))
        fields = list(map(template_message, messages))
        try:
            return self._template.text(fields, template_tools(tools), settings, escape=escape)
        except Exception as error:  # a template may raise anything
            raise ValueError(str(error) or type(error).__name__) from error

    def bridge(
        self,
        prompt_ids: TokenIds,
        completion_ids: TokenIds,
        new_messages: Sequence[Message],
        tools: Sequence[Tool],
    ) -> TokenIds | None:
        roles = {message.role for message in new_messages}
        if not roles or "assistant" in roles or self._end not in self._stop_ids:
            return None
        reply = self.parse(prompt_ids, completion_ids)
        if (self._retention == "strip" and reply.reasoning) or ("tool" in roles and not reply.tool_calls):
            return None
        calls = _answered(reply.tool_calls if "tool" in roles else (), new_messages)
        needed = _needed(tools, calls)
        appended = self._appended(calls, new_messages, needed)
        if len(calls) > 1 and appended != self._appended(_swapped(calls), new_messages, needed):
            return None  # the template shows ids, and which result belongs to which call is a guess
        return None if appended is None else token_ids([*self._close(prompt_ids, completion_ids), *appended])

    def _close(self, prompt_ids: TokenIds, completion_ids: TokenIds) -> list[int]:
        """Ends a turn that did not end as the template ends it. These tokens are context: they were not
        sampled."""
        assert self._end is not None
        if completion_ids[-1:] == token_ids([self._end]):
            return []
        thinks = self._tags is not None and self._tags.thinking_at_end(prompt_ids + completion_ids)
        return [self._tags.think_end, self._end] if self._tags and thinks else [self._end]

    def _appended(
        self, calls: Sequence[ToolCall], new_messages: Sequence[Message], tools: Sequence[Tool]
    ) -> list[int] | None:
        """What the template writes for the new messages after a reply with these calls. None if the new messages
        change how the reply's turn, or anything before it, is rendered."""
        as_template = self._retention == "template"
        reply = msgspec.structs.replace(REPLY, tool_calls=tuple(calls), reasoning=REASONING if as_template else "")
        before = [*self._beginning, *(_reasoned_turn(tools) if as_template else ())]
        escape = self._escaping([*before, reply, *new_messages], tools)
        render = partial(self._try_text, tools=tools, escape=escape)
        start = render(before, opens_turn=False)
        whole = render([*before, reply, *new_messages])
        as_last = render([*before, reply], opens_turn=False)
        if as_template:
            known = [as_last] if as_last.startswith(render(before)) else []
        else:  # a template that cuts reasoning once the conversation continues is overruled
            known = [as_last, render([*before, reply, USER])]
        so_far = self._ended(start, whole)
        if not so_far or so_far not in [self._ended(start, text) for text in known]:
            return None
        return self._tokenizer.ids(whole[len(so_far) :], escape)

    def _try_text(
        self, messages: Sequence[Message], tools: Sequence[Tool], escape: ControlEscape, *, opens_turn: bool = True
    ) -> str:
        """Empty if the template refuses."""
        try:
            return self._text(messages, tools, escape.escape, opens_turn=opens_turn)
        except ValueError:
            return ""

    def _ended(self, start: str, text: str) -> str:
        """The text up to the end of the first turn after `start`; empty if it does not begin with `start`."""
        position = len(start)
        while start and text.startswith(start) and (found := self._tokenizer.next_control(text, position)):
            token_id, position = found
            if token_id == self._end:
                return text[:position]
        return ""

    def parse(self, prompt_ids: TokenIds, completion_ids: TokenIds, *, calls: bool = True) -> Message:
        return read_whole(self.reader(prompt_ids, calls=calls), completion_ids)

    def reader(self, prompt_ids: TokenIds, *, calls: bool = True) -> ReplyReader:
        if self._tags is None:
            return TextTagReader(self._tokenizer.bytes_of, self._stop_ids, calls=calls)
        thinking = self._tags.thinking_at_end(prompt_ids)
        return IdTagReader(self._tags, self._token_bytes, thinking=thinking, calls=calls)

    def encode(self, text: str) -> TokenIds:
        return token_ids(self._tokenizer.whole_encoder.encode(text))

    def decode(self, ids: TokenIds) -> str:
        return self._tokenizer.decode(ids)


def _with_short_ids(message: Message) -> Message:
    calls = tuple(msgspec.structs.replace(call, call_id=_short_id(call.call_id)) for call in message.tool_calls)
    answered = _short_id(message.tool_call_id) if message.role == "tool" else message.tool_call_id
    return msgspec.structs.replace(message, tool_calls=calls, tool_call_id=answered)


def _short_id(call_id: str) -> str:
    """Equal for equal ids; an id that is short already stays."""
    if len(call_id) == SHORT_ID and call_id.isascii() and call_id.isalnum():
        return call_id
    return hashlib.blake2b(call_id.encode(), digest_size=8).hexdigest()[:SHORT_ID]


def _reasoned_turn(tools: Sequence[Tool]) -> list[Message]:
    """An earlier turn with reasoning: a template may rewrite that one and not the last."""
    if not tools:
        return [msgspec.structs.replace(REPLY, reasoning=REASONING), USER]
    call = ToolCall(name=tools[0].name, arguments="{}", call_id="earlier")
    called = msgspec.structs.replace(REPLY, reasoning=REASONING, tool_calls=(call,))
    return [called, Message(role="tool", content="Done.", tool_call_id=call.call_id)]


def _answered(calls: Sequence[ToolCall], new_messages: Sequence[Message]) -> list[ToolCall]:
    """Sampled calls have no ids yet. They get those of the results, which usually come in the same order."""
    ids = [message.tool_call_id for message in new_messages if message.role == "tool"]
    named = zip(calls, [*ids, *([""] * len(calls))], strict=False)
    return [msgspec.structs.replace(call, call_id=call_id) for call, call_id in named]


def _swapped(calls: Sequence[ToolCall]) -> list[ToolCall]:
    """Each call with the id of another."""
    ids = [call.call_id for call in reversed(calls)]
    return [msgspec.structs.replace(call, call_id=call_id) for call, call_id in zip(calls, ids, strict=True)]


def _needed(tools: Sequence[Tool], calls: Sequence[ToolCall]) -> Sequence[Tool]:
    """The tools of the stand-in conversation: some if the real one has tools, but not all, which can be many."""
    called = {call.name for call in calls}
    return [tool for tool in tools if tool.name in called] or tools[:1]
