"""A request before it is sampled: refused with a status, or turned into tokens and limits.

All that can fail with a status fails here, before a byte of the reply is sent.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from pydantic import ValidationError

from polar.engines.base import EngineInfo
from polar.errors import failure_of
from polar.gateway.dialects.base import ChatRequest, Overflow, Problem
from polar.gateway.slots import OpenSlot
from polar.tokens.base import Renderer
from polar.tokens.digest import digest_of
from polar.tokens.forest import CallForest, Place, PreparedPrompt
from polar.types import Message, Sampling, token_ids

T = TypeVar("T")
SHORT_CHARACTERS = 4096
"""Texts up to this size are rendered on the event loop: about a millisecond at most, where the way to a thread and
back alone costs a tenth of one."""


class Admitted(msgspec.Struct, frozen=True):
    """A request that will be sampled."""

    call_id: str
    prompt: PreparedPrompt
    sampling: Sampling
    """The task's, and the harness's where the task leaves it to the harness."""
    stop: tuple[str, ...]
    max_tokens: int
    seed: int
    arrived: float
    rendered: float

    def recorded(self, request: ChatRequest) -> dict[str, Any]:
        """How the call is sampled, as it is kept with the call."""
        used = self.sampling.model_dump(include={"temperature", "top_p", "top_k", "min_p"})
        further = {"stop": list(self.stop), "json_schema": request.json_schema, "asked": request.asked}
        limits = {"seed": self.seed, "max_tokens": self.max_tokens}
        return {**used, **limits, **{name: value for name, value in further.items() if value}}


class Admission:
    def __init__(self, renderer: Renderer, info: EngineInfo) -> None:
        self._renderer = renderer
        self._info = info
        self.rendering = asyncio.Lock()
        """Tokenizers are not safe to share between threads at the same moment."""

    async def admit(self, slot: OpenSlot, request: ChatRequest) -> Admitted:
        arrived = time.time()
        slot.check()
        if request.json_schema is not None and not self._info.constrains:
            raise Problem(400, "not_supported", "this engine cannot hold a reply to a JSON schema")
        sampling = _sampling(slot.lease.task.sampling, request)
        try:
            prompt = await self.prepare(slot, request)
        except Problem as problem:
            if problem.__cause__ is not None:
                slot.engine_failure = failure_of("renderer", problem.__cause__)
            raise
        size, context = len(prompt.prompt_ids), self._info.context_tokens
        if size >= context:
            raise Overflow(size, context)
        number = slot.admit()  # only now: a request that is refused costs nothing
        session = slot.lease.session
        return Admitted(
            call_id=f"{session.session_id}.{session.attempt}.{number}",
            prompt=prompt,
            sampling=sampling,
            stop=sampling.stop or request.stop,
            max_tokens=slot.reply_limit(request.max_tokens, context - size),
            seed=_seed(slot, sampling, number),
            arrived=arrived,
            rendered=time.time(),
        )

    async def prepare(self, slot: OpenSlot, request: ChatRequest) -> PreparedPrompt:
        """The request as tokens. Changes nothing: a prompt may be prepared only to be counted."""
        if not self._renderer.takes_images:
            _refuse_images(request.messages)
        try:
            async with slot.lock, self.rendering:
                if request.prompt is not None:
                    return self._raw(request.prompt)
                place = slot.forest.find(request.messages, request.tools)
                bridged = await _bridge(slot.forest, place)
                return bridged or await in_thread(lambda: slot.forest.render(place))
        except Exception as error:  # a renderer is a plug-in, and the same request would fail again
            message = "the model's template cannot render this conversation"
            param = "messages" if request.prompt is None else "prompt"
            raise Problem(400, "not_renderable", message, param=param) from error

    def _raw(self, prompt: Any) -> PreparedPrompt:
        """A prompt that the harness laid out itself: a root of its own, which no conversation goes on from."""
        is_text = isinstance(prompt, str)
        ids = self._renderer.encode(prompt) if is_text else token_ids(prompt)
        text = prompt if is_text else self._renderer.decode(ids)
        return PreparedPrompt(
            parent_id=None,
            continues=False,
            new_prompt_ids=ids,
            prompt_ids=ids,
            prompt_digest=digest_of(ids),
            new_messages=(Message(role="user", content=text),),
        )


async def _bridge(forest: CallForest, place: Place) -> PreparedPrompt | None:
    if place.parent is None or place.new_characters <= SHORT_CHARACTERS:
        return forest.bridge(place)
    return await in_thread(lambda: forest.bridge(place))


async def in_thread(work: Callable[[], T]) -> T:
    """Runs `work` in a thread and waits for its end, also when it is cancelled: the caller holds locks for what
    the thread works on."""
    running = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(running)
    finally:
        await asyncio.wait([running])


def _refuse_images(messages: tuple[Message, ...]) -> None:
    for index, message in enumerate(messages):
        if message.images:
            text = "this model takes text only, and the message holds an image"
            raise Problem(400, "images_not_supported", text, param=f"messages[{index}]")


def _sampling(task: Sampling, request: ChatRequest) -> Sampling:
    wanted = {name: request.asked[name] for name in task.follow_harness if request.asked.get(name) is not None}
    if not wanted:
        return task
    try:
        return Sampling.model_validate({**task.model_dump(), **wanted})
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0])
        raise Problem(400, "invalid_request", f"{field}: {first['msg']}", param=field) from error


def _seed(slot: OpenSlot, sampling: Sampling, number: int) -> int:
    """Its own seed for each call, derived from the given one where there is one, so that samples differ and a run
    can be repeated."""
    if sampling.seed is None:
        return secrets.randbits(31)
    text = f"{sampling.seed}/{slot.lease.session.index}/{number}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest()) & 0x7FFFFFFF
