"""Compiled filters, which are kept so that a text is parsed once."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from sieve.errors import EvaluationProblem
from sieve.evaluator import Evaluator
from sieve.nodes import Node
from sieve.parser import parse

BUILT_IN: Mapping[str, Callable[..., Any]] = {
    "len": len,
    "lower": str.lower,
    "upper": str.upper,
    "trim": str.strip,
    "round": round,
    "min": min,
    "max": max,
    "startswith": str.startswith,
}
Record = Mapping[str, Any]


class Filter:
    def __init__(self, tree: Node, *, strict: bool = False) -> None:
        self._tree = tree
        self._strict = strict
        self._functions = dict(BUILT_IN)

    def register(self, name: str, function: Callable[..., Any]) -> None:
        """Adds a function, for this filter only."""
        self._functions[name] = function

    def value(self, record: Record) -> Any:
        return Evaluator(record, self._functions, strict=self._strict).value(self._tree)

    def matches(self, record: Record) -> bool:
        return bool(self.value(record))

    def apply(self, records: Iterable[Record]) -> list[Record]:
        """The matching records, in order."""
        return [record for record, matched in self._judged(records) if matched]

    def partition(self, records: Iterable[Record]) -> tuple[list[Record], list[Record]]:
        """Those that match, and those that do not."""
        parts: tuple[list[Record], list[Record]] = ([], [])
        for record, matched in self._judged(records):
            parts[0 if matched else 1].append(record)
        return parts

    def _judged(self, records: Iterable[Record]) -> Iterator[tuple[Record, bool]]:
        for number, record in enumerate(records):
            try:
                yield record, self.matches(record)
            except EvaluationProblem as error:
                raise EvaluationProblem(str(error), number) from error


def compile_filter(text: str, *, strict: bool = False) -> Filter:
    """A new filter; the tree of its text is shared with other filters of that text."""
    return Filter(_tree(text), strict=strict)


@lru_cache(maxsize=256)
def _tree(text: str) -> Node:
    return parse(text)
