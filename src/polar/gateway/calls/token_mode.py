"""Token mode: the gateway renders the prompt and parses the reply; the engine sees token ids only.

A reply ends where the engine ends it, or earlier: at a stop text, or when the session's token budget is used up.
Cutting there is exact, because later tokens cannot have changed earlier ones. The call keeps the ids that spell a
stop text, as all sampled ids; the harness sees only what comes before them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import aclosing

from polar.engines.base import Engine, EngineInfo, GenerateRequest, Piece
from polar.gateway.calls.model_call import ModelCall, call_lost, check_piece, engine_failures
from polar.gateway.calls.threads import CallThreads
from polar.gateway.dialects.base import ChatRequest
from polar.gateway.dialects.problems import Overflow, Problem
from polar.gateway.slots import OpenSlot
from polar.tokens.base import Renderer, ReplyReader, bounded
from polar.tokens.forest import Attachment, Prompt, PromptBuilder
from polar.tokens.renderers.encoder import TooLong
from polar.tokens.replies.reply_text import deltas_of, overlap
from polar.tokens.sequences import digest_of
from polar.types import Delta, Message, Retention, TokenIds, token_ids

SHORT_CHARACTERS = 4096
"""Texts up to this size are rendered on the event loop: a millisecond at most. A thread costs a tenth of that."""
SHORT_REQUEST_BYTES = 2**18
"""Requests up to this size are matched on the event loop: a millisecond or two."""
SHORT_TOKENS = 1024
"""Pieces up to this size are decoded on the event loop: about a millisecond."""
UNFINISHED = "\ufffd"
"""A decoded text ends with this if its last token ends inside a character."""
LONGEST_CHARACTER_TOKENS = 64
"""At most this many ids wait for the end of a character."""


class TokenMode:
    def __init__(
        self, renderer: Renderer, engine: Engine, info: EngineInfo, threads: CallThreads | None = None
    ) -> None:
        self._renderer = renderer
        """Decodes replies."""
        self._bounded = bounded(renderer, info.context_tokens)
        """Renders prompts, and stops at the context's size."""
        self._retaining: dict[Retention, Renderer] = {}
        self._engine = engine
        self._context_tokens = info.context_tokens
        self._threads = threads or CallThreads()

    @property
    def takes_images(self) -> bool:
        return self._renderer.takes_images

    async def attach(self, slot: OpenSlot, request: ChatRequest) -> Prompt:
        try:
            async with slot.lock:
                if request.prompt is not None:
                    return await self._raw_prompt(request.prompt)
                attachment = await self._find(slot, request)
                builder = PromptBuilder(slot.forest, self._renderer_of(slot.lease.task.reasoning))
                bridged = await self._bridge(builder, attachment)
                return bridged or await self._threads.run(lambda: builder.render(attachment))
        except TooLong as error:
            raise Overflow(error.tokens, self._context_tokens) from None
        except Overflow:
            raise
        except (Exception, SystemExit) as error:  # a renderer is a plug-in, and a retry would fail again
            message = f"the model's template cannot render this conversation: {str(error)[:300]}"
            param = "messages" if request.prompt is None else "prompt"
            raise Problem(400, "not_renderable", message, param=param) from error

    def _renderer_of(self, retention: Retention) -> Renderer:
        if retention not in self._retaining:
            self._retaining[retention] = self._bounded.retaining(retention)
        return self._retaining[retention]

    async def _find(self, slot: OpenSlot, request: ChatRequest) -> Attachment:
        forest, history = slot.forest, (request.messages, request.tools)
        if request.size_bytes <= SHORT_REQUEST_BYTES or forest.new_characters(*history) <= SHORT_REQUEST_BYTES:
            return forest.find(*history)
        return await self._threads.run(lambda: forest.find(*history))

    async def _bridge(self, builder: PromptBuilder, attachment: Attachment) -> Prompt | None:
        if attachment.parent is None or attachment.new_characters <= SHORT_CHARACTERS:
            return builder.bridge(attachment)
        return await self._threads.run(lambda: builder.bridge(attachment))

    async def _raw_prompt(self, prompt: str | TokenIds) -> Prompt:
        if not isinstance(prompt, str) and len(prompt) >= self._context_tokens:
            raise Overflow(len(prompt), self._context_tokens)
        if len(prompt) <= SHORT_TOKENS:
            return self._encode_raw(prompt)
        return await self._threads.run(lambda: self._encode_raw(prompt))

    def _encode_raw(self, prompt: str | TokenIds) -> Prompt:
        """A prompt that the harness rendered itself: a root that no conversation continues."""
        ids = self._bounded.encode(prompt) if isinstance(prompt, str) else token_ids(prompt)
        text = prompt if isinstance(prompt, str) else self._renderer.decode(ids)
        return Prompt(
            parent_id=None,
            continues=False,
            new_prompt_ids=ids,
            prompt_ids=ids,
            prompt_digest=digest_of(ids),
            new_messages=(Message(role="user", content=text),),
        )

    async def sample(self, call: ModelCall) -> None:
        assert call.prompt is not None, "token mode renders the prompt before admission"
        call.begin(call.prompt)
        decoder = self._decoder(call, call.prompt.prompt_ids)
        with engine_failures(call.slot):
            async with aclosing(self._engine.generate(self._request(call, call.prompt.prompt_ids))) as pieces:
                async for piece in pieces:
                    deltas = await self._take(call, decoder, piece)
                    call.say(deltas, last=piece.finish_reason is not None)
                    if not decoder.stop_sequence:
                        call.check_limit(piece)
                    if len(call.ids) < call.given:  # cut before the engine's own end
                        call.finish_reason = "stop" if decoder.stop_sequence else "length"
                        break
            call.check_end()
        _, deltas = await self._decode(call, decoder, None)
        call.say(deltas, last=True)
        call.reasoning_tokens, call.stop_sequence = decoder.reasoning_tokens, decoder.stop_sequence

    def _request(self, call: ModelCall, prompt_ids: TokenIds) -> GenerateRequest:
        return GenerateRequest(
            prompt_ids=prompt_ids,
            max_tokens=call.max_tokens,
            sampling=call.sampling,
            stop_ids=self._renderer.stop_ids,
            session_id=call.slot.session_id,
            seed=call.seed,
            json_schema=call.request.json_schema,
        )

    async def _take(self, call: ModelCall, decoder: ReplyDecoder, piece: Piece) -> list[Delta]:
        """Keeps a piece up to the end of the reply, and decodes it. A piece that cannot be decoded is kept
        whole."""
        slot, ids = call.slot, _within_budget(call.slot, call.within_limit(piece))
        count, deltas = len(ids), list[Delta]()
        slot.sampled_tokens += count  # before any await: a parallel call must not spend them too
        try:
            check_piece(piece)
            count, deltas = await self._decode(call, decoder, ids)
        finally:
            slot.sampled_tokens -= len(ids) - count
            call.take(piece, count)
        return deltas

    def _decoder(self, call: ModelCall, prompt_ids: TokenIds) -> ReplyDecoder:
        raw, calls = call.request.prompt is not None, bool(call.request.tools)
        try:
            return ReplyDecoder(self._renderer, prompt_ids, call.stop, raw=raw, calls=calls)
        except (Exception, SystemExit) as error:
            raise call_lost(call.slot, "renderer", error) from error

    async def _decode(
        self, call: ModelCall, decoder: ReplyDecoder, ids: TokenIds | None
    ) -> tuple[int, list[Delta]]:
        """Decodes the next ids, or with None what is left at the end."""
        try:
            if ids is None:
                return 0, decoder.finish()
            if len(ids) <= SHORT_TOKENS:
                return decoder.feed(ids)
            return await self._threads.run(lambda: decoder.feed(ids))
        except (Exception, SystemExit) as error:  # a renderer is a plug-in
            raise call_lost(call.slot, "renderer", error) from error


