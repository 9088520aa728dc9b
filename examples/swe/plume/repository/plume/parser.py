"""Builds the parts of a template from its pieces."""

import re

from plume.errors import TemplateError
from plume.nodes import Block, Condition, For, If, IncludeTag, Node, Printed, Set, Text
from plume.scanner import Piece, scan
from plume.values import parse_value

FOR = re.compile(r"for\s+([^\W\d]\w*)\s+in\s+(.+)", re.DOTALL)
SET = re.compile(r"set\s+([^\W\d]\w*)\s*=\s*(.+)", re.DOTALL)


def parse(source: str, name: str = "") -> Block:
    return Parser(list(scan(source, name)), name).whole()


class Parser:
    def __init__(self, pieces: list[Piece], name: str) -> None:
        self._pieces = pieces
        self._name = name
        self._index = 0

    def whole(self) -> Block:
        block = self._block(())
        if self._index < len(self._pieces):
            piece = self._pieces[self._index]
            raise self._problem(f"unexpected {{% {piece.text} %}}", piece)
        return block

    def _block(self, ends: tuple[str, ...], opened: Piece | None = None) -> Block:
        """Nodes up to a tag in `ends`, which is left to the caller."""
        nodes: list[Node] = []
        while self._index < len(self._pieces):
            piece = self._pieces[self._index]
            if piece.kind == "tag" and _word(piece) in (*ends, "elif", "else", "endif", "endfor"):
                if _word(piece) not in ends and opened is not None:
                    raise self._problem(f"unexpected {{% {piece.text} %}}", piece)
                return Block(tuple(nodes))
            self._index += 1
            nodes.append(self._node(piece))
        if opened is not None:
            raise self._problem(f"{{% {opened.text} %}} has no end", opened)
        return Block(tuple(nodes))

    def _node(self, piece: Piece) -> Node:
        try:
            if piece.kind == "text":
                return Text(piece.text)
            return Printed(parse_value(piece.text)) if piece.kind == "value" else self._tag(piece)
        except TemplateError as error:
            raise error if error.line is not None else self._problem(str(error), piece) from error

    def _tag(self, piece: Piece) -> Node:
        word, _, rest = piece.text.partition(" ")
        if word == "if":
            return self._if(piece)
        if found := FOR.fullmatch(piece.text):
            return self._for(piece, found)
        if found := SET.fullmatch(piece.text):
            return Set(found[1], parse_value(found[2]))
        if word == "include":
            return IncludeTag(parse_value(rest.strip()))
        raise self._problem(f"unknown tag {{% {piece.text} %}}", piece)

    def _if(self, opened: Piece) -> If:
        branches = [(_condition(opened), self._block(("elif", "else", "endif"), opened))]
        while _word(self._pieces[self._index]) == "elif":
            self._index += 1
            condition = _condition(self._pieces[self._index - 1])
            branches.append((condition, self._block(("elif", "else", "endif"), opened)))
        return If(tuple(branches), self._rest("endif", opened))

    def _for(self, opened: Piece, found: re.Match[str]) -> For:
        block = self._block(("else", "endfor"), opened)
        return For(found[1], parse_value(found[2]), block, self._rest("endfor", opened))

    def _rest(self, end: str, opened: Piece) -> Block:
        """The part after `else`, if there is one, and the end."""
        otherwise = Block(())
        if _word(self._pieces[self._index]) == "else":
            self._index += 1
            otherwise = self._block((end,), opened)
        self._index += 1
        return otherwise

    def _problem(self, message: str, piece: Piece) -> TemplateError:
        return TemplateError(message, self._name, piece.line)


def _word(piece: Piece) -> str:
    return piece.text.split(None, 1)[0] if piece.text else ""


def _condition(piece: Piece) -> Condition:
    text = piece.text.partition(" ")[2].strip()
    negated = text.startswith("not ")
    return Condition(parse_value(text.removeprefix("not ").strip()), negated)
