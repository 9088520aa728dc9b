"""Builds the tree of an expression by the binding power of its operators."""

from sieve.errors import SyntaxProblem
from sieve.lexer import Lexer, Token
from sieve.nodes import Binary, Call, Comparison, Element, Field, ListOf, Literal, Node, Unary

COMPARISONS = frozenset({"==", "!=", "<", "<=", ">", ">=", "in", "not in"})
POWERS = {"or": 10, "and": 20, "??": 50, "+": 60, "-": 60, "*": 70, "/": 70, "%": 70, "**": 90}
NOT_POWER = 30
COMPARISON_POWER = 40
MINUS_POWER = 80
RIGHT_TO_LEFT = frozenset({"**", "??"})


def parse(text: str) -> Node:
    parser = Parser(Lexer(text).tokens())
    tree = parser.expression(0)
    parser.expect("end", None)
    return tree


class Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._index = 0

    @property
    def _current(self) -> Token:
        return self._tokens[self._index]

    def expression(self, power: int) -> Node:
        """An expression whose operators all bind tighter than `power`."""
        left = self._operand()
        while True:
            operator = self._operator()
            if operator in COMPARISONS:
                if power >= COMPARISON_POWER:
                    return left
                left = self._comparison(left)
            elif operator in POWERS and POWERS[operator] > power:
                self._index += 1
                own = POWERS[operator]
                right = self.expression(own - 1 if operator in RIGHT_TO_LEFT else own)
                left = Binary(operator, left, right)
            else:
                return left

    def expect(self, kind: str, value: str | None) -> Token:
        token = self._current
        if token.kind != kind or token.value != value:
            wanted = "the end" if kind == "end" else repr(value)
            raise self._problem(f"expected {wanted}, found {self._shown(token)}")
        self._index += 1
        return token

    def _operator(self) -> str:
        """The operator at this place, which may be the two words `not in`; empty: none."""
        if self._current.kind != "operator":
            return ""
        if self._current.value == "not":
            after = self._tokens[self._index + 1]
            return "not in" if (after.kind, after.value) == ("operator", "in") else ""
        return self._current.value

    def _comparison(self, first: Node) -> Node:
        operands, operators = [first], []
        while (operator := self._operator()) in COMPARISONS:
            self._index += 2 if operator == "not in" else 1
            operators.append(operator)
            operands.append(self.expression(COMPARISON_POWER))
        return Comparison(tuple(operands), tuple(operators))

    def _operand(self) -> Node:
        if self._takes("not"):
            return Unary("not", self.expression(NOT_POWER))
        if self._takes("-"):
            return Unary("-", self.expression(MINUS_POWER))
        node = self._atom()
        while True:
            if self._takes("."):
                node = Field(self._name(), node)
            elif self._takes("["):
                node = Element(node, self.expression(0))
                self.expect("operator", "]")
            else:
                return node

    def _atom(self) -> Node:
        token = self._current
        if token.kind == "literal":
            self._index += 1
            return Literal(token.value)
        if token.kind == "name":
            name = self._name()
            return Call(name, self._items(")")) if self._takes("(") else Field(name)
        if self._takes("["):
            return ListOf(self._items("]"))
        if self._takes("("):
            inner = self.expression(0)
            self.expect("operator", ")")
            return inner
        raise self._problem(f"expected a value, found {self._shown(token)}")

    def _items(self, closing: str) -> tuple[Node, ...]:
        """Expressions with commas between them; a comma may also follow the last one."""
        items: list[Node] = []
        while not self._takes(closing):
            items.append(self.expression(0))
            if not self._takes(","):
                self.expect("operator", closing)
                break
        return tuple(items)

    def _name(self) -> str:
        token = self._current
        if token.kind != "name":
            raise self._problem(f"expected a name, found {self._shown(token)}")
        self._index += 1
        return token.value

    def _takes(self, operator: str) -> bool:
        if self._current.kind == "operator" and self._current.value == operator:
            self._index += 1
            return True
        return False

    def _problem(self, message: str) -> SyntaxProblem:
        return SyntaxProblem(message, self._current.line, self._current.column)

    def _shown(self, token: Token) -> str:
        return "the end" if token.kind == "end" else repr(token.value)
