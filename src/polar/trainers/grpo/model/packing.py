"""Packs: several traces in one sequence of tokens, what they have in common at their beginning only once.

Traces are sorted by their tokens, so that a pack is a prefix tree in depth-first order. A token may attend to an
earlier one exactly if that is its ancestor, and token j is an ancestor of token i exactly if j <= i < end[j]: one
number for each token describes the attention mask.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from polar.credit.advantages import CreditedTrace

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class TrainingSequence:
    """One trace as a trainer sees it. The last three have one value per target."""

    ids: Ints
    targets: Ints
    """Positions of the tokens to train on; each is predicted at the position before."""
    old_logprobs: Floats
    advantages: Floats
    weights: Floats
    """What the loss of each target counts."""


@dataclass(frozen=True)
class Pack:
    ids: Ints
    positions: Ints
    """Of each token in its own trace."""
    end: Ints
    """Where the tokens that may attend to this one end."""
    predictors: Ints
    """The token whose logits predict a target. Traces that share it each have a target of their own."""
    target_ids: Ints
    old_logprobs: Floats
    advantages: Floats
    weights: Floats
    traces: int
    trace_tokens: int
    """Tokens that the same traces have without sharing."""


def training_sequence(item: CreditedTrace, weight: float) -> TrainingSequence:
    trace = item.trace
    ids = np.concatenate([np.asarray(trace.prompt_ids[:], np.int64), np.asarray(trace.response_ids[:], np.int64)])
    trained = np.flatnonzero(np.asarray(trace.loss_mask, np.int8))
    return TrainingSequence(
        ids=ids,
        targets=trained + len(trace.prompt_ids),
        old_logprobs=np.asarray(trace.logprobs, np.float32)[trained],
        advantages=np.asarray(item.advantages, np.float32)[trained],
        weights=np.full(len(trained), weight, np.float32),
    )


def packs(sequences: Sequence[TrainingSequence], max_tokens: int, *, share: bool = True) -> Iterator[Pack]:
    """All sequences, each in one pack. A pack has at most `max_tokens`, or a single sequence that is longer."""
    packing = _Packing(share)
    for sequence in sorted(sequences, key=lambda each: each.ids.astype(">u4").tobytes()):
        if packing.length and packing.length_with(sequence) > max_tokens:
            yield packing.finished()
            packing = _Packing(share)
        packing.add(sequence)
    if packing.length:
        yield packing.finished()


class _Packing:
    """A pack while it is filled, in sorted order."""

    def __init__(self, share: bool) -> None:
        self._share = share
        self.length = 0
        self._ids: list[Ints] = []
        self._positions: list[Ints] = []
        self._end: list[tuple[Ints, int]] = []
        """Tokens, and where the part of the tree beneath them ends."""
        self._path: Ints = np.zeros(0, np.int64)
        """Where each token of the newest sequence stands in the pack."""
        self._newest: Ints = np.zeros(0, np.int64)
        self._predictors: list[Ints] = []
        self._sequences: list[TrainingSequence] = []

    def length_with(self, sequence: TrainingSequence) -> int:
        return self.length + len(sequence.ids) - self._common(sequence.ids)

    def add(self, sequence: TrainingSequence) -> None:
        shared, size = self._common(sequence.ids), len(sequence.ids)
        self._end.append((self._path[shared:], self.length))
        self._path = np.concatenate([self._path[:shared], np.arange(self.length, self.length + size - shared)])
        self._ids.append(sequence.ids[shared:])
        self._positions.append(np.arange(shared, size))
        self._predictors.append(self._path[sequence.targets - 1])
        self._sequences.append(sequence)
        self._newest = sequence.ids
        self.length += size - shared

    def finished(self) -> Pack:
        end = np.full(self.length, self.length, np.int64)
        for tokens, where in self._end:
            end[tokens] = where
        of = self._sequences
        return Pack(
            ids=np.concatenate(self._ids),
            positions=np.concatenate(self._positions),
            end=end,
            predictors=np.concatenate(self._predictors),
            target_ids=np.concatenate([each.ids[each.targets] for each in of]),
            old_logprobs=np.concatenate([each.old_logprobs for each in of]),
            advantages=np.concatenate([each.advantages for each in of]),
            weights=np.concatenate([each.weights for each in of]),
            traces=len(of),
            trace_tokens=sum(len(each.ids) for each in of),
        )

    def _common(self, ids: Ints) -> int:
        """Tokens that the sequence begins with as the newest does. No earlier one has more in common with it: the
        order is sorted."""
        if not self._share:
            return 0
        size = min(len(ids), len(self._newest))
        different = np.flatnonzero(ids[:size] != self._newest[:size])
        return int(different[0]) if len(different) else size
