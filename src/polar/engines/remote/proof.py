"""The self-test of an engine behind an address: what it must show before a session may use it.

Ids and logprobs come back, as many of one as of the other; a stop id stays in the reply; and what the logprobs
mean is measured: a reply sampled at another temperature has the logprobs of the plain one only where they are raw.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Protocol

import msgspec

from polar.engines.base import GenerateRequest, LogprobMode, Piece
from polar.errors import ConfigError, EngineBusy, EngineDefect, EngineError
from polar.types import Logprobs, Sampling, TokenIds, logprobs, token_ids

PROBE_TEXT = "Once upon a time"
PROBE_IDS = (100, 101, 102, 103)
"""For a server that does not tokenize: any ids will do, and these are in every vocabulary."""
PROBE_TOKENS = 12
STOP_TRIALS = 3
"""The likeliest token may be another one the second time, where two are as likely."""
MAX_NOISE = 0.5
"""Mean difference between a logprob and its score that the arithmetic of a server may explain."""
CLEAR_GAP = 0.15
TEMPERATURES = (2.0, 0.1)
"""A sharp distribution shows the difference at the first, a flat one at the second. Servers refuse more than 2."""


class Provable(Protocol):
    def generate(self, request: GenerateRequest) -> AsyncGenerator[Piece]: ...

    async def score(self, ids: TokenIds, positions: Sequence[int]) -> Logprobs: ...


class Proof:
    """One self-test. `name` is what messages call the server, `url` included."""

    def __init__(self, engine: Provable, name: str, prompt_ids: Sequence[int]) -> None:
        self._engine = engine
        self._name = name
        self._prompt_ids = token_ids(prompt_ids)

    async def run(self, configured: LogprobMode | None) -> LogprobMode:
        """What the logprobs mean. Raises `EngineDefect` for a server that cannot be trained on."""
        plain = await self._reply(1.0)
        if len(plain.ids) != len(plain.logprobs) or not plain.ids:
            raise EngineDefect(f"{self._name} gave {len(plain.ids)} ids and {len(plain.logprobs)} logprobs")
        if not all(value <= 1e-3 for value in plain.logprobs):  # NaN is neither
            raise EngineDefect(
                f"{self._name} gave no usable logprobs: {[round(value, 3) for value in plain.logprobs]}; "
                "it must be started with log probabilities of sampled tokens, not logits"
            )
        await self._check_stop()
        return await self._mode(plain, configured)

    async def _check_stop(self) -> None:
        for _ in range(STOP_TRIALS):
            stop_id = (await self._reply(0.0, max_tokens=1)).ids[0]
            piece = await self._reply(0.0, max_tokens=3, stop_ids=(stop_id,))
            if piece.finish_reason == "stop":
                if piece.ids and piece.ids[-1] == stop_id:
                    return
                raise EngineDefect(f"{self._name} leaves the stop id out of a reply's ids; see docs/engines.md")
        raise EngineDefect(f"{self._name} does not stop at a stop id; see docs/engines.md for its versions")

    async def _mode(self, plain: Piece, configured: LogprobMode | None) -> LogprobMode:
        try:
            noise = await self._gap(plain)
        except (EngineBusy, EngineDefect):
            raise
        except EngineError as error:  # a server may refuse to score, and sample well
            if configured is None:
                raise ConfigError(
                    f"{self._name} does not score, so what its logprobs mean cannot be measured: set the engine "
                    f'option `logprob_mode` to "raw" or "processed" ({error})'
                ) from error
            return configured
        measured = await self._measured(noise)
        if configured not in (None, measured):
            raise EngineDefect(
                f"{self._name} gives {measured} logprobs, and the engine option `logprob_mode` says {configured}: "
                "correct it, or leave it out"
            )
        return measured

    async def _measured(self, noise: float) -> LogprobMode:
        if not noise < MAX_NOISE:
            raise EngineDefect(
                f"{self._name} scores its tokens otherwise than it sampled them (mean difference {noise:.2f}): "
                "start it with log probabilities, not logits, and see that nothing changes its weights meanwhile"
            )
        for temperature in TEMPERATURES:
            if await self._gap(await self._reply(temperature)) > max(CLEAR_GAP, 4 * noise):
                return "processed"
        return "raw"

    async def _gap(self, piece: Piece) -> float:
        """Mean difference between a reply's logprobs and the score of its tokens."""
        start = len(self._prompt_ids)
        ids = self._prompt_ids + piece.ids
        scored = await self._engine.score(ids, range(start, len(ids)))
        return sum(abs(a - b) for a, b in zip(piece.logprobs, scored, strict=True)) / len(scored)

    async def _reply(
        self, temperature: float, max_tokens: int = PROBE_TOKENS, stop_ids: tuple[int, ...] = ()
    ) -> Piece:
        sampling = Sampling(temperature=temperature)
        request = GenerateRequest(self._prompt_ids, max_tokens, sampling, stop_ids, "start-up", seed=1)
        return await joined(self._engine.generate(request))


async def joined(pieces: AsyncGenerator[Piece]) -> Piece:
    """A whole reply as one piece."""
    async with aclosing(pieces):
        return one_piece([piece async for piece in pieces])


def one_piece(pieces: Sequence[Piece]) -> Piece:
    """All of a reply's pieces as one. It has the version that all of them name, and the last one's spans."""
    last = pieces[-1] if pieces else Piece(token_ids(), logprobs())
    versions = {piece.policy_version for piece in pieces if piece.ids}
    return msgspec.structs.replace(
        last,
        ids=token_ids(i for piece in pieces for i in piece.ids),
        logprobs=logprobs(value for piece in pieces for value in piece.logprobs),
        policy_version=versions.pop() if len(versions) == 1 else "",
    )


def or_missing(value: float | None, sentinel: float) -> float:
    """A logprob, or NaN for what only stands for one."""
    return math.nan if value is None or not math.isfinite(value) or value <= sentinel else value
