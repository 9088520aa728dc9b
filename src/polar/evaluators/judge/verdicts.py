"""Reads a judge's reply: one JSON object with the mark of its request, complete and within the scale, or nothing.

A JSON object that stands somewhere in a longer text is not a verdict: the judge may have quoted the agent.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn, cast

from polar.evaluators.judge.material import Material
from polar.evaluators.judge.options import JudgeOptions

FENCED = re.compile(r"\A```(?:json)?\s*\n(.*)\n```\Z", re.DOTALL)
THOUGHT_END = "</think>"


class WrongVerdict(ValueError):
    """The reply is not a verdict; the message is for the judge."""


class JudgedScores(NamedTuple):
    """What one verdict gives to the session, or to one of its calls."""

    scores: dict[str, float]
    """By criterion, in the judge's scale."""
    reason: str


Verdicts = dict[str, JudgedScores]
"""By call id; of a session under the empty text."""


def read_verdict(text: str, options: JudgeOptions, material: Material, mark: str) -> Verdicts:
    """Raises `WrongVerdict`."""
    found = _object_of(text)
    if found.get("id") != mark:
        raise WrongVerdict(f'its "id" must be "{mark}"')
    if not material.calls:
        _expect_keys(found, {"id", "reason", "scores"}, "the object")
        return {"": _judged(found, options, "the object")}
    _expect_keys(found, {"id", "calls"}, "the object")
    entries = found["calls"]
    if not isinstance(entries, list):
        raise WrongVerdict('"calls" must be a list')
    return _by_call(cast("list[Any]", entries), options, material)


def _by_call(entries: list[Any], options: JudgeOptions, material: Material) -> Verdicts:
    verdicts: dict[int, JudgedScores] = {}
    for entry in entries:
        found = _mapping(entry, 'each of "calls"')
        _expect_keys(found, {"call", "reason", "scores"}, 'each of "calls"')
        number = found["call"]
        if type(number) is not int or not 1 <= number <= len(material.calls) or number in verdicts:
            raise WrongVerdict(f'"calls" must have each number from 1 to {len(material.calls)} once')
        verdicts[number] = _judged(found, options, f"call {number}")
    if missing := [n for n in range(1, len(material.calls) + 1) if n not in verdicts]:
        raise WrongVerdict(f'"calls" lacks call {missing[0]}')
    return {material.calls[number - 1]: verdicts[number] for number in sorted(verdicts)}


def _object_of(text: str) -> Mapping[str, Any]:
    """The whole reply is the object. Thinking before it, and a code fence around it, are not part of it."""
    bare = text.rpartition(THOUGHT_END)[2].strip() if text.lstrip().startswith("<think>") else text.strip()
    fenced = FENCED.match(bare)
    try:
        found: Any = json.loads(
            fenced[1] if fenced else bare, object_pairs_hook=_without_doubles, parse_constant=_refuse_constant
        )
    except WrongVerdict:
        raise
    except (ValueError, RecursionError) as error:
        raise WrongVerdict(f"it is not one JSON object: {error}") from error
    return _mapping(found, "the answer")


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise WrongVerdict("a key stands twice in one object")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise WrongVerdict(f"{name} is not a number of JSON")


def _judged(found: Mapping[str, Any], options: JudgeOptions, where: str) -> JudgedScores:
    scores = _mapping(found["scores"], f'"scores" of {where}')
    _expect_keys(scores, {each.name for each in options.criteria}, f'"scores" of {where}')
    reason = found["reason"]
    if not isinstance(reason, str):
        raise WrongVerdict(f'"reason" of {where} must be a text')
    return JudgedScores({name: _number(value, name, options) for name, value in scores.items()}, reason)


def _number(value: Any, name: str, options: JudgeOptions) -> float:
    low, high = options.scale.low, options.scale.high
    # An integer may be too large for a float, and comparing it is exact.
    if type(value) not in (int, float) or not low <= value <= high or not math.isfinite(value):
        raise WrongVerdict(f'"{name}" must be a number from {low:g} to {high:g}')
    if options.scale.whole and value != int(value):
        raise WrongVerdict(f'"{name}" must be a whole number')
    return float(value)


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise WrongVerdict(f"{what} must be a JSON object")
    return cast("dict[str, Any]", value)


def _expect_keys(found: Mapping[str, Any], wanted: set[str], what: str) -> None:
    if set(found) != wanted:
        names = ", ".join(f'"{name}"' for name in sorted(wanted))
        raise WrongVerdict(f"{what} must have exactly these keys: {names}")
