"""Token mode: the gateway lays the prompt out and reads the reply, the engine sees ids alone.

A reply ends where the engine ends it, or earlier: at a stop text, or when the session's budget of tokens is used
up. Cutting there is exact, because what is sampled later cannot have changed what came before.
"""

from __future__ import annotations

from contextlib import aclosing

from polar.engines.base import Engine, EngineInfo, GenerateRequest, Piece
from polar.gateway.calls.admission import Admission, Admitted, refuse_images
from polar.gateway.calls.generation import Generation
from polar.gateway.calls.sampling import Sampled, call_lost, check_piece, engine_failures
from polar.gateway.calls.threads import CallThreads
from polar.gateway.dialects.base import ChatRequest, Overflow, Problem
from polar.gateway.slots import OpenSlot
from polar.tokens.base import Renderer, bounded
from polar.tokens.forest import Attachment, Prompt, PromptBuilder
from polar.tokens.renderers.encoder import TooLong
from polar.tokens.replies.reply_decoder import ReplyDecoder
from polar.tokens.sequences import digest_of
from polar.types import Delta, Message, Retention, TokenIds, token_ids

SHORT_CHARACTERS = 4096
"""Texts up to this size are rendered on the event loop: about a millisecond at most, where the way to a thread and
back alone costs a tenth of one."""
SHORT_REQUEST_BYTES = 2**18
"""Requests that bring no more than this are matched on the event loop: a millisecond or two."""
SHORT_TOKENS = 1024
"""So many are read on the event loop: about a millisecond."""


