"""A request before it is sampled: refused with a status, or counted in with its limits.

All that we can refuse with a status is refused before a byte of the reply is sent.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

import msgspec
from pydantic import ValidationError

from polar.engines.base import EngineInfo
from polar.gateway.dialects.base import ChatRequest, Overflow, Problem
from polar.gateway.slots import OpenSlot
from polar.tokens.forest import Prompt
from polar.types import Message, Sampling

LONGEST_TOKEN_CHARACTERS = 512
"""No published vocabulary has a token of so many; the longest known are runs of one character, 256 at most."""


class Admitted(msgspec.Struct, frozen=True):
    """A request that will be sampled."""

    call_id: str
    prompt_tokens: int
    prompt: Prompt | None
    """None: the engine lays it out."""
    sampling: Sampling
    """The task's, and the harness's where the task leaves it to the harness."""
    stop: tuple[str, ...]
    max_tokens: int
    seed: int

    def recorded(self, request: ChatRequest) -> dict[str, Any]:
        """How the call is sampled, as it is kept with the call."""
        used = {name: getattr(self.sampling, name) for name in ("temperature", "top_p", "top_k", "min_p")}
        further = {"stop": list(self.stop), "json_schema": request.json_schema, "asked": request.asked}
        limits = {"seed": self.seed, "max_tokens": self.max_tokens}
        return {**used, **limits, **{name: value for name, value in further.items() if value}}


class Admission:
    def __init__(self, info: EngineInfo) -> None:
        self._info = info

    def check(self, slot: OpenSlot, request: ChatRequest) -> Sampling:
        """How to sample the request. Raises `Problem` when it cannot be answered, whatever its size."""
        slot.check()
        if request.json_schema is not None and not self._info.constrains:
            raise Problem(400, "not_supported", "this engine cannot hold a reply to a JSON schema")
        return _sampling(slot.lease.task.sampling, request)

    def refuse_by_size(self, messages: tuple[Message, ...]) -> None:
        """Raises `Overflow` for what cannot fit whatever the vocabulary, before anybody lays it out."""
        most = self._info.context_tokens * LONGEST_TOKEN_CHARACTERS
        told = [message.content for message in messages if message.role in ("user", "tool")]
        if sum(map(len, told)) <= most:
            return
        size = sum(len(content.strip()) for content in told)  # templates cut white space at the ends
        if size > most:
            raise Overflow(size // LONGEST_TOKEN_CHARACTERS, self._info.context_tokens)

    def admit(self, slot: OpenSlot, request: ChatRequest, sampling: Sampling, prompt: Prompt | int) -> Admitted:
        """Counts the request in, by its prompt or how long it is. Only now: one that is refused costs nothing."""
        size = prompt if isinstance(prompt, int) else len(prompt.prompt_ids)
        context = self._info.context_tokens
        if size >= context:
            raise Overflow(size, context)
        number = slot.admit()
        session = slot.lease.session
        return Admitted(
            call_id=f"{session.session_id}.{session.attempt}.{number}",
            prompt_tokens=size,
            prompt=None if isinstance(prompt, int) else prompt,
            sampling=sampling,
            stop=sampling.stop or request.stop,
            max_tokens=slot.reply_limit(request.max_tokens, context - size),
            seed=_seed(slot, sampling, number),
        )


def refuse_images(request: ChatRequest) -> None:
    if any(message.images for message in request.messages):
        text = "this model takes text only, and the message holds an image"
        raise Problem(400, "images_not_supported", text, param=request.image_field)


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
