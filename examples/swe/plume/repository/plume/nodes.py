"""The parts of a template, each of which prints itself."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from plume.values import Scope, Value

Include = Callable[[str, Scope], Iterator[str]]
"""Prints another template."""


class Node(Protocol):
    def parts(self, scope: Scope, include: Include) -> Iterator[str]: ...


@dataclass(frozen=True)
class Block:
    nodes: tuple[Node, ...]

    def parts(self, scope: Scope, include: Include) -> Iterator[str]:
        for node in self.nodes:
            yield from node.parts(scope, include)


@dataclass(frozen=True)
class Text:
    text: str

    def parts(self, scope: Scope, include: Include) -> Iterator[str]:
        yield self.text


@dataclass(frozen=True)
class Printed:
    value: Value

    def parts(self, scope: Scope, include: Include) -> Iterator[str]:
        yield self.value.printed(scope)


@dataclass(frozen=True)
class Condition:
    value: Value
    negated: bool = False

    def holds(self, scope: Scope) -> bool:
        return bool(self.value.of(scope)) != self.negated


@dataclass(frozen=True)
class If:
    branches: tuple[tuple[Condition, Block], ...]
    otherwise: Block

    def parts(self, scope: Scope, include: Include) -> Iterator[str]:
        for condition, block in self.branches:
            if condition.holds(scope):
                yield from block.parts(scope, include)
                return
        yield from self.otherwise.parts(scope, include)


@dataclass(frozen=True)
class For:
    name: str
    values: Value
    block: Block
    otherwise: Block

    def parts(self, scope: Scope, include: Include) -> Iterator[str]:
        items: list[Any] = list(self.values.of(scope) or ())
        for index, item in enumerate(items, start=1):
            with scope:
                scope.set(self.name, item)
                scope.set("loop", {"index": index, "first": index == 1, "last": index == len(items)})
                yield from self.block.parts(scope, include)
        if not items:
            yield from self.otherwise.parts(scope, include)


@dataclass(frozen=True)
class Set:
    name: str
    value: Value

    def parts(self, scope: Scope, include: Include) -> Iterator[str]:
        scope.set(self.name, self.value.of(scope))
        yield from ()


@dataclass(frozen=True)
class IncludeTag:
    name: Value

    def parts(self, scope: Scope, include: Include) -> Iterator[str]:
        with scope:
            yield from include(str(self.name.of(scope)), scope)
