"""The text of a task file: whole, or one line at a time where the file may be large."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from polar.errors import ConfigError

MAX_FILE_BYTES = 32 * 2**20
"""Of a file that is read as a whole, and of a line."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class TextLine(NamedTuple):
    number: int
    text: str


def whole_text(path: Path) -> str:
    """Raises `ConfigError` if it is no text, too large or empty."""
    try:
        _refuse_no_file(path)
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise ConfigError(
                f"{path}: {size} bytes, more than the {MAX_FILE_BYTES} a task file may have; write it as JSONL, "
                "one task per line"
            )
        content = path.read_bytes().removeprefix(BYTE_ORDER_MARK)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    text = _decoded(path, content)
    if not text.strip():
        raise ConfigError(f"{path}: the file is empty")
    return text


def text_lines(path: Path) -> Iterator[TextLine]:
    """Those that are not blank; the file may have any size. Raises as `whole_text` does."""
    offset, number, is_empty = 0, 0, True
    try:
        _refuse_no_file(path)
        with path.open("rb") as file:
            while line := file.readline(MAX_FILE_BYTES + 1):  # ends at \n alone: text may have U+2028
                number += 1
                if len(line) > MAX_FILE_BYTES:
                    raise ConfigError(
                        f"{path}, line {number}: longer than the {MAX_FILE_BYTES} bytes a task may have"
                    )
                text = _decoded(path, line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line, offset)
                offset += len(line)
                if text.strip():
                    is_empty = False
                    yield TextLine(number, text)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    if is_empty:
        raise ConfigError(f"{path}: the file is empty")


def _refuse_no_file(path: Path) -> None:
    if not path.is_file():
        raise ConfigError(f"{path}: no such file" if not path.exists() else f"{path}: not a file")


def _decoded(path: Path, content: bytes, offset: int = 0) -> str:
    """`offset`: of the content in the file."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: not text in UTF-8: byte {offset + error.start} is {error.object[error.start]:#x}"
        ) from error
    if "\0" in text:
        raise ConfigError(f"{path}: not a text file: it holds NUL bytes")
    return text
