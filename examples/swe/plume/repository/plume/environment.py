"""Finds templates in a folder, keeps them, and prints them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plume.errors import TemplateError, TemplateNotFound
from plume.nodes import Block
from plume.parser import parse
from plume.values import Scope

MAX_DEPTH = 20
"""Of templates that include each other."""


class Template:
    def __init__(self, block: Block, environment: "Environment") -> None:
        self._block = block
        self._environment = environment

    def render(self, **names: Any) -> str:
        return "".join(self.parts(Scope(names), 0))

    def parts(self, scope: Scope, depth: int) -> Iterator[str]:
        def include(name: str, inner: Scope) -> Iterator[str]:
            if depth >= MAX_DEPTH:
                raise TemplateError(f"templates include each other too deeply, at {name!r}")
            return self._environment.get(name).parts(inner, depth + 1)

        return self._block.parts(scope, include)


class Environment:
    def __init__(self, folder: str | Path | None = None) -> None:
        self._folder = None if folder is None else Path(folder).resolve()
        self._kept: dict[str, tuple[tuple[int, int], Template]] = {}

    def from_string(self, source: str) -> Template:
        return Template(parse(source), self)

    def render(self, name: str, **names: Any) -> str:
        return self.get(name).render(**names)

    def get(self, name: str) -> Template:
        """A template of the folder. It is read again when its file has changed."""
        path = self._path(name)
        state = path.stat()
        stamp = (state.st_mtime_ns, state.st_size)
        kept = self._kept.get(name)
        if kept is not None and kept[0] == stamp:
            return kept[1]
        template = Template(parse(path.read_text(encoding="utf-8-sig"), name), self)
        self._kept[name] = (stamp, template)
        return template

    def _path(self, name: str) -> Path:
        if self._folder is None:
            raise TemplateNotFound(f"there is no template {name!r}: the environment has no folder")
        path = (self._folder / name).resolve()
        if not path.is_relative_to(self._folder) or not path.is_file():
            raise TemplateNotFound(f"there is no template {name!r}")
        return path
