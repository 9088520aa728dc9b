"""Splits a data set into train and test by whole repositories, as near to the wanted shares as possible."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Literal

Side = Literal["train", "test"]
SIDES: tuple[Side, ...] = ("train", "test")


def split_repositories(sessions: Mapping[str, int], test_share: float, seed: int) -> dict[str, Side]:
    """`sessions`: how many each repository has. Both sides get one if there are two and a test part is wanted.
    Equal input gives equal output; among equally good splits the seed chooses."""
    repositories = sorted((name for name in sessions if sessions[name]), key=lambda name: _shuffled(name, seed))
    splits = test_share > 0 and len(repositories) > 1
    test = _nearest(repositories, sessions, test_share) if splits else frozenset[str]()
    return {name: "test" if name in test else "train" for name in sessions}


def _nearest(repositories: list[str], sessions: Mapping[str, int], test_share: float) -> set[str]:
    """The repositories whose sessions sum up to the number nearest to the wanted one, neither none nor all of
    them. Bit n of `reachable[k]`: some of the first k repositories have n sessions together."""
    total = sum(sessions[name] for name in repositories)
    reachable = [1]
    for name in repositories:
        reachable.append(reachable[-1] | reachable[-1] << sessions[name])
    sums = [number for number in range(1, total) if reachable[-1] >> number & 1]
    left = min(sums, key=lambda number: abs(number - total * test_share))
    chosen: set[str] = set()
    for position in range(len(repositories), 0, -1):
        name = repositories[position - 1]
        if not reachable[position - 1] >> left & 1:
            chosen.add(name)
            left -= sessions[name]
    return chosen


def _shuffled(name: str, seed: int) -> bytes:
    """A place in an order that does not depend on the machine or the version of Python."""
    return hashlib.sha256(f"{seed}:{name}".encode()).digest()
