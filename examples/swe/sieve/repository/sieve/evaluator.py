"""The value of an expression for one record."""

import operator
from collections.abc import Callable, Mapping
from typing import Any

from sieve.errors import EvaluationProblem
from sieve.nodes import Binary, Call, Comparison, Element, Field, ListOf, Literal, Node, Unary

COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda left, right: left in right,
    "not in": lambda left, right: left not in right,
}
ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "%": operator.mod,
    "**": operator.pow,
}
Functions = Mapping[str, Callable[..., Any]]


class Evaluator:
    def __init__(self, record: Mapping[str, Any], functions: Functions, *, strict: bool) -> None:
        self._record = record
        self._functions = functions
        self._strict = strict

    def value(self, node: Node) -> Any:
        match node:
            case Literal(value):
                return value
            case ListOf(items):
                return [self.value(item) for item in items]
            case Field(name, of):
                return self._field(self._record if of is None else self.value(of), name)
            case Element(of, index):
                return self._element(self.value(of), self.value(index))
            case Call(name, arguments):
                return self._call(name, [self.value(argument) for argument in arguments])
            case Unary("not", operand):
                return not self.value(operand)
            case Unary(_, operand):
                return self._computed("-", operator.neg, self.value(operand))
            case Binary(symbol, left, right):
                return self._binary(symbol, left, right)
            case Comparison(operands, operators):
                return self._comparison(operands, operators)

    def _field(self, value: Any, name: str) -> Any:
        if isinstance(value, Mapping) and name in value:
            return value[name]
        if self._strict:
            raise EvaluationProblem(f"there is no field {name!r}")
        return None

    def _element(self, value: Any, index: Any) -> Any:
        try:
            return value[index]
        except (LookupError, TypeError) as error:
            if self._strict:
                raise EvaluationProblem(f"there is no element {index!r}") from error
            return None

    def _call(self, name: str, arguments: list[Any]) -> Any:
        if name not in self._functions:
            raise EvaluationProblem(f"there is no function {name!r}")
        return self._computed(name, self._functions[name], *arguments)

    def _binary(self, symbol: str, left: Node, right: Node) -> Any:
        first = self.value(left)
        if symbol == "and":
            return self.value(right) if first else first
        if symbol == "or":
            return first if first else self.value(right)
        if symbol == "??":
            return self.value(right) if first is None else first
        return self._computed(symbol, ARITHMETIC[symbol], first, self.value(right))

    def _comparison(self, operands: tuple[Node, ...], operators: tuple[str, ...]) -> bool:
        left = self.value(operands[0])
        for symbol, operand in zip(operators, operands[1:], strict=True):
            right = self.value(operand)
            if not self._computed(symbol, COMPARE[symbol], left, right):
                return False
            left = right
        return True

    def _computed(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
            shown = ", ".join(map(repr, arguments))
            raise EvaluationProblem(f"{what} cannot be applied to {shown}: {error}") from error
