"""`tokens`: ids and labels, for a trainer that tokenises nothing again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from polar.data.export.plan import ExportPlan
from polar.data.export.selection import ChosenSession
from polar.types import Trace

IGNORED = -100
"""The label of a token without loss."""


def token_rows(chosen: ChosenSession, _: ExportPlan) -> Iterator[dict[str, Any]]:
    for item in chosen.traces:
        yield labelled_ids(item.trace) | {
            "session_id": chosen.session_id,
            "task_id": chosen.session.result.task_id,
            "kind": item.trace.kind,
            "reward": item.reward,
        }


def labelled_ids(trace: Trace) -> dict[str, list[int]]:
    """All tokens of a trace; the label of a sampled token is its id, of every other `IGNORED`."""
    return {
        "input_ids": [*trace.prompt_ids, *trace.response_ids],
        "labels": [IGNORED] * len(trace.prompt_ids) + response_labels(trace),
    }


def response_labels(trace: Trace) -> list[int]:
    pairs = zip(trace.response_ids, trace.loss_mask, strict=True)
    return [token_id if trained else IGNORED for token_id, trained in pairs]