def _within_budget(slot: OpenSlot, ids: TokenIds) -> TokenIds:
    """As many ids as the session's token budget has room for. Parallel calls share it, so it is checked per
    piece."""
    left = slot.tokens_left
    return ids if left is None else ids[: max(0, left)]


class ReplyDecoder:
    """Decodes one reply while it is sampled: ids in, deltas out, up to a stop text. If the family can only parse
    whole replies, all deltas come at the end."""

    def __init__(
        self,
        renderer: Renderer,
        prompt_ids: TokenIds,
        stop: tuple[str, ...],
        *,
        raw: bool,
        calls: bool = True,
    ) -> None:
        """`raw`: the prompt was no conversation. `calls`: tools were offered; otherwise what looks like a call is
        text."""
        self._renderer = renderer
        self._prompt_ids = prompt_ids
        self._calls = calls
        reader = RawReader(renderer) if raw else renderer.reader(prompt_ids, calls=calls)
        self._reader: ReplyReader | None = reader
        self._unread = token_ids()
        self._stop = StopSearch(stop)

    @property
    def stop_sequence(self) -> str:
        """The stop text that ended the reply, if any."""
        return self._stop.found

    @property
    def reasoning_tokens(self) -> int:
        return self._reader.reasoning_tokens if self._reader else 0

    def feed(self, ids: TokenIds) -> tuple[int, list[Delta]]:
        """How many of the ids belong to the reply, and their deltas. Fewer than given: a stop text ended it."""
        if self._reader is None:
            self._unread.extend(ids)
            return len(ids), []
        if not self._stop.texts:
            return len(ids), list(self._reader.feed(ids))
        deltas: list[Delta] = []
        for position, token_id in enumerate(ids):  # one at a time, to know which of them completes a stop text
            deltas += self._stop.cut(self._reader.feed(token_ids([token_id])))
            if self._stop.found:
                return position + 1, deltas
        return len(ids), deltas

    def finish(self) -> list[Delta]:
        if self._stop.found:
            return []
        if self._reader is not None:
            rest = self._reader.finish()
        else:
            rest = deltas_of(self._renderer.parse(self._prompt_ids, self._unread, calls=self._calls))
        return [*self._stop.cut(rest), *self._stop.rest()]


