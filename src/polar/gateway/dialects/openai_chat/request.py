"""Request fields Chat Completions and legacy Completions share: sampling, how to send, what to refuse."""

from __future__ import annotations

from typing import Any

from polar.gateway.dialects.fields import bad, fields

_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "repetition_penalty": (0, 2),
    "top_k": (-1, 2**31),
    "seed": (-(2**63), 2**63),
}
_WHOLE = frozenset({"top_k", "seed"})
THINKING_FIELDS = ("reasoning_effort", "reasoning", "thinking", "enable_thinking", "chat_template_kwargs")
"""The ways in which harnesses switch a local model's thinking on and off; they have no shape to check."""


def read_asked(data: dict[str, Any]) -> dict[str, Any]:
    """Sampling and thinking as the harness wants them. The numbers are checked: a task may follow them."""
    asked = {name: _number(data[name], name) for name in _RANGES if data.get(name) is not None}
    return asked | {name: data[name] for name in THINKING_FIELDS if data.get(name) is not None}


def _number(value: Any, name: str) -> float:
    least, most = _RANGES[name]
    if type(value) not in (int, float) or not least <= value <= most:
        raise bad(f"{name} must be a number in the range the API gives it", name)
    if name not in _WHOLE:
        return value
    if value != int(value):
        raise bad(f"{name} must be a whole number", name)
    return int(value)


def read_flag(value: Any, where: str) -> bool:
    """True or false; null is false."""
    if value is None or isinstance(value, bool):
        return bool(value)
    raise bad(f"{where} must be true or false", where)


def wants_usage(data: dict[str, Any]) -> bool:
    options = fields(data.get("stream_options"))
    return read_flag(options.get("include_usage"), "stream_options.include_usage")


def refuse_fields(data: dict[str, Any], refused: dict[str, str], where: str = "") -> None:
    """For fields that change what is said and cannot be honoured: to drop them silently would lie."""
    for name, reason in refused.items():
        if data.get(name):
            raise bad(f"{name} is not supported: {reason}", where + name)


def refuse_several_samples(data: dict[str, Any], *names: str) -> None:
    for name in names:
        if data.get(name) not in (None, 1):
            raise bad(f"{name} must be one: each sample is a session of its own", name)
