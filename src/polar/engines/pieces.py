"""What engines do with ids and pieces: join, cut at a stop id, compare, mark missing logprobs."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec

from polar.engines.base import Piece
from polar.types import TokenIds, logprobs, token_ids


async def joined(pieces: AsyncGenerator[Piece]) -> Piece:
    async with aclosing(pieces):
        return one_piece([piece async for piece in pieces])


def one_piece(pieces: Sequence[Piece]) -> Piece:
    """All pieces of a reply as one, with the last one's spans, and the version if all have the same."""
    last = pieces[-1] if pieces else Piece(token_ids(), logprobs())
    versions = {piece.policy_version for piece in pieces if piece.ids}
    return msgspec.structs.replace(
        last,
        ids=token_ids(i for piece in pieces for i in piece.ids),
        logprobs=logprobs(value for piece in pieces for value in piece.logprobs),
        policy_version=versions.pop() if len(versions) == 1 else "",
    )


def cut_at_stop(ids: Sequence[int], stop_ids: tuple[int, ...]) -> TokenIds:
    """The ids up to and including the first stop id, for servers that sample on. Cutting is exact: later tokens
    cannot have changed earlier ones."""
    ends = (position for position, token_id in enumerate(ids, 1) if token_id in stop_ids)
    return token_ids(ids[: next(ends, len(ids))])


def or_missing(value: float | None, sentinel: float) -> float:
    """The logprob, or NaN where the server had none and wrote `sentinel` or less."""
    return math.nan if value is None or not math.isfinite(value) or value <= sentinel else value