class RawReader:
    """Reads the reply to a prompt that was no conversation: text only."""

    reasoning_tokens = 0

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._pending = token_ids()

    def feed(self, ids: TokenIds) -> Sequence[Delta]:
        self._pending.extend(token_id for token_id in ids if token_id not in self._renderer.stop_ids)
        text = self._renderer.decode(self._pending)
        if text.endswith(UNFINISHED) and len(self._pending) < LONGEST_CHARACTER_TOKENS:
            return []
        self._pending = token_ids()
        return [Delta(content=text)] if text else []

    def finish(self) -> Sequence[Delta]:
        text = self._renderer.decode(self._pending)
        return [Delta(content=text)] if text else []


class StopSearch:
    """Searches growing content for stop texts, and holds back what may be the beginning of one."""

    def __init__(self, texts: tuple[str, ...]) -> None:
        self.texts = texts
        self.found = ""
        self._held = ""

    def cut(self, deltas: Iterable[Delta]) -> list[Delta]:
        if not self.texts:
            return list(deltas)
        before: list[Delta] = []
        for delta in deltas:
            if self.found:
                break
            if delta.content:
                before += self._search(delta.content)
            else:  # a stop text does not span a tool call
                before += [*self.rest(), delta]
        return before

    def rest(self) -> list[Delta]:
        held, self._held = self._held, ""
        return [Delta(content=held)] if held else []

    def _search(self, content: str) -> list[Delta]:
        whole = self._held + content
        found = min(((whole.find(text), text) for text in self.texts if text in whole), default=None)
        if found is not None:
            end, self.found = found
            self._held = ""
        else:
            end = len(whole) - max(overlap(whole, text) for text in self.texts)
            self._held = whole[end:]
        return [Delta(content=whole[:end])] if end else []
