"""A batch whose thread runs, with the tokens of each sequence collected."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

from polar.engines.torch.batch import Batch, BatchSequence, Delivery, SampledToken
from polar.engines.torch.model import SamplerModel
from polar.engines.torch.prefixes import PrefixCache
from polar.engines.torch.sampling import SamplingParameters

CONTEXT_TOKENS = 256
FOREVER_S = 60.0


class Reply(NamedTuple):
    ids: list[int]
    logprobs: list[float]
    ending: str
    cached_tokens: int
    versions: list[tuple[str, int]]


class RunningBatch:
    def __init__(self, model: Any, parallel: int = 3, prefix_bytes: int = 2**30) -> None:
        self.model = SamplerModel(model, parallel, CONTEXT_TOKENS)
        self.prefixes = PrefixCache(prefix_bytes)
        self._tokens: dict[BatchSequence, SimpleQueue[SampledToken]] = defaultdict(SimpleQueue)
        self.after_token: Callable[[BatchSequence], None] = lambda sequence: None
        """Called in the batch's thread, after each token."""
        self.batch = Batch(self.model, self.prefixes, self._deliver)
        self._thread = Thread(target=self.batch.run)
        self._thread.start()

    def __enter__(self) -> RunningBatch:
        return self

    def __exit__(self, *error: object) -> None:
        self.batch.stop()
        self._thread.join()

    def _deliver(self, deliveries: list[Delivery]) -> None:
        for sequence, token in deliveries:
            self._tokens[sequence].put(token)
            self.after_token(sequence)

    def submit(self, prompt_ids: Sequence[int], max_tokens: int = 12, **parameters: Any) -> BatchSequence:
        parameters = {"seed": 1, **parameters}
        sequence = BatchSequence(prompt_ids, SamplingParameters(max_tokens=max_tokens, **parameters))
        self._tokens[sequence]  # made in this thread, before the batch's thread uses it
        self.batch.submit(sequence)
        return sequence

    def first_token(self, sequence: BatchSequence) -> SampledToken:
        """Waits for it; it is missing from `reply` then."""
        return self._tokens[sequence].get(timeout=FOREVER_S)

    def reply(self, sequence: BatchSequence) -> Reply:
        tokens = [self._tokens[sequence].get(timeout=FOREVER_S)]
        while tokens[-1].ending is None:
            tokens.append(self._tokens[sequence].get(timeout=FOREVER_S))
        sampled = [token for token in tokens if token.token_id is not None]
        return Reply(
            [token.token_id for token in sampled if token.token_id is not None],
            [token.logprob for token in sampled],
            tokens[-1].ending or "",
            sequence.cached_tokens,
            sequence.versions,
        )

    def ask(self, prompt_ids: Sequence[int], max_tokens: int = 12, **parameters: Any) -> Reply:
        return self.reply(self.submit(prompt_ids, max_tokens, **parameters))
