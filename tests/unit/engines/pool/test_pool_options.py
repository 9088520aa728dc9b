"""How a pool is written in polar.toml."""

from __future__ import annotations

from typing import Any

import pytest

from polar.engines.pool.options import PoolOptions
from polar.errors import ConfigError
from polar.registry import make
from polar.types import Spec

A, B = "http://10.0.0.1:8000", "http://10.0.0.2:8000"


def test_the_short_form_is_the_long_one() -> None:
    short = PoolOptions(engine="vllm", urls=(A, B), options={"parallel": 9})
    long = PoolOptions(
        replicas=tuple(Spec(name="vllm", options={"parallel": 9, "url": url}) for url in (A, B)),
    )
    assert short.specs() == long.specs()
    assert short.named() == long.named() == [A, B]


def test_a_replica_is_called_by_its_address_however_it_is_written() -> None:
    assert PoolOptions(engine="vllm", urls=(f"{A}/", f"{B}/v1")).named() == [A, B]


def test_one_without_an_address_has_a_number() -> None:
    assert PoolOptions(replicas=("embedded", "embedded")).named() == ["embedded 1", "embedded 2"]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "give either `replicas`, or `engine"),
        ({"urls": [A]}, "belong together"),
        ({"engine": "vllm"}, "belong together"),
        ({"replicas": ["vllm"], "engine": "vllm", "urls": [A]}, "give either"),
        ({"engine": "vllm", "urls": [A, f"{A}/"]}, f"{A} is in the pool twice"),
        ({"engine": "vllm", "urls": [A], "load_factor": 0.5}, "load_factor"),
        ({"engine": "vllm", "urls": [A], "retries": 3}, "retries"),
        ({"engine": "vllm", "urls": ["nowhere"]}, "is not the address of a server"),
        ({"engine": "vlm", "urls": [A]}, "did you mean"),
        ({"engine": "vllm", "urls": [A], "options": {"paralel": 3}}, "paralel"),
    ],
)
def test_what_is_wrong_is_found_before_anything_starts(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make("engine", Spec(name="pool", options=options))
