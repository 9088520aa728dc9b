"""Which sampled tokens of a call may be trained on, judged by the call and by whether the harness used its reply.

POSTRUN, first step of every builder. A token that may not be trained on gets a reason; it can still stand in a
trace as context of later tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import compress, groupby, repeat
from typing import Any, Literal

import msgspec

from polar.types import NO_TOKEN_IDS, Call, CallKind, Dropped, Logprobs, LossMask, Strict, logprobs, loss_mask

SENTINEL_LOGPROB = -9999.0
"""What engines return for a missing logprob, or for minus infinity."""

PLAIN = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
"""Sampling settings under which raw logprobs belong to the distribution that was sampled."""


class DropRules(Strict):
    """Options of every builder."""

    trainable_kinds: tuple[CallKind, ...] = ("agent", "subagent", "compaction")
    """Calls of other kinds are kept as context and dropped as `kind:<kind>`."""
    superseded: Literal["drop", "keep"] = "drop"
    """How to treat a reply that no call continues and whose request the harness sent again later: it was
    abandoned, and the later one is trained on. `keep` is for harnesses that sample a prompt several times on
    purpose."""


class Verdict(msgspec.Struct, frozen=True):
    """Which tokens of one completion a trace may train on."""

    mask: LossMask
    """One per completion id."""
    logprobs: Logprobs
    """One per completion id, 0.0 where the mask is 0."""
    dropped: tuple[Dropped, ...] = ()
    """The masked positions. A call without trainable tokens has an entry even if it has no tokens."""

    @property
    def trainable(self) -> bool:
        return 1 in self.mask


def judge(call: Call, rules: DropRules, *, superseded: bool = False) -> Verdict:
    reason = _reason_to_drop(call, rules, superseded)
    return drop_all(call, reason) if reason else _judge_tokens(call)


def superseded_calls(calls: Sequence[Call], rules: DropRules) -> set[str]:
    """Ids of the calls that no call continues and whose request comes again later. Without a `request_key` a
    request equals no other."""
    if rules.superseded == "keep":
        return set()
    followed = {call.parent_id for call in calls}
    latest = {call.request_key: call.call_id for call in calls if call.request_key}
    return {
        call.call_id
        for call in calls
        if call.call_id not in followed and latest.get(call.request_key, call.call_id) != call.call_id
    }


def drop_all(call: Call, reason: str) -> Verdict:
    size = len(call.completion_ids)
    return Verdict(
        mask=loss_mask(repeat(0, size)),
        logprobs=logprobs(repeat(0.0, size)),
        dropped=(Dropped(call.call_id, 0, size, reason),),
    )


def _reason_to_drop(call: Call, rules: DropRules, superseded: bool) -> str:
    """The first reason that applies: each token gets one."""
    reasons = {
        NO_TOKEN_IDS: call.usage is not None,
        "aborted": call.finish_reason == "aborted",
        "not_received": not call.received,
        "unequal_lengths": len(call.logprobs) != len(call.completion_ids),
        "mixed_versions": call.updated_within or not _has_versions(call),
        f"kind:{call.kind}": call.kind not in rules.trainable_kinds,
        "constrained": _is_constrained(call.sampling),
        "sampling_not_plain": not _is_faithful(call),
        "empty_completion": not call.completion_ids,
        "superseded": superseded,
    }
    return next(compress(reasons, reasons.values()), "")


def _has_versions(call: Call) -> bool:
    """Whether each token has one policy version: the spans, if any, cover the reply without gaps."""
    end = 0
    for span in call.policy_spans:
        if span.start != end or span.length < 1:
            return False
        end += span.length
    return not call.policy_spans or end == len(call.completion_ids)


def _is_faithful(call: Call) -> bool:
    """Whether the logprobs belong to the distribution that was sampled."""
    return call.logprob_mode == "processed" or (call.logprob_mode == "raw" and is_plain(call.sampling))


def is_plain(sampling: dict[str, Any]) -> bool:
    """A missing setting does not count as plain."""
    return not _is_constrained(sampling) and all(sampling.get(name) == value for name, value in PLAIN.items())


def _is_constrained(sampling: dict[str, Any]) -> bool:
    """Whether a JSON schema, even an empty one, restricted the choices. The logprobs do not reflect that, whatever
    the engine's mode."""
    return sampling.get("json_schema") not in (None, False)


def _judge_tokens(call: Call) -> Verdict:
    mask = loss_mask()
    dropped: list[Dropped] = []
    for reason, run in groupby(map(_defect, call.logprobs)):
        length = sum(1 for _ in run)
        if reason:
            dropped.append(Dropped(call.call_id, len(mask), length, reason))
        mask.extend(repeat(0 if reason else 1, length))
    return Verdict(mask=mask, logprobs=_masked(call.logprobs, mask), dropped=tuple(dropped))


def _defect(logprob: float) -> str:
    if not math.isfinite(logprob) or logprob <= SENTINEL_LOGPROB:
        return "missing_logprob"
    return "bad_logprob" if logprob > 0 else ""


def _masked(values: Logprobs, mask: LossMask) -> Logprobs:
    return logprobs(value if bit else 0.0 for value, bit in zip(values, mask, strict=True))
