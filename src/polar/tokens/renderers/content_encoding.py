"""Text rendered by a chat template, as ids: control tokens only where the template wrote them.

Messages may spell a control token. Before the template sees them, the first character of each such spelling is
replaced by one that occurs nowhere in the conversation. The rendered text is then cut at the control tokens that
are left, the pieces get their characters back, and each is encoded as content.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer

from polar.errors import ConfigError
from polar.tokens.renderers.encoder import NOTHING, ControlTokens, Scanner, TextEncoder, bytes_by_id

STAND_INS = range(0xE000, 0xF900)
"""Private-use code points: no template treats them as white space or searches for them."""


class LayoutTokenizer:
    """A model's tokenizer.json that keeps content and control tokens apart."""

    def __init__(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(f"no tokenizer.json in {folder}")
        data = path.read_bytes()
        self._content, whole = (Tokenizer.from_str(data.decode()) for _ in range(2))
        self._content.encode_special_tokens = True  # control tokens in content stay text
        self.content_encoder = TextEncoder(self._content)
        """Text that spells a control token stays text."""
        self.whole_encoder = TextEncoder(whole)
        """As the tokenizer does it by default: control tokens wherever they are spelled."""
        self.fingerprint = hashlib.sha256(data).hexdigest()
        self._control = ControlTokens(self._content)
        self._spellings = ControlSpellings(list(self._control.ids))
        self._folder = folder

    @cached_property
    def token_bytes(self) -> Sequence[bytes]:
        try:
            return bytes_by_id(self._content)
        except KeyError as error:
            raise ConfigError(
                f"the tokenizer in {self._folder} is not byte-level, which reading replies requires; "
                'let the engine render prompts: [model] mode = "chat"'
            ) from error

    def bounded(self, context_tokens: int) -> LayoutTokenizer:
        """The same for a model with this context: see `TextEncoder.bounded`."""
        other = copy(self)
        other.content_encoder = self.content_encoder.bounded(context_tokens)
        other.whole_encoder = self.whole_encoder.bounded(context_tokens)
        return other

    def id_of(self, name: str) -> int | None:
        return self._content.token_to_id(name)

    def encode(self, text: str) -> list[int]:
        return self.content_encoder.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return self._content.decode(list(ids), skip_special_tokens=False)

    def bytes_of(self, token_id: int) -> bytes:
        """Empty for ids that the model has and its tokenizer does not use."""
        return self.token_bytes[token_id] if token_id < len(self.token_bytes) else b""

    def escaping(self, *conversation: Any) -> ControlEscape:
        """`conversation`: everything that the template will be given."""
        return ControlEscape(self._spellings, conversation)

    def ids(self, text: str, escape: ControlEscape) -> list[int]:
        """Ids of what a template rendered from an escaped conversation."""
        return self._control.encode(text, self.content_encoder, escape.unescape)

    def next_control(self, text: str, start: int) -> tuple[int, int] | None:
        """The first control token from `start` on, and where the text after it begins."""
        return self._control.next(text, start)


class ControlSpellings:
    """How the control tokens of a model are spelled."""

    def __init__(self, names: Sequence[str]) -> None:
        any_name = "|".join(map(re.escape, names)) or NOTHING
        self.firsts = sorted({name[0] for name in names})
        longest = max(map(len, names), default=0)
        self.anywhere = Scanner(re.compile(any_name), longest)
        self.first = Scanner(re.compile(f"(?={any_name}).", re.DOTALL), longest)
        """Matches the first character of each, also if two overlap."""


class ControlEscape:
    """Escapes the control tokens that messages and tools spell, so that a template passes them on as text."""

    def __init__(self, spellings: ControlSpellings, conversation: Any) -> None:
        self._spellings = spellings
        self._conversation = conversation
        self._originals: dict[int, str] = {}
        """By stand-in, once there is one."""

    @cached_property
    def _stand_ins(self) -> dict[str, str]:
        """By the character they replace. JSON may spell a character by its number, so the number is avoided
        too."""
        whole = "\n".join(_texts(self._conversation)).lower()
        free = (chr(code) for code in STAND_INS if chr(code) not in whole and f"{code:04x}" not in whole)
        stand_ins = dict(zip(self._spellings.firsts, free, strict=False))
        if len(stand_ins) < len(self._spellings.firsts):
            raise ValueError("the conversation spells control tokens and uses every private-use character")
        self._originals = {ord(stand_in): first for first, stand_in in stand_ins.items()}
        return stand_ins

    def escape(self, value: Any) -> Any:
        if isinstance(value, str):
            found = self._spellings.anywhere.search(value)
            return self._spellings.first.replace(value, self._stand_ins) if found else value
        if isinstance(value, list):
            return [self.escape(each) for each in cast("list[Any]", value)]
        if isinstance(value, dict):
            return {self.escape(key): self.escape(each) for key, each in cast("dict[Any, Any]", value).items()}
        return value

    def unescape(self, text: str) -> str:
        return text.translate(self._originals) if self._originals else text


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in cast("dict[Any, Any]", value).items():
            yield str(key)
            yield from _texts(each)
    elif isinstance(value, list | tuple):
        for each in cast("Iterable[Any]", value):
            yield from _texts(each)
