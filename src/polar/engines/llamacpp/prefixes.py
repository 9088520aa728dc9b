"""Prompt prefixes that sessions share: evaluated once, then copied to each sequence whose prompt begins with them.

Each sequence of llama.cpp has its own cache. So a prompt that is new to the engine is evaluated before the reply
is sampled, and the server saves the state of its sequence to a file. Another sequence gets that state by
restoring the file: the same keys and values, bit for bit, at the same positions. A call that arrives while its
prefix is being evaluated waits for it.

The server compares a prompt with the tokens of the restored state and reuses only their common prefix. So an error
in this bookkeeping can change the cost of a call, never its result.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from polar.engines.llamacpp.protocol import Timings
from polar.engines.llamacpp.server import LlamaServer
from polar.errors import EngineError
from polar.tokens.sequences import first_difference
from polar.types import TokenIds, token_ids

MIN_GAIN_TOKENS = 64
"""A copy must save at least this many evaluated tokens. A copy of 1100 tokens of the default model takes 25 MB and
30 ms; evaluating 64 tokens takes half a second."""
LIMIT_BYTES = 2**30
"""Of all saved states; the least recently used are deleted first."""


@dataclass(frozen=True, eq=False)
class SavedState:
    file: Path
    ids: TokenIds
    size_bytes: int


class PrefixStore:
    """The saved states of one server, whose state folder is `folder`."""

    def __init__(self, server: LlamaServer, folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self._server = server
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._cached: dict[int, TokenIds] = {}
        """The tokens in each sequence's cache."""
        self._saved: list[SavedState] = []
        """The least recently used first."""
        self._running: list[tuple[TokenIds, asyncio.Event]] = []
        """Prompts under evaluation, and the end of each."""
        self._files = 0

    def note_cached(self, sequence: int, ids: TokenIds) -> None:
        self._cached[sequence] = ids

    async def prepare(self, prompt_ids: TokenIds, sequence: int) -> Timings | None:
        """Copies the longest known prefix of a prompt into its sequence. If much of the prompt is new, evaluates
        and saves it for other sequences, and returns the cost."""
        cached = self._cached.get(sequence, token_ids())
        known = first_difference(cached, prompt_ids)
        if known and known == len(cached):  # the next call of the session that the sequence belongs to
            return None
        await self._wait_for_evaluation(prompt_ids, known)
        known = max(known, await self._restore(prompt_ids, sequence, known))
        if len(prompt_ids) - known < MIN_GAIN_TOKENS:
            return None
        return await self._evaluate(prompt_ids, sequence)

    async def _wait_for_evaluation(self, prompt_ids: TokenIds, known: int) -> None:
        """Waits while a running evaluation would give a longer prefix than what is known."""
        while True:
            saved = max((first_difference(saved.ids, prompt_ids) for saved in self._saved), default=0)
            useful = max(known, saved) + MIN_GAIN_TOKENS
            longer = [ended for ids, ended in self._running if first_difference(ids, prompt_ids) >= useful]
            if not longer:
                return
            await longer[0].wait()

    async def _restore(self, prompt_ids: TokenIds, sequence: int, known: int) -> int:
        """How many tokens of the prompt a saved state provided; 0 if none is worth a copy."""
        best = max(self._saved, key=lambda saved: first_difference(saved.ids, prompt_ids), default=None)
        gain = first_difference(best.ids, prompt_ids) if best else 0
        if best is None or gain < known + MIN_GAIN_TOKENS:
            return 0
        self._saved.remove(best)
        self._saved.append(best)
        self._cached.pop(sequence, None)
        try:
            await self._server.restore_state(sequence, best.file.name)
        except EngineError:  # the file is damaged or gone: evaluate the prompt instead
            self._forget(best)
            return 0
        self._cached[sequence] = best.ids
        return gain

    async def _evaluate(self, prompt_ids: TokenIds, sequence: int) -> Timings:
        evaluation = (prompt_ids, asyncio.Event())
        self._running.append(evaluation)
        self._cached.pop(sequence, None)
        try:
            timings = await self._server.evaluate(prompt_ids.tolist(), sequence)
            self._cached[sequence] = prompt_ids
            await self._save(prompt_ids, sequence)
        finally:
            self._running.remove(evaluation)
            evaluation[1].set()
        return timings

    async def _save(self, ids: TokenIds, sequence: int) -> None:
        self._files += 1
        file = self._folder / f"prefix-{self._files}"
        try:
            size_bytes = await self._server.save_state(sequence, file.name)
        except EngineError:  # such as a full disk; then each sequence evaluates for itself
            file.unlink(missing_ok=True)
            return
        self._saved.append(SavedState(file, ids, size_bytes))
        while sum(saved.size_bytes for saved in self._saved) > self._limit_bytes:
            self._forget(self._saved[0])

    def _forget(self, saved: SavedState) -> None:
        if saved in self._saved:
            self._saved.remove(saved)
        saved.file.unlink(missing_ok=True)
