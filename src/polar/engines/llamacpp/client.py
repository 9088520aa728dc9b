"""The token port of a llama-server: prompt ids in, sampled ids and their logprobs out.

A reply is sampled in slices, each a request that continues where the last one ended. llama.cpp's stream leaves out
the ids of tokens that end inside a character, and a request that does not stream continues in the server when its
client disconnects. Slices avoid both: without penalties, sampling depends on nothing but the tokens, so the slices
sample from the same distribution, and a cancelled reply ends with its slice.

A JSON schema has a state that does not outlive a request. So a reply with a schema is a single slice; if it is
cancelled, the server continues to its end or to `max_tokens`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

from polar.engines.base import EndReason, GenerateRequest, Piece
from polar.engines.llamacpp.forced_token import LogprobRecovery, schema_fields, try_schema
from polar.engines.llamacpp.prefixes import PrefixStore
from polar.engines.llamacpp.protocol import CompletionReply, Timings, completion_body, pair_logprobs
from polar.engines.llamacpp.sequences import SequenceTable
from polar.engines.llamacpp.server import LlamaServer, ServerProperties
from polar.engines.pieces import cut_at_stop, joined
from polar.engines.remote.proof import PROBE_TEXT, check_logprobs
from polar.types import Logprobs, Sampling, TokenIds, logprobs, token_ids

SLICE_TOKENS = 32
"""As fast as one long request. A cancelled reply samples at most this many more tokens."""
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
    """Call `open` before anything else, and `close` at the end."""

    def __init__(
        self,
        base_url: str,
        api_key: str = "",
        *,
        recover_logprobs: bool = True,
        slice_tokens: int = SLICE_TOKENS,
        state_folder: Path | None = None,
    ) -> None:
        """`state_folder`: the server's state folder, if it runs on this machine. It makes sessions share
        prefixes."""
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
        """Checks that the server gives ids and logprobs, in less time than a whole `Proof`. Raises
        `EngineDefect`."""
        prompt_ids = token_ids(await self.server.tokenize(PROBE_TEXT))
        piece = await joined(
            self.generate(GenerateRequest(prompt_ids, 2, Sampling(temperature=0), (), "start-up"))
        )
        check_logprobs(f"llama.cpp at {self.server.url}", piece, "use a server that supports n_probs")

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Piece]:
        """Samples one reply, a piece per slice."""
        reply = token_ids()
        async with self._sequences.hold(request.session_id) as sequence:
            first = await self._prepare(request, sequence)
            finish_reason = None
            while finish_reason is None:
                rest = request.max_tokens - len(reply)
                size = rest if request.json_schema is not None else min(self._slice_tokens, rest)
                body = completion_body(request, reply, size, sequence)
                sampled = await self.server.complete(body | schema_fields(request.json_schema))
                ids, values = await self._paired(request, reply, sampled, sequence)
                self._count(sampled, values, is_first=first is None)
                first = first or sampled.timings
                reply = reply + ids
                self._note_cached(sequence, request.prompt_ids + reply)
                finish_reason = self._finish_reason(request, reply, sampled, size)
                evaluated = first.prompt_n if finish_reason else None
                yield Piece(ids, logprobs(values), finish_reason, evaluated)

    async def score(self, ids: TokenIds, positions: Sequence[int]) -> Logprobs:
        """llama.cpp gives no logprobs of a prompt, so each position is a request for one ranked token. Goes from
        the last position to the first, so that each prefix is in the sequence's cache."""
        recovery = LogprobRecovery(self.server.complete, self._complete_id)
        values: dict[int, float] = {}
        async with self._sequences.hold(SCORING_SESSION) as sequence:
            for position in sorted(set(positions), reverse=True):
                values[position] = await recovery.logprob(ids[:position].tolist(), ids[position], sequence)
            self._note_cached(sequence, ids)
        self._counters["reevaluated_tokens"] += recovery.evaluated_tokens
        return logprobs(values[position] for position in positions)

    async def _prepare(self, request: GenerateRequest, sequence: int) -> Timings | None:
        """The cost of the prompt, if it was evaluated already before the reply is sampled."""
        first = await self._prefixes.prepare(request.prompt_ids, sequence) if self._prefixes else None
        if (schema := request.json_schema) is not None:
            complete, no_json_id = self.server.complete, self._complete_id
            tried = await try_schema(complete, no_json_id, schema, request.prompt_ids, sequence)
            first = first or tried
        if first is not None:
            self._count_prompt(first)
        self._note_cached(sequence, request.prompt_ids)
        return first

    def _note_cached(self, sequence: int, ids: TokenIds) -> None:
        if self._prefixes is not None:
            self._prefixes.note_cached(sequence, ids)

    async def _paired(
        self, request: GenerateRequest, reply: TokenIds, sampled: CompletionReply, sequence: int
    ) -> tuple[TokenIds, list[float]]:
        values = pair_logprobs(sampled.tokens, sampled.completion_probabilities)
        ids = cut_at_stop(sampled.tokens, request.stop_ids)
        values = values[: len(ids)]
        missing = sum(map(math.isnan, values))
        if missing and self._recover_logprobs:
            recovery = LogprobRecovery(self.server.complete, self._complete_id)
            values = await recovery.fill(request.prompt_ids + reply, ids, values, sequence)
            self._counters["recovered_logprobs"] += missing - sum(map(math.isnan, values))
            self._counters["reevaluated_tokens"] += recovery.evaluated_tokens
        return ids, values

    def _count(self, sampled: CompletionReply, values: list[float], *, is_first: bool) -> None:
        if is_first:
            self._count_prompt(sampled.timings)
        else:  # the last sampled token is evaluated once in any case
            self._counters["reevaluated_tokens"] += sampled.timings.prompt_n - 1
        self._counters["sampled_tokens"] += sampled.timings.predicted_n
        self._counters["missing_logprobs"] += sum(map(math.isnan, values))

    def _count_prompt(self, timings: Timings) -> None:
        self._counters["calls"] += 1
        self._counters["evaluated_tokens"] += timings.prompt_n
        self._counters["cached_tokens"] += timings.cache_n

    def _finish_reason(
        self, request: GenerateRequest, reply: TokenIds, sampled: CompletionReply, size: int
    ) -> EndReason | None:
        if sampled.stop_type == "eos" or (reply and reply[-1] in request.stop_ids):
            return "stop"
        if sampled.stop_type != "limit":
            return "aborted"
        context_full = len(request.prompt_ids) + len(reply) >= self._context_tokens
        all_sampled = len(reply) >= request.max_tokens or len(sampled.tokens) < size
        return "length" if context_full or all_sampled else None
