"""How fast the live nodes' engines work: rates between an older and the newest count of each node.

The counts stand in the database, so that a server that has just started, or a second one, knows the rates too.
"""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import TypeAdapter
from sqlalchemy import Connection, select, update

from polar.server.records.tables import nodes
from polar.server.state import Change
from polar.types import EngineRate, EngineUse

OVER_S = 45.0
"""A rate is over at least this time, as soon as the node has been counting for so long."""
APART_S = 10.0
"""Of two counts that are kept."""
Sample = tuple[float, EngineUse]
"""When, and what the node had counted."""
_SAMPLES: TypeAdapter[list[Sample]] = TypeAdapter(list[Sample])


def note_use(change: Change, node_id: str, use: EngineUse) -> None:
    own = nodes.c.node_id == node_id
    stored = change.connection.execute(select(nodes.c.uses).where(own)).scalar_one()
    samples = with_newest(_SAMPLES.validate_json(stored), (change.now, use))
    change.connection.execute(update(nodes).where(own).values(uses=_SAMPLES.dump_json(samples).decode()))


def rate_now(connection: Connection, alive_since: float) -> EngineRate:
    stored = connection.execute(select(nodes.c.uses).where(nodes.c.last_seen > alive_since)).scalars()
    return rate_of(map(_SAMPLES.validate_json, stored))


def newest_uses(connection: Connection, alive_since: float) -> dict[str, EngineUse]:
    """What each live node last reported, by its id."""
    query = select(nodes.c.node_id, nodes.c.uses).where(nodes.c.last_seen > alive_since)
    samples = {node_id: _SAMPLES.validate_json(stored) for node_id, stored in connection.execute(query)}
    return {node_id: own[-1][1] for node_id, own in samples.items() if own}


def with_newest(samples: list[Sample], newest: Sample) -> list[Sample]:
    """The newest count replaces the one before if that is close to the one before it."""
    kept = samples[:-1] if len(samples) > 1 and newest[0] - samples[-2][0] < APART_S else samples
    old = [sample for sample in kept if sample[0] <= newest[0] - OVER_S]
    return [*old[-1:], *(sample for sample in kept if sample[0] > newest[0] - OVER_S), newest]


def rate_of(nodes_samples: Iterable[list[Sample]]) -> EngineRate:
    """All nodes together. A node counts as long as it is registered, so its counts never shrink."""
    over_s, calls, prompt, sampled = 0.0, 0.0, 0.0, 0.0
    failed_calls, sampled_calls, first_token_s, call_s = 0, 0, 0.0, 0.0
    for samples in nodes_samples:
        if not samples or samples[-1][0] <= samples[0][0]:  # it has reported once, or never
            continue
        (since, old), (until, new) = samples[0], samples[-1]
        own_s = until - since
        over_s = max(over_s, own_s)
        calls += (new.calls - old.calls) / own_s
        prompt += (new.prompt_tokens - old.prompt_tokens) / own_s
        sampled += (new.sampled_tokens - old.sampled_tokens) / own_s
        failed_calls += new.failed_calls - old.failed_calls
        sampled_calls += new.sampled_calls - old.sampled_calls
        first_token_s += new.first_token_s - old.first_token_s
        call_s += new.call_s - old.call_s
    return EngineRate(
        over_s=over_s,
        calls_per_s=calls,
        prompt_tokens_per_s=prompt,
        sampled_tokens_per_s=sampled,
        first_token_s=first_token_s / sampled_calls if sampled_calls else None,
        call_s=call_s / sampled_calls if sampled_calls else None,
        failed_calls=failed_calls,
    )
