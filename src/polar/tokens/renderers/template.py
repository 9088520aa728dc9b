"""A renderer for any model that has a chat template: the template lays out, nothing of a family is known.

What a template writes after a reply is found by difference. A short stand-in conversation that ends with a reply
is laid out with and without what is new; from the end of that reply's turn on, the longer text is what is appended
to the exact tokens. Sampled text is never encoded. Where the two do not agree up to there, nothing is bridged.

Preserved thinking stays in its exact tokens as long as turns are bridged; what is rendered whole shows of it what
the template shows. By the template's own habit nothing is bridged where it would rewrite what came before.
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
from polar.tokens.renderers.chat_template import OwnTemplate, as_it_is, calls_one_by_one, wire_message, wire_tools
from polar.tokens.renderers.content_encoding import Disguise, LayoutTokenizer
from polar.tokens.replies.call_block import CLOSE, OPEN
from polar.tokens.replies.id_tags import IdTagReader, IdTags
from polar.tokens.replies.reply_text import read_whole
from polar.tokens.replies.tool_calls import TextTagReader
from polar.types import Message, Retention, Strict, TokenIds, Tool, ToolCall, token_ids

ABSENT = -1
"""No token has this id."""
TOLD = Message(role="system", content="Be kind.")
ASKED = Message(role="user", content="Go on.")
SAID = Message(role="assistant", content="So be it.")
THOUGHT = "Let me see."
"""They stand for what was said before: what a template writes after a reply does not depend on their words."""
_PROBE_TOOL = Tool(name="look", parameters={"type": "object", "properties": {}})
_CALL_AND_RESULT = (
    ASKED,
    Message(role="assistant", tool_calls=(ToolCall(name="look", arguments="{}", call_id="call_s_1_1_0"),)),
    Message(role="tool", content="Done.", tool_call_id="call_s_1_1_0"),
)
SHORT_ID = 9
"""Letters and digits, as Mistral's templates want them."""