class TokenMode:
    def __init__(
        self, renderer: Renderer, engine: Engine, info: EngineInfo, threads: CallThreads | None = None
    ) -> None:
        self._renderer = renderer
        self._bounded = bounded(renderer, info.context_tokens)
        """Renders prompts; the other reads replies."""
        self._retaining: dict[Retention, Renderer] = {}
        self._engine = engine
        self._admission = Admission(info)
        self._context_tokens = info.context_tokens
        self._threads = threads or CallThreads()

    async def admit(self, slot: OpenSlot, request: ChatRequest) -> Admitted:
        sampling = self._admission.check(slot, request)
        return self._admission.admit(slot, request, sampling, await self._prepare(slot, request))

    async def count(self, slot: OpenSlot, request: ChatRequest) -> int:
        return len((await self._prepare(slot, request)).prompt_ids)

    async def _prepare(self, slot: OpenSlot, request: ChatRequest) -> Prompt:
        """The request as tokens. Changes nothing: a prompt may be prepared only to be counted."""
        if not self._renderer.takes_images:
            refuse_images(request)
        self._admission.refuse_by_size(request.messages)
        try:
            async with slot.lock:
                if request.prompt is not None:
                    return await self._raw(request.prompt)
                place = await self._find(slot, request)
                prompting = PromptBuilder(slot.forest, self._renderer_of(slot.lease.task.reasoning))
                bridged = await self._bridge(prompting, place)
                return bridged or await self._threads.run(lambda: prompting.render(place))
        except TooLong as error:
            raise Overflow(error.tokens, self._context_tokens) from None
        except Overflow:
            raise
        except (Exception, SystemExit) as error:  # a renderer is a plug-in, and the same request would fail again
            message = f"the model's template cannot render this conversation: {str(error)[:300]}"
            param = "messages" if request.prompt is None else "prompt"
            raise Problem(400, "not_renderable", message, param=param) from error

    def _renderer_of(self, retention: Retention) -> Renderer:
        if retention not in self._retaining:
            self._retaining[retention] = self._bounded.retaining(retention)
        return self._retaining[retention]

    async def _find(self, slot: OpenSlot, request: ChatRequest) -> Attachment:
        forest, asked = slot.forest, (request.messages, request.tools)
        if request.size_bytes <= SHORT_REQUEST_BYTES or forest.new_characters(*asked) <= SHORT_REQUEST_BYTES:
            return forest.find(*asked)
        return await self._threads.run(lambda: forest.find(*asked))

    async def _bridge(self, prompting: PromptBuilder, place: Attachment) -> Prompt | None:
        if place.parent is None or place.new_characters <= SHORT_CHARACTERS:
            return prompting.bridge(place)
        return await self._threads.run(lambda: prompting.bridge(place))

    async def _raw(self, prompt: str | TokenIds) -> Prompt:
        if not isinstance(prompt, str) and len(prompt) >= self._context_tokens:
            raise Overflow(len(prompt), self._context_tokens)
        if len(prompt) <= SHORT_TOKENS:
            return self._laid_out(prompt)
        return await self._threads.run(lambda: self._laid_out(prompt))

    def _laid_out(self, prompt: str | TokenIds) -> Prompt:
        """A prompt that the harness laid out itself: a root of its own, which no conversation goes on from."""
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

    async def sample(self, slot: OpenSlot, generation: Generation, admitted: Admitted, sampled: Sampled) -> None:
        assert admitted.prompt is not None, "token mode lays prompts out when it admits"
        sampled.begin(admitted.prompt, admitted.max_tokens)
        speech = self._speech(slot, generation, admitted)
        with engine_failures(slot):
            async with aclosing(self._engine.generate(self._request(slot, generation, admitted))) as pieces:
                async for piece in pieces:
                    said = await self._take(slot, speech, sampled, piece)
                    generation.say(said, last=piece.finish_reason is not None)
                    if not speech.stop_sequence:
                        sampled.check_limit(piece)
                    if len(sampled.ids) < sampled.given:  # cut before the engine's own end
                        sampled.finish_reason = "stop" if speech.stop_sequence else "length"
                        break
            sampled.check_end()
        _, said = await self._read(slot, speech, None)
        generation.say(said, last=True)
        sampled.reasoning_tokens, sampled.stop_sequence = speech.reasoning_tokens, speech.stop_sequence

    async def _take(self, slot: OpenSlot, speech: ReplyDecoder, sampled: Sampled, piece: Piece) -> list[Delta]:
        """Keeps a piece up to where the reply ends, and says what it says. A piece that cannot be read is kept
        whole: what was sampled is lost for no reason."""
        ids = _within(slot, sampled.within_limit(piece))
        count, said = len(ids), list[Delta]()
        slot.sampled_tokens += count  # at once: a call beside this one is not to spend them too
        try:
            check_piece(piece)
            count, said = await self._read(slot, speech, ids)
        finally:
            slot.sampled_tokens -= len(ids) - count
            sampled.take(piece, count)
        return said

    def _request(self, slot: OpenSlot, generation: Generation, admitted: Admitted) -> GenerateRequest:
        assert admitted.prompt is not None
        return GenerateRequest(
            prompt_ids=admitted.prompt.prompt_ids,
            max_tokens=admitted.max_tokens,
            sampling=admitted.sampling,
            stop_ids=self._renderer.stop_ids,
            session_id=slot.session_id,
            seed=admitted.seed,
            json_schema=generation.asked.request.json_schema,
        )

    def _speech(self, slot: OpenSlot, generation: Generation, admitted: Admitted) -> ReplyDecoder:
        assert admitted.prompt is not None
        request, prompt_ids = generation.asked.request, admitted.prompt.prompt_ids
        raw, calls = request.prompt is not None, bool(request.tools)
        try:
            return ReplyDecoder(self._renderer, prompt_ids, admitted.call_id, admitted.stop, raw=raw, calls=calls)
        except (Exception, SystemExit) as error:
            raise call_lost(slot, "renderer", error) from error

    async def _read(self, slot: OpenSlot, speech: ReplyDecoder, ids: TokenIds | None) -> tuple[int, list[Delta]]:
        """Reads the next ids, or the rest when there are no more."""
        try:
            if ids is None:
                return 0, speech.finish()
            if len(ids) <= SHORT_TOKENS:
                return speech.feed(ids)
            return await self._threads.run(lambda: speech.feed(ids))
        except (Exception, SystemExit) as error:  # a renderer is a plug-in
            raise call_lost(slot, "renderer", error) from error


def _within(slot: OpenSlot, ids: TokenIds) -> TokenIds:
    """As many ids as the session's budget still has room for. Calls of one session may run side by side, so this
    is known only now."""
    left = slot.tokens_left
    return ids if left is None else ids[: max(0, left)]
