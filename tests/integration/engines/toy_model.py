"""A model small enough to be known exactly: what the servers of this folder sample from, and are checked by.

A few likely ids follow each pair of ids; every other id is unlikely, all of them equally. So any id has a logprob
at any temperature, and no weights are needed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random
from typing import Any

LIKELY = 24
UNLIKELY_LOGIT = -9.0
END_ID = 2


class NoSuchSchema(Exception):
    """A schema that cannot be held."""


@dataclass
class Asked:
    prompt: list[int]
    max_tokens: int
    temperature: float = 1.0
    seed: int | None = None
    stop_ids: frozenset[int] = frozenset()
    forced: list[int] | None = None
    """The only reply that a schema leaves."""
    scripted: list[int] | None = None
    """What the model happens to say."""


@dataclass(frozen=True)
class Sampled:
    id: int
    raw: float
    processed: float
    finish: str | None


@dataclass
class ToyModel:
    size: int = 49152
    held: list[list[int]] = field(default_factory=list)
    """Sequences whose prefix need not be evaluated again."""

    def logprob(self, prefix: Sequence[int], token_id: int, temperature: float = 1.0) -> float:
        logits = _likely(tuple(prefix[-2:]), self.size)
        total = sum(math.exp(logit / temperature) for logit in logits.values())
        total += (self.size - len(logits)) * math.exp(UNLIKELY_LOGIT / temperature)
        return logits.get(token_id, UNLIKELY_LOGIT) / temperature - math.log(total)

    def reply(self, asked: Asked) -> Iterator[Sampled]:
        ids = list(asked.prompt)
        self.held.append(ids)
        for step in range(asked.max_tokens):
            given = asked.forced if asked.forced is not None else asked.scripted
            token_id = given[step] if given is not None else self._pick(ids, asked)
            raw = self.logprob(ids, token_id)
            processed = self.logprob(ids, token_id, asked.temperature) if asked.temperature else 0.0
            if asked.forced is not None:  # among the choices that the schema leaves there is one
                raw = processed = 0.0
            ids.append(token_id)
            stopped = token_id in asked.stop_ids or token_id == END_ID
            finish = "stop" if stopped else "length" if step + 1 == asked.max_tokens else None
            yield Sampled(token_id, raw, processed, finish)
            if finish:
                return

    def _pick(self, prefix: list[int], asked: Asked) -> int:
        logits = _likely(tuple(prefix[-2:]), self.size)
        if not asked.temperature:
            return max(logits, key=lambda i: logits[i])
        random = Random(f"{asked.seed}:{len(prefix)}") if asked.seed is not None else Random()
        weights = [math.exp(logit / asked.temperature) for logit in logits.values()]
        return random.choices(list(logits), weights)[0]

    def cached_tokens(self, prompt: Sequence[int]) -> int:
        """Of the prompt, what is held; its last token is evaluated in any case."""
        longest = max((_common(prompt, ids) for ids in self.held), default=0)
        return min(longest, len(prompt) - 1)


@dataclass
class ShiftedToy(ToyModel):
    """With one weight: a shift of the ids that it predicts from."""

    shift: int = 0

    def logprob(self, prefix: Sequence[int], token_id: int, temperature: float = 1.0) -> float:
        return super().logprob(self._seen(prefix), token_id, temperature)

    def _pick(self, prefix: list[int], asked: Asked) -> int:
        return super()._pick(self._seen(prefix), asked)

    def _seen(self, prefix: Sequence[int]) -> list[int]:
        return [token_id + self.shift for token_id in prefix]

    def scores(self, ids: Sequence[int]) -> list[float]:
        return [self.logprob(ids[:n], ids[n]) for n in range(1, len(ids))]


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


@lru_cache(maxsize=4096)
def _likely(last: tuple[int, ...], size: int) -> dict[int, float]:
    random = Random(str(last))
    return {random.randrange(100, size): random.gauss(0, 2) for _ in range(LIKELY)}


def instance_of(schema: dict[str, Any], random: Random) -> str:
    """A text that a schema allows, for the few kinds of schema that the tests use."""
    return json.dumps(_value(schema, random))


def _value(schema: dict[str, Any], random: Random) -> Any:
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return random.choice(schema["enum"])
    if schema.get("type") == "object":
        return {name: _value(part, random) for name, part in schema.get("properties", {}).items()}
    raise NoSuchSchema(f"no such type in the schema: {schema}")