class TemplateRenderer:
    class Options(Strict):
        tokenizer: Path
        """Folder with the model's tokenizer.json, and with its chat template."""
        chat_template: Path | None = None
        """Another file with a template, if not the folder's own is wanted."""
        settings: dict[str, Any] = Field(default={})
        """What the template is told besides the conversation, such as `enable_thinking`."""
        tool_calls: Literal["hermes", "none"] = "hermes"
        """How the model writes calls: as `<tool_call>` with JSON in it, or in a way that is not read."""
        thinking: tuple[str, str] = ("<think>", "</think>")
        """Tokens around the thinking. A model that does not have them does not think."""
        stop: tuple[str, ...] = ()
        """Tokens that end a reply. Left out: the one with which the template ends a turn, the tokenizer's end of
        text, and those of the folder's generation_config.json."""

    takes_images = False
    _tokenizer: LayoutTokenizer
    _template: OwnTemplate
    _beginning: Sequence[Message]
    """Of a stand-in conversation."""
    _end: int | None
    """With which the template ends a reply's turn; None: with no control token."""
    _stop_ids: tuple[int, ...]
    _tags: IdTags | None
    """None: calls are read in the text."""
    _retention: Retention = "preserve"
    _short_ids: bool = False
    """Ids of calls are shown as nine letters and digits, without which some templates refuse."""

    def __init__(self, options: Options) -> None:
        self._options = options

    async def load(self) -> None:
        await asyncio.to_thread(self.load_now)

    def load_now(self) -> None:
        options = self._options
        self._tokenizer = LayoutTokenizer(options.tokenizer)
        if options.chat_template is not None and not options.chat_template.is_file():
            raise ConfigError(f"no chat template at {options.chat_template}")
        try:
            template = OwnTemplate.found_in(options.tokenizer, options.chat_template)
        except TemplateError as error:
            raise ConfigError(f"the chat template cannot be read: {error}") from error
        if template is None:
            raise ConfigError(
                f"no chat template in {options.tokenizer}; name its file in the option `chat_template`"
            )
        self._template = template
        self._short_ids = self._wants_short_ids()
        self._beginning = self._found_beginning()
        self._end = self._found_end()
        self._stop_ids = self._found_stops()
        self._tags = self._found_tags()
        if options.tool_calls == "hermes":
            self._check_calls()

    def _wants_short_ids(self) -> bool:
        """Whether the template takes calls only with ids as its provider makes them."""
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
        """A model that writes its calls in another way than they are read would never get a tool run. One whose
        template knows no calls is for conversations without tools."""
        try:
            text = self._text(_CALL_AND_RESULT, [_PROBE_TOOL])
        except ValueError:
            return
        if OPEN not in text:
            raise ConfigError(
                f"the chat template does not write tool calls as {OPEN}, so this model's calls would not be read: "
                'use its family (renderer "family"), let the engine lay prompts out ([model] mode = "chat"), or'
                ' set tool_calls = "none" for conversations without tools'
            )

    def _found_beginning(self) -> Sequence[Message]:
        """With a system message where the template takes one: it may come to stand elsewhere later."""
        try:
            self._text([ASKED, SAID, ASKED], ())
        except ValueError as error:
            raise ConfigError(f"the chat template refuses every conversation: {error}") from error
        try:
            self._text([TOLD, ASKED], ())
        except ValueError:
            return [ASKED]
        return [TOLD, ASKED]

    def _found_end(self) -> int | None:
        """The control token behind a reply."""
        text = self._text([ASKED, SAID, ASKED], ())
        said = text.find(SAID.content)
        found = self._tokenizer.next_control(text, said) if said >= 0 else None
        return found[0] if found else None

    def _found_stops(self) -> tuple[int, ...]:
        if self._options.stop:
            return tuple(self._required(name) for name in self._options.stop)
        path = self._options.tokenizer / "generation_config.json"
        config: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        configured: Any = config.get("eos_token_id")
        ends = [self._end, self._tokenizer.id_of(self._template.special["eos_token"])]
        ends += configured if isinstance(configured, list) else [configured]
        stops = tuple(dict.fromkeys(end for end in ends if end is not None))
        if not stops:
            raise ConfigError("neither template nor tokenizer say what ends a reply; name it in the option `stop`")
        return stops

    def _found_tags(self) -> IdTags | None:
        find = self._tokenizer.id_of
        thinking = [find(tag) for tag in self._options.thinking]
        calls = [find(tag) for tag in (OPEN, CLOSE)] if self._options.tool_calls == "hermes" else [ABSENT, ABSENT]
        if None in thinking:
            thinking = [ABSENT, ABSENT]
        if None in calls and ABSENT not in thinking:
            raise ConfigError(
                f"the tokenizer has tokens for {' and '.join(self._options.thinking)} and none for {OPEN}: "
                'this way of calls is not the model\'s; set tool_calls = "none"'
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
        """What the template makes of exactly these messages."""
        disguise = self._disguise(messages, tools)
        try:
            text = self._text(messages, tools, disguise.put_on)
        except ValueError as refusal:
            raise ValueError(f"the model's chat template refuses this conversation: {refusal}") from refusal
        return token_ids(self._tokenizer.ids(text, disguise))

    def by_template(self, messages: Sequence[Message], tools: Sequence[Tool]) -> TokenIds | None:
        """The template's text as the tokenizer encodes it as a whole. Only for conversations whose text spells no
        control token."""
        return self.encode(self._text(messages, tools))

    def _disguise(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Disguise:
        return self._tokenizer.disguise(list(map(wire_message, messages)), wire_tools(tools))

    def _text(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        disguise: Callable[[Any], Any] = as_it_is,
        *,
        opens_turn: bool = True,
    ) -> str:
        """`opens_turn`: as far as the model's next turn. A `ValueError` says why the template refuses."""
        settings = {**self._options.settings, "add_generation_prompt": opens_turn}
        if self._short_ids:
            messages = list(map(_with_short_ids, messages))
        wire = list(map(wire_message, messages))
        try:
            return self._template.text(wire, wire_tools(tools), settings, disguise=disguise)
        except Exception as error:  # a template raises what it likes
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
        if len(calls) > 1 and appended != self._appended(_confused(calls), new_messages, needed):
            return None  # it tells results by their ids, and whose result is whose is a guess
        return None if appended is None else token_ids([*self._close(prompt_ids, completion_ids), *appended])

    def _close(self, prompt_ids: TokenIds, completion_ids: TokenIds) -> list[int]:
        """What ends a turn that did not end as the template ends it: context, which nobody sampled."""
        assert self._end is not None
        if completion_ids[-1:] == token_ids([self._end]):
            return []
        thinks = self._tags is not None and self._tags.thinking_at_end(prompt_ids + completion_ids)
        return [self._tags.think_end, self._end] if self._tags and thinks else [self._end]

    def _appended(
        self, calls: Sequence[ToolCall], new_messages: Sequence[Message], tools: Sequence[Tool]
    ) -> list[int] | None:
        """What the template writes for the new messages after a reply with these calls. None where the turn of the
        reply is not the one it was, or where something before it has changed."""
        by_habit = self._retention == "template"
        said = msgspec.structs.replace(SAID, tool_calls=tuple(calls), reasoning=THOUGHT if by_habit else "")
        before = [*self._beginning, *(_thought_before(tools) if by_habit else ())]
        disguise = self._disguise([*before, said, *new_messages], tools)
        lay_out = partial(self._tried, tools=tools, disguise=disguise)
        start = lay_out(before, opens_turn=False)
        whole = lay_out([*before, said, *new_messages])
        as_last = lay_out([*before, said], opens_turn=False)
        if by_habit:
            known = [as_last] if as_last.startswith(lay_out(before)) else []
        else:  # that a template cuts thinking once the conversation goes on is overruled
            known = [as_last, lay_out([*before, said, ASKED])]
        so_far = self._ended(start, whole)
        if not so_far or so_far not in [self._ended(start, text) for text in known]:
            return None
        return self._tokenizer.ids(whole[len(so_far) :], disguise)

    def _tried(
        self, messages: Sequence[Message], tools: Sequence[Tool], disguise: Disguise, *, opens_turn: bool = True
    ) -> str:
        """Empty where the template refuses."""
        try:
            return self._text(messages, tools, disguise.put_on, opens_turn=opens_turn)
        except ValueError:
            return ""

    def _ended(self, start: str, text: str) -> str:
        """The text up to the end of the first turn after its start; empty where it starts in another way."""
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
        return IdTagReader(self._tags, self._tokenizer.token_bytes, thinking=thinking, calls=calls)

    def encode(self, text: str) -> TokenIds:
        return token_ids(self._tokenizer.encode_whole(text))

    def decode(self, ids: TokenIds) -> str:
        return self._tokenizer.decode(ids)


def _with_short_ids(message: Message) -> Message:
    calls = tuple(msgspec.structs.replace(call, call_id=_short_id(call.call_id)) for call in message.tool_calls)
    answered = _short_id(message.tool_call_id) if message.role == "tool" else message.tool_call_id
    return msgspec.structs.replace(message, tool_calls=calls, tool_call_id=answered)


def _short_id(call_id: str) -> str:
    """The same for the same id; one that is short already stays."""
    if len(call_id) == SHORT_ID and call_id.isascii() and call_id.isalnum():
        return call_id
    return hashlib.blake2b(call_id.encode(), digest_size=8).hexdigest()[:SHORT_ID]


def _thought_before(tools: Sequence[Tool]) -> list[Message]:
    """A turn in which the model has thought, too: a template may rewrite that one and not the last."""
    if not tools:
        return [msgspec.structs.replace(SAID, reasoning=THOUGHT), ASKED]
    call = ToolCall(name=tools[0].name, arguments="{}", call_id="earlier")
    called = msgspec.structs.replace(SAID, reasoning=THOUGHT, tool_calls=(call,))
    return [called, Message(role="tool", content="Done.", tool_call_id=call.call_id)]


def _answered(calls: Sequence[ToolCall], new_messages: Sequence[Message]) -> list[ToolCall]:
    """Calls have no ids when they are sampled; their results, which mostly come in the same order, have."""
    ids = [message.tool_call_id for message in new_messages if message.role == "tool"]
    named = zip(calls, [*ids, *([""] * len(calls))], strict=False)
    return [msgspec.structs.replace(call, call_id=call_id) for call, call_id in named]


def _confused(calls: Sequence[ToolCall]) -> list[ToolCall]:
    """Each with the id of another."""
    ids = [call.call_id for call in reversed(calls)]
    return [msgspec.structs.replace(call, call_id=call_id) for call, call_id in zip(calls, ids, strict=True)]


def _needed(tools: Sequence[Tool], calls: Sequence[ToolCall]) -> Sequence[Tool]:
    """A stand-in conversation has tools where the real one has them, but not all of them: they can be many."""
    called = {call.name for call in calls}
    return [tool for tool in tools if tool.name in called] or tools[:1]
