"""A client of llama-server that speaks tokens only: prompt ids in, sampled ids and their logprobs out.

A reply is sampled in slices, each a call of its own that goes on where the last one ended. llama.cpp's own
stream leaves out the ids of tokens that end inside a character, and a call that does not stream runs on in
the server when its client goes away. Slices have neither fault: sampling without penalties has no memory but
the tokens, so what they give is a sample of the same distribution, and what is cancelled ends with its slice.

A JSON schema has a memory of its own, which does not outlive a call: a reply that must fit one is a single slice,
and cancelled it runs on in the server to its end or to `max_tokens`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Literal

from polar.engines.base import GenerateRequest, Piece
from polar.engines.llamacpp.http import LlamaServer, ServerProperties
from polar.engines.llamacpp.prefixes import PrefixStore
from polar.engines.llamacpp.protocol import Answer, Timings, completion_body, pair_logprobs
from polar.engines.llamacpp.recovery import LogprobRecovery
from polar.engines.llamacpp.schema import SchemaTrial, schema_fields
from polar.engines.llamacpp.sequences import SequenceTable
from polar.engines.stop_ids import cut_at_stop
from polar.errors import EngineDefect
from polar.types import Logprobs, Sampling, TokenIds, logprobs, token_ids

SLICE_TOKENS = 32
"""Costs nothing measurable against one long call; it is how much a cancelled reply may still sample."""
SCORING_SESSION = "scoring"
COUNTERS = (
    "calls",
    "evaluated_tokens",
    "cached_tokens",
    "sampled_tokens",
    "missing_logprobs",
    "recovered_logprobs",
    "reevaluated_tokens",
)


class LlamaCppClient:
    """The token port of one llama-server. `open` before anything else; `close` at the end."""

    def __init__(
        self,
        base_url: str,
        api_key: str = "",
        *,
        recover_logprobs: bool = True,
        slice_tokens: int = SLICE_TOKENS,
        state_folder: Path | None = None,
    ) -> None:
        """`state_folder` is where the server saves states, on this machine; with it sessions share prefixes."""
        self.server = LlamaServer(base_url, api_key)
        self._recover_logprobs = recover_logprobs
        self._slice_tokens = slice_tokens
        self._counters: Counter[str] = Counter(dict.fromkeys(COUNTERS, 0))
        self._sequences = SequenceTable(1)
        self._prefixes = None if state_folder is None else PrefixStore(self.server, state_folder)
        self._context_tokens = 0
        self._complete_id = 0

    async def open(self) -> ServerProperties:
        properties = await self.server.properties()
        self._context_tokens = properties.default_generation_settings.n_ctx
        self._sequences = SequenceTable(properties.total_slots)
        self._complete_id = (await self.server.tokenize("a"))[0]
        return properties

    async def close(self) -> None:
        await self.server.close()

    def counters(self) -> dict[str, int]:
        return dict(self._counters)

    async def prove(self) -> None:
        """Samples a few tokens to see that the server gives ids and logprobs. Raises `EngineDefect` if not."""
        prompt_ids = token_ids(await self.server.tokenize("Once upon a time"))
        request = GenerateRequest(
            prompt_ids, max_tokens=2, sampling=Sampling(temperature=0), stop_ids=(), session_id="start-up"
        )
        values = [value async for piece in self.generate(request) for value in piece.logprobs]
        if not values or any(map(math.isnan, values)):
            raise EngineDefect(f"the server at {self.server.base_url} gives no logprobs; start one with n_probs")

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Piece]:
        """Samples one reply, a piece per slice."""
        reply = token_ids()
        async with self._sequences.hold(request.session_id) as sequence:
            first = await self._prepare(request, sequence)
            finish_reason = None
            while finish_reason is None:
                size = self._slice_size(request, reply)
                body = completion_body(request, reply, size, sequence)
                answer = await self.server.complete(body | schema_fields(request.json_schema))
                ids, values = await self._paired(request, reply, answer, sequence)
                self._count(answer, values, is_first=first is None)
                first = first or answer.timings
                reply = reply + token_ids(ids)
                self._note_held(sequence, request.prompt_ids + reply)
                finish_reason = self._finish_reason(request, reply, answer, size)
                last_only = first.prompt_n if finish_reason else None
                yield Piece(token_ids(ids), logprobs(values), finish_reason, last_only)

    async def score(self, ids: TokenIds, positions: Sequence[int]) -> Logprobs:
        """llama.cpp has no logprobs of a prompt: each position is one more token asked for, and ranked. From the
        last to the first, so that each prefix is a cut of what the sequence holds."""
        recovery = LogprobRecovery(self.server.complete, self._complete_id)
        values: dict[int, float] = {}
        async with self._sequences.hold(SCORING_SESSION) as sequence:
            for position in sorted(set(positions), reverse=True):
                values[position] = await recovery.logprob(ids[:position].tolist(), ids[position], sequence)
            self._note_held(sequence, ids)
        self._counters["reevaluated_tokens"] += recovery.evaluated_tokens
        return logprobs(values[position] for position in positions)

    async def _prepare(self, request: GenerateRequest, sequence: int) -> Timings | None:
        """What the prompt cost, if it was evaluated before the reply is sampled."""
        shared = await self._prefixes.prepare(request.prompt_ids, sequence) if self._prefixes else None
        tried = await self._try_schema(request, sequence)
        first = shared or tried
        if first is not None:
            self._count_prompt(first)
        self._note_held(sequence, request.prompt_ids)
        return first

    def _note_held(self, sequence: int, ids: TokenIds) -> None:
        if self._prefixes is not None:
            self._prefixes.holds(sequence, ids)

    async def _try_schema(self, request: GenerateRequest, sequence: int) -> Timings | None:
        if request.json_schema is None:
            return None
        trial = SchemaTrial(self.server.complete, self._complete_id)
        return await trial.run(request.json_schema, request.prompt_ids, sequence)

    def _slice_size(self, request: GenerateRequest, reply: TokenIds) -> int:
        rest = request.max_tokens - len(reply)
        return rest if request.json_schema is not None else min(self._slice_tokens, rest)

    async def _paired(
        self, request: GenerateRequest, reply: TokenIds, answer: Answer, sequence: int
    ) -> tuple[list[int], list[float]]:
        values = pair_logprobs(answer.tokens, answer.completion_probabilities)
        ids = cut_at_stop(answer.tokens, request.stop_ids)
        values = values[: len(ids)]
        missing = sum(map(math.isnan, values))
        if missing and self._recover_logprobs:
            recovery = LogprobRecovery(self.server.complete, self._complete_id)
            values = await recovery.fill(request.prompt_ids + reply, ids, values, sequence)
            self._counters["recovered_logprobs"] += missing - sum(map(math.isnan, values))
            self._counters["reevaluated_tokens"] += recovery.evaluated_tokens
        return ids, values

    def _count(self, answer: Answer, values: list[float], *, is_first: bool) -> None:
        if is_first:
            self._count_prompt(answer.timings)
        else:  # the last sampled token is evaluated once in any case, here or in a longer slice
            self._counters["reevaluated_tokens"] += answer.timings.prompt_n - 1
        self._counters["sampled_tokens"] += answer.timings.predicted_n
        self._counters["missing_logprobs"] += sum(map(math.isnan, values))

    def _count_prompt(self, timings: Timings) -> None:
        self._counters["calls"] += 1
        self._counters["evaluated_tokens"] += timings.prompt_n
        self._counters["cached_tokens"] += timings.cache_n

    def _finish_reason(
        self, request: GenerateRequest, reply: TokenIds, answer: Answer, size: int
    ) -> Literal["stop", "length", "aborted"] | None:
        if answer.stop_type == "eos" or (reply and reply[-1] in request.stop_ids):
            return "stop"
        if answer.stop_type != "limit":
            return "aborted"
        context_full = len(request.prompt_ids) + len(reply) >= self._context_tokens
        asked_all = len(reply) >= request.max_tokens or len(answer.tokens) < size
        return "length" if context_full or asked_all else None
