"""Prompt prefixes that sessions share: evaluated once, then copied to each sequence whose prompt begins with them.

Every sequence of llama.cpp has a cache of its own. So a prompt that is new to the engine is evaluated before the
reply is sampled, and the server saves the state of its sequence to a file. Another sequence gets that state by
restoring the file: the same keys and values, bit for bit, at the same positions. A call that arrives while its
prefix is still under evaluation waits for it.

The server compares a prompt with the tokens that the restored state names, and reuses their common prefix only.
So what this file believes about a sequence decides what a call costs, never what it returns.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from polar.engines.llamacpp.http import LlamaServer
from polar.engines.llamacpp.protocol import Timings
from polar.errors import EngineError
from polar.tokens.sequences import first_difference
from polar.types import TokenIds, token_ids

MIN_GAIN_TOKENS = 64
"""What a copy has to save in evaluated tokens. A copy of 1100 tokens of the default model takes 25 MB and 30 ms;
evaluating 64 takes half a second."""
LIMIT_BYTES = 2**30
"""Of all saved states; the least recently used go first."""


@dataclass(frozen=True, eq=False)
class SavedState:
    file: Path
    ids: TokenIds
    size_bytes: int


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A prompt that the server is evaluating."""

    ids: TokenIds
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class PrefixStore:
    """The saved states of one server, which keeps them in `folder`."""

    def __init__(self, server: LlamaServer, folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self._server = server
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._held: dict[int, TokenIds] = {}
        """What each sequence holds."""
        self._saved: list[SavedState] = []
        """The least recently used first."""
        self._under_way: list[Evaluation] = []
        self._files = 0

    def holds(self, sequence: int, ids: TokenIds) -> None:
        self._held[sequence] = ids

    async def prepare(self, prompt_ids: TokenIds, sequence: int) -> Timings | None:
        """Brings the longest known prefix of a prompt into its sequence. Where much of it is new, evaluates
        the prompt for others to use, and returns what that cost."""
        held = self._held.get(sequence, token_ids())
        known = first_difference(held, prompt_ids)
        if known and known == len(held):  # the next call of the session that the sequence belongs to
            return None
        await self._wait_for_evaluation(prompt_ids, known)
        known = max(known, await self._restore(prompt_ids, sequence, known))
        if len(prompt_ids) - known < MIN_GAIN_TOKENS:
            return None
        return await self._evaluate(prompt_ids, sequence)

    async def _wait_for_evaluation(self, prompt_ids: TokenIds, known: int) -> None:
        """Until none under way would give more of the prompt than what is there."""
        while True:
            there = max([known, *(first_difference(prompt_ids, saved.ids) for saved in self._saved)])
            worth = [e for e in self._under_way if first_difference(e.ids, prompt_ids) >= there + MIN_GAIN_TOKENS]
            if not worth:
                return
            await worth[0].ended.wait()

    async def _restore(self, prompt_ids: TokenIds, sequence: int, known: int) -> int:
        """How many tokens of the prompt a saved state has brought; 0 where none is worth a copy."""
        best = max(self._saved, key=lambda saved: first_difference(saved.ids, prompt_ids), default=None)
        gain = first_difference(best.ids, prompt_ids) if best else 0
        if best is None or gain < known + MIN_GAIN_TOKENS:
            return 0
        self._saved.remove(best)
        self._saved.append(best)
        self._held.pop(sequence, None)
        try:
            await self._server.restore_state(sequence, best.file.name)
        except EngineError:  # the file is damaged or gone: the prompt is evaluated instead
            self._forget(best)
            return 0
        self._held[sequence] = best.ids
        return gain

    async def _evaluate(self, prompt_ids: TokenIds, sequence: int) -> Timings:
        evaluation = Evaluation(prompt_ids)
        self._under_way.append(evaluation)
        self._held.pop(sequence, None)
        try:
            timings = await self._server.evaluate(prompt_ids.tolist(), sequence)
            self._held[sequence] = prompt_ids
            await self._save(prompt_ids, sequence)
        finally:
            self._under_way.remove(evaluation)
            evaluation.ended.set()
        return timings

    async def _save(self, ids: TokenIds, sequence: int) -> None:
        self._files += 1
        file = self._folder / f"prefix-{self._files}"
        try:
            size_bytes = await self._server.save_state(sequence, file.name)
        except EngineError:  # a full disk, perhaps; each sequence then evaluates for itself
            file.unlink(missing_ok=True)
            return
        self._saved.append(SavedState(file, ids, size_bytes))
        while sum(saved.size_bytes for saved in self._saved) > self._limit_bytes:
            self._forget(self._saved[0])

    def _forget(self, saved: SavedState) -> None:
        if saved in self._saved:
            self._saved.remove(saved)
        saved.file.unlink(missing_ok=True)
