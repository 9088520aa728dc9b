"""Splits the text of an expression into tokens."""

import re
from dataclasses import dataclass
from typing import Any

from sieve.errors import SyntaxProblem

NUMBER = re.compile(r"\d[\d_]*(\.\d+)?([eE][+-]?\d+)?")
NAME = re.compile(r"[^\W\d]\w*")
OPERATORS = ("**", "==", "!=", "<=", ">=", "??", "<", ">", "+", "-", "*", "/", "%", "(", ")", "[", "]", ",", ".")
"""Longer ones first."""
WORDS = ("and", "or", "not", "in")
CONSTANTS = {"true": True, "false": False, "null": None}
ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"'}


@dataclass(frozen=True)
class Token:
    kind: str
    """literal, name, operator or end."""
    value: Any
    line: int
    column: int


class Lexer:
    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def tokens(self) -> list[Token]:
        """All tokens; the last one is of kind `end`."""
        found: list[Token] = []
        while True:
            self._skip_space()
            if self._position >= len(self._text):
                return [*found, self._token("end", None, self._position)]
            found.append(self._next())

    def _skip_space(self) -> None:
        text = self._text
        while self._position < len(text):
            if text[self._position] == "#":
                end = text.find("\n", self._position)
                self._position = len(text) if end < 0 else end
            elif text[self._position].isspace():
                self._position += 1
            else:
                return

    def _next(self) -> Token:
        start = self._position
        if self._text[start] in "'\"":
            return self._token("literal", self._string(), start)
        if number := NUMBER.match(self._text, start):
            self._position = number.end()
            return self._token("literal", self._number(number), start)
        if name := NAME.match(self._text, start):
            self._position = name.end()
            return self._word(name.group(), start)
        for operator in OPERATORS:
            if self._text.startswith(operator, start):
                self._position += len(operator)
                return self._token("operator", operator, start)
        raise self._problem(f"unexpected character {self._text[start]!r}", start)

    def _number(self, number: re.Match[str]) -> float:
        digits = number.group().replace("_", "")
        return float(digits) if number[1] or number[2] else int(digits)

    def _word(self, word: str, start: int) -> Token:
        if word in CONSTANTS:
            return self._token("literal", CONSTANTS[word], start)
        return self._token("operator" if word in WORDS else "name", word, start)

    def _string(self) -> str:
        start = self._position
        quote = self._text[start]
        self._position += 1
        parts: list[str] = []
        while self._position < len(self._text):
            character = self._text[self._position]
            self._position += 1
            if character == quote:
                return "".join(parts)
            parts.append(self._escape() if character == "\\" else character)
        raise self._problem("the string has no end", start)

    def _escape(self) -> str:
        """The character after a backslash."""
        start = self._position - 1
        letter = self._text[self._position : self._position + 1]
        self._position += 1
        if letter in ESCAPES:
            return ESCAPES[letter]
        digits = self._text[self._position : self._position + 4]
        if letter == "u" and re.fullmatch(r"[0-9a-fA-F]{4}", digits):
            self._position += 4
            return chr(int(digits, 16))
        raise self._problem(f"unknown escape \\{letter}", start)

    def _token(self, kind: str, value: Any, start: int) -> Token:
        return Token(kind, value, *self._place(start))

    def _problem(self, message: str, start: int) -> SyntaxProblem:
        return SyntaxProblem(message, *self._place(start))

    def _place(self, position: int) -> tuple[int, int]:
        line_start = self._text.rfind("\n", 0, position) + 1
        return self._text.count("\n", 0, position) + 1, position - line_start + 1
