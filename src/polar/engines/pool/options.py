"""The options of a pool: which replicas it has, and how patient it is with them."""

from __future__ import annotations

from collections import Counter
from typing import Any, Self

from pydantic import Field, model_validator

from polar.types import Spec, Strict

URL = "url"


class PoolOptions(Strict):
    replicas: tuple[Spec, ...] = ()
    """The engine of each replica, as `[engine]` names one. Or, shorter, the three fields below."""
    engine: str = ""
    """The engine of all replicas."""
    urls: tuple[str, ...] = ()
    """The address of each replica."""
    options: dict[str, Any] = {}
    """Further options of that engine, the same for all replicas."""
    start_wait_s: float = Field(default=60.0, gt=0)
    """How long the start waits for replicas that do not answer yet. Then the pool starts with the others."""
    patience_s: float = Field(default=30.0, ge=0)
    """How long a call waits for a replica while none is in service."""
    failovers: int = Field(default=3, ge=0)
    """How often a call that has produced nothing may move on to another replica."""
    connections: int = Field(default=512, ge=1)
    """Calls under way at one replica, of this node. More wait here, in order."""
    load_factor: float = Field(default=1.5, ge=1)
    """A call leaves its session's replica if that would have more than this many times its share of the calls."""
    check_s: float = Field(default=5.0, gt=0)
    """How often each replica is asked whether it answers."""
    check_timeout_s: float = Field(default=10.0, gt=0)
    """How long it may take for that."""
    max_drift: float = Field(default=0.1, gt=0)
    """Mean difference of logprobs above which two replicas do not have the same weights. It decides only for
    servers that report no weight version."""

    @model_validator(mode="after")
    def _has_replicas(self) -> Self:
        short = bool(self.engine or self.urls or self.options)
        if bool(self.replicas) == short:
            raise ValueError('give either `replicas`, or `engine = "vllm"` and `urls = [...]`')
        if short and not (self.engine and self.urls):
            raise ValueError("`engine` and `urls` belong together")
        named = Counter(self.named())
        if len(named) < len(self.specs()):
            twice = next(name for name, count in named.items() if count > 1)
            raise ValueError(f"{twice} is in the pool twice")
        return self

    def specs(self) -> tuple[Spec, ...]:
        if self.replicas:
            return self.replicas
        return tuple(Spec(name=self.engine, options={**self.options, URL: url}) for url in self.urls)

    def named(self) -> list[str]:
        """What each replica is called: its address, which all nodes that share it know it by."""
        return [_name(spec, number) for number, spec in enumerate(self.specs(), 1)]


def _name(spec: Spec, number: int) -> str:
    url = spec.options.get(URL)
    return url.rstrip("/").removesuffix("/v1") if isinstance(url, str) else f"{spec.name} {number}"
