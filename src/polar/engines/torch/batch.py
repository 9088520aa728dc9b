"""The loop of the sampler: sequences join the running batch, each step gives every one of them a token.

One thread runs it and owns the model, its rows and the stored prefixes. Everything else is a command in its queue,
which it obeys between two steps, so that new weights never meet a step under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import Any, Literal, NamedTuple, TypeVar

import torch

from polar.engines.torch.model import SamplerModel
from polar.engines.torch.prefixes import PrefixCache
from polar.engines.torch.sampling import SamplingParameters, sample
from polar.engines.torch.weights import load_in_place
from polar.tokens.sequences import first_difference
from polar.types import TokenIds, token_ids

FILLED_TOKENS = 512
"""Prompt tokens computed between two steps, so that long prompts do not hold up the sequences that sample."""
SHARED_COLUMNS = 64
"""A common beginning of fewer tokens is not worth attention of its own."""
UNSET_VERSION = "default"
"""What vLLM reports as long as no version was set."""

PauseMode = Literal["abort", "wait", "keep"]
Ending = Literal["stop", "length", "abort"]
T = TypeVar("T")


class SampledToken(NamedTuple):
    """What a step has for a sequence. An aborted one gets no token."""

    token_id: int | None
    logprob: float
    ending: Ending | None


class BatchSequence:
    """One request on its way: its tokens, and how many of them have keys and values in its row."""

    def __init__(self, prompt_ids: Sequence[int], parameters: SamplingParameters) -> None:
        self.ids: TokenIds = token_ids(prompt_ids)
        self.prompt_tokens = len(self.ids)
        self.parameters = parameters
        self.filled = 0
        """A sequence samples in the next step if all of its tokens but the last are filled."""
        self.searched = False
        """Whether its beginning was looked for in the prefix cache and in other rows."""
        self.cached_tokens = 0
        """Prompt tokens that were found there and needed no forward."""
        self.versions: list[tuple[str, int]] = []
        """Each version of the weights with the index of its first sampled token."""
        self.random = Random(parameters.seed)

    @property
    def sampled_tokens(self) -> int:
        return len(self.ids) - self.prompt_tokens

    @property
    def ready(self) -> bool:
        return self.searched and self.filled == len(self.ids) - 1

    def add(self, token_id: int, version: str) -> None:
        if not self.versions or self.versions[-1][0] != version:
            self.versions.append((version, self.sampled_tokens))
        self.ids.append(token_id)


Delivery = tuple[BatchSequence, SampledToken]


def shared_columns(rows: Sequence[BatchSequence]) -> int:
    """How many tokens all of them begin with and have computed; 0 if they are few."""
    first, *others = rows
    shared = min([each.filled for each in rows])
    for each in others:
        if shared < SHARED_COLUMNS:
            return 0
        shared = min(shared, first_difference(first.ids, each.ids))
    return shared if shared >= SHARED_COLUMNS else 0


class Batch:
    def __init__(
        self, model: SamplerModel, prefixes: PrefixCache, deliver: Callable[[list[Delivery]], None]
    ) -> None:
        self._model = model
        self._prefixes = prefixes
        self._deliver = deliver
        self._commands: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        self._waiting: deque[BatchSequence] = deque()
        self._live: list[BatchSequence] = []
        """The index of a sequence is its row."""
        self._paused: PauseMode | None = None
        self._drained: list[Future[None]] = []
        """Answered when a pause that waits has no live sequence any more."""
        self._stopping = False
        self.version = UNSET_VERSION

    # Commands, from any thread.

    def submit(self, sequence: BatchSequence) -> None:
        self._order(lambda: self._waiting.append(sequence))

    def abort(self, sequence: BatchSequence) -> None:
        """No token of the sequence is delivered after it."""
        self._order(lambda: self._abort([sequence]))

    def pause(self, mode: PauseMode) -> Future[None]:
        """New sequences wait until `resume`. The live ones are cut off (`abort`), run to their end (`wait`) or
        stay as they are (`keep`)."""
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()
        self._order(lambda: self._pause(mode, done))
        return done

    def resume(self) -> Future[None]:
        return self._order(self._resume)

    def forget(self, live: bool = False) -> Future[None]:
        """Drops what ended sequences have computed; of live ones, too, which then compute their tokens again."""
        return self._order(lambda: self._forget(live))

    def load_weights(self, folder: Path) -> Future[None]:
        return self._order(lambda: self._load_weights(folder))

    def set_version(self, version: str) -> Future[None]:
        return self._order(lambda: setattr(self, "version", version))

    def score(self, ids: Sequence[int]) -> Future[list[float]]:
        return self._order(lambda: self._model.score(ids))

    def stop(self) -> None:
        self._order(lambda: setattr(self, "_stopping", True))

    @property
    def is_paused(self) -> bool:
        return self._paused is not None

    def counts(self) -> dict[str, int]:
        return {
            "live": len(self._live),
            "waiting": len(self._waiting),
            "stored_prefixes": len(self._prefixes),
            "stored_prefix_bytes": self._prefixes.size_bytes,
        }

    def _order(self, command: Callable[[], T]) -> Future[T]:
        answer: Future[T] = Future()
        self._commands.put((command, answer))
        return answer

    # The loop, in its thread.

    def run(self) -> None:
        with torch.inference_mode():
            while not self._stopping:
                if self._has_work():
                    self._step()
                self._obey()

    def _has_work(self) -> bool:
        if self._paused is None:
            return bool(self._live or self._waiting)
        return self._paused == "wait" and bool(self._live)

    def _obey(self) -> None:
        """Obeys what is in the queue; waits for a command if there is nothing to sample."""
        while not self._stopping and (not self._commands.empty() or not self._has_work()):
            command, answer = self._commands.get()
            if not answer.set_running_or_notify_cancel():  # from here on it cannot be cancelled
                continue
            try:
                answer.set_result(command())
            except Exception as error:  # the caller's request was wrong, not the loop
                answer.set_exception(error)

    def _step(self) -> None:
        while self._paused is None and self._waiting and len(self._live) < self._model.parallel:
            self._live.append(self._waiting.popleft())
        self._fill()
        self._sample()
        if self._drained and not self._live:
            self._answer_drained()

    def _fill(self) -> None:
        room = FILLED_TOKENS
        for row, sequence in enumerate(self._live):
            if not sequence.searched:
                self._reuse(row, sequence)
            while room > 0 and not sequence.ready:
                start = sequence.filled
                end = min(start + room, len(sequence.ids) - 1)
                self._model.fill(row, start, sequence.ids[start:end].tolist())
                sequence.filled, room = end, room - (end - start)
            if room <= 0:
                return

    def _reuse(self, row: int, sequence: BatchSequence) -> None:
        """Takes the beginning of a sequence from a stored one or from another row. The last token is computed in
        any case: the next one follows from it."""
        wanted = sequence.ids[:-1]
        stored, values = self._prefixes.longest(wanted)
        live, source = 0, row
        for other, neighbour in enumerate(self._live):
            if other != row:
                shared = min(first_difference(neighbour.ids, wanted), neighbour.filled)
                live, source = max((live, source), (shared, other))
        if values is not None and stored >= live:
            self._model.rows.put(row, values, stored)
        elif live:
            self._model.rows.copy(source, row, live)
        sequence.filled, sequence.searched = max(stored, live), True
        if not sequence.sampled_tokens:
            sequence.cached_tokens = sequence.filled

    def _sample(self) -> None:
        ready = [row for row, sequence in enumerate(self._live) if sequence.ready]
        if not ready:
            return
        # Rows in between that are not ready get one token filled: they would be computed in any case.
        rows = self._live[: ready[-1] + 1]
        places = [each.filled for each in rows]
        logits = self._model.step([each.ids[each.filled] for each in rows], places, shared_columns(rows))
        for each in rows:
            each.filled += 1
        sampling = [self._live[row] for row in ready]
        draws = [each.random.random() for each in sampling]
        ids, logprobs = sample(logits[ready], [each.parameters for each in sampling], draws)
        deliveries: list[Delivery] = []
        for sequence, token_id, logprob in zip(sampling, ids, logprobs, strict=True):
            sequence.add(token_id, self.version)
            deliveries.append((sequence, SampledToken(token_id, logprob, self._ending(sequence, token_id))))
        for sequence, token in reversed(deliveries):
            if token.ending is not None:
                self._leave(sequence)
        self._deliver(deliveries)

    def _ending(self, sequence: BatchSequence, token_id: int) -> Ending | None:
        parameters = sequence.parameters
        if token_id in parameters.stop_token_ids:
            return "stop"
        if not parameters.ignore_eos and token_id in self._model.end_ids:
            return "stop"
        if sequence.sampled_tokens >= parameters.max_tokens or len(sequence.ids) >= self._model.context_tokens:
            return "length"
        return None

    def _leave(self, sequence: BatchSequence) -> None:
        """Stores what the sequence has computed, and closes the gap in the rows with the last one."""
        row, rows = self._live.index(sequence), self._model.rows
        if sequence.filled and self._prefixes.fits(sequence.filled * rows.token_bytes):
            self._prefixes.add(sequence.ids[: sequence.filled], rows.take(row, sequence.filled))
        last = self._live.pop()
        if last is not sequence:
            self._live[row] = last
            rows.copy(len(self._live), row, last.filled)

    def _abort(self, sequences: Sequence[BatchSequence]) -> None:
        for sequence in sequences:
            if sequence in self._live:
                self._leave(sequence)
            elif sequence in self._waiting:
                self._waiting.remove(sequence)
            else:
                continue
            self._deliver([(sequence, SampledToken(None, 0.0, "abort"))])
        if not self._live:
            self._answer_drained()

    def _pause(self, mode: PauseMode, done: Future[None]) -> None:
        self._paused = mode
        self._drained.append(done)
        if mode == "abort":
            self._abort([*self._live, *self._waiting])
        if mode == "keep" or not self._live:
            self._answer_drained()

    def _resume(self) -> None:
        self._paused = None
        self._answer_drained()

    def _answer_drained(self) -> None:
        for answer in self._drained:
            answer.set_result(None)
        self._drained = []

    def _load_weights(self, folder: Path) -> None:
        """Everything computed by the old weights is dropped. Live sequences compute their tokens again, and so
        sample on from the new weights alone."""
        load_in_place(self._model.model, folder)
        self._forget(live=True)

    def _forget(self, live: bool) -> None:
        self._prefixes.clear()
        if live:
            self._model.rows.clear()
            for sequence in self._live:
                sequence.filled, sequence.searched = 0, False
