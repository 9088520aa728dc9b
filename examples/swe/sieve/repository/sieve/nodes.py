"""The tree of an expression."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Literal:
    value: Any


@dataclass(frozen=True)
class ListOf:
    items: tuple["Node", ...]


@dataclass(frozen=True)
class Field:
    """A field of the record, or of another value."""

    name: str
    of: "Node | None" = None


@dataclass(frozen=True)
class Element:
    of: "Node"
    index: "Node"


@dataclass(frozen=True)
class Call:
    name: str
    arguments: tuple["Node", ...]


@dataclass(frozen=True)
class Unary:
    operator: str
    operand: "Node"


@dataclass(frozen=True)
class Binary:
    operator: str
    left: "Node"
    right: "Node"


@dataclass(frozen=True)
class Comparison:
    """`a < b <= c`: operands a, b, c and operators <, <=."""

    operands: tuple["Node", ...]
    operators: tuple[str, ...]


Node = Literal | ListOf | Field | Element | Call | Unary | Binary | Comparison
