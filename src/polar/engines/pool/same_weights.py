"""Whether replicas have the same weights: by the version that they report with a token, else by their logprobs.

Every replica samples one token, and an engine whose server knows the version of its weights gives it with the
token. A replica that was restarted reports none, and one that missed an update an older one. Servers that report
no version score a few tokens instead, and their logprobs are compared. That sees a difference only above
`max_drift`; a smaller one changes the logprobs of sampled tokens by no more than different hardware does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from polar.engines.base import GenerateRequest, Piece, Scorer
from polar.engines.pieces import joined
from polar.engines.pool.replica import Replica
from polar.types import Sampling, token_ids

SESSION = "replica-check"
IDS = tuple(range(100, 124))
"""Every vocabulary has them."""
POSITIONS = tuple(range(9, 24, 2))


@dataclass(frozen=True)
class WeightState:
    """What a replica says about its weights."""

    version: str
    """Empty: its server names none."""
    scores: tuple[float, ...] = ()
    """Empty: it names a version, or does not score."""


class TokenSampler(Protocol):
    def generate(self, request: GenerateRequest) -> AsyncGenerator[Piece]: ...


async def weight_state(engine: TokenSampler) -> WeightState:
    """Its version, or scores if it names none. Raises `EngineError`. Waits while the server is held."""
    request = GenerateRequest(token_ids(IDS), 1, Sampling(), (), SESSION)
    piece = await joined(engine.generate(request))
    version = version_in(piece)
    if version or not isinstance(engine, Scorer):
        return WeightState(version)
    return WeightState("", tuple(await engine.score(token_ids(IDS), POSITIONS)))


def version_in(piece: Piece) -> str:
    """The weight version that the server reports with a piece, at its end."""
    return piece.policy_spans[-1].version if piece.policy_spans else piece.policy_version


def current_version(versions: Sequence[str], policy: str) -> str:
    """The version that replicas should have: the policy's, if any replica has it. Else the most frequent named
    one: the trainer names a version at the engines before the nodes hear of it, and a node hears of it with its
    first heartbeat. Empty if none is named."""
    if policy and policy in versions:
        return policy
    named = Counter(version for version in versions if version)
    return named.most_common(1)[0][0] if named else ""


def drift(one: WeightState, other: WeightState) -> float:
    """Mean difference of their scores; 0 where there is nothing to compare."""
    pairs = list(zip(one.scores, other.scores, strict=False))
    return sum(abs(a - b) for a, b in pairs) / len(pairs) if pairs else 0.0


def stale(states: Mapping[Replica, WeightState], policy: str) -> dict[Replica, str]:
    """The replicas whose version is not the current one, each with the reason."""
    current = current_version([state.version for state in states.values()], policy)
    return {
        replica: (
            f"it has the weights of version {state.version or '(none named)'}, the pool those of {current}; the "
            "next weight update brings it back"
        )
        for replica, state in states.items()
        if state.version != current
    }
