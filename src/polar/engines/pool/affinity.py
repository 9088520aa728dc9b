"""Which replica a session's calls go to: the same one as long as it is in service, for its prefix cache.

By rendezvous hashing: each pair of session and replica has a fixed random rank, and a session goes to the replica
that ranks highest. If a replica leaves, only its own sessions move; when it returns, they return. Nodes agree
without talking to each other, because they compute the same ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from hashlib import blake2b
from typing import Protocol, TypeVar


class Loaded(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def under_way(self) -> int: ...


L = TypeVar("L", bound=Loaded)


def ranked(session_id: str, replicas: Sequence[L]) -> list[L]:
    """The session's own replica first, then those it would move to."""
    return sorted(replicas, key=lambda replica: _rank(session_id, replica.name), reverse=True)


def chosen(session_id: str, replicas: Sequence[L], load_factor: float) -> L:
    """The first in rank that has not much more than its share of the calls under way."""
    calls = sum(replica.under_way for replica in replicas) + 1
    most = math.ceil(load_factor * calls / len(replicas))
    fitting = (replica for replica in ranked(session_id, replicas) if replica.under_way < most)
    return next(fitting)  # not all can be above their common average


def _rank(session_id: str, name: str) -> bytes:
    key = f"{len(session_id)}:{session_id}{name}"
    return blake2b(key.encode(errors="surrogatepass"), digest_size=8).digest()
