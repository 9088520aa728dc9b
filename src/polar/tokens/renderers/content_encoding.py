"""Text that a chat template has laid out, as ids: control tokens where the template wrote them, and only there.

What is said may spell a control token. Before the template sees it, such a spelling gets another first character,
one that stands nowhere in the conversation. The template's text is then cut at the control tokens that are left,
the pieces get their characters back, and each is encoded as content.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from tokenizers import AddedToken, Tokenizer

from polar.errors import ConfigError
from polar.tokens.renderers.encoder import TextEncoder
from polar.tokens.renderers.gguf_vocabulary import NOTHING, bytes_by_id
from polar.tokens.replies.scan import Scanner

STAND_INS = range(0xE000, 0xF900)
"""Code points for private use: no template takes them for white space or for anything it looks for."""


class LayoutTokenizer:
    """A model's tokenizer.json, with content and control kept apart."""

    def __init__(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(f"no tokenizer.json in {folder}")
        data = path.read_bytes()
        self._content, whole = (Tokenizer.from_str(data.decode()) for _ in range(2))
        self._content.encode_special_tokens = True  # control tokens in content stay the text they are
        self._content_encoder, self._whole_encoder = TextEncoder(self._content), TextEncoder(whole)
        self.fingerprint = hashlib.sha256(data).hexdigest()
        added: dict[int, AddedToken] = self._content.get_added_tokens_decoder()
        self._control_ids = {token.content: token_id for token_id, token in added.items() if token.special}
        # Of two that fit the longer comes first, as the tokenizer has it.
        control = sorted((token for token in added.values() if token.special), key=lambda each: -len(each.content))
        pattern = re.compile("|".join(map(_with_margins, control)) or NOTHING)
        self._cut = Scanner(pattern, max((_longest_match(token) for token in control), default=0))
        self._spellings = Spellings([token.content for token in control])
        try:
            self.token_bytes: Sequence[bytes] = bytes_by_id(self._content)
        except KeyError as error:
            raise ConfigError(
                f"the tokenizer in {folder} is not a byte-level one, whose tokens are read by their bytes; "
                'let the engine lay prompts out: [model] mode = "chat"'
            ) from error

    def bounded(self, context_tokens: int) -> LayoutTokenizer:
        """The same for a model with this context: see `TextEncoder.bounded`."""
        other = copy(self)
        other._content_encoder = self._content_encoder.bounded(context_tokens)
        other._whole_encoder = self._whole_encoder.bounded(context_tokens)
        return other

    def id_of(self, name: str) -> int | None:
        return self._content.token_to_id(name)

    def encode(self, text: str) -> list[int]:
        """Content: text that spells a control token stays text."""
        return self._content_encoder.encode(text)

    def encode_whole(self, text: str) -> list[int]:
        """As the tokenizer does it left to itself: control tokens wherever they are spelled."""
        return self._whole_encoder.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return self._content.decode(list(ids), skip_special_tokens=False)

    def bytes_of(self, token_id: int) -> bytes:
        """None for the ids that a model has room for and its tokenizer does not use."""
        return self.token_bytes[token_id] if token_id < len(self.token_bytes) else b""

    def disguise(self, *said: Any) -> Disguise:
        """For a conversation of which this is everything that is said."""
        return Disguise(self._spellings, said)

    def ids(self, text: str, disguise: Disguise) -> list[int]:
        """Of what a template made of a conversation in its disguise."""
        parts = self._cut.split(text)
        contents = self._content_encoder.encode_each(map(disguise.taken_off, parts[::2]))
        ids = next(contents)
        for name, content in zip(parts[1::2], contents, strict=True):
            ids += [self._named(name), *content]
        return ids

    def next_control(self, text: str, start: int) -> tuple[int, int] | None:
        """The first control token from there on, and where what follows it begins."""
        found = self._cut.search(text, start)
        return found and (self._named(found[0]), found.end())

    def _named(self, part: str) -> int:
        return self._control_ids[part if part in self._control_ids else part.strip()]


class Spellings:
    """How the control tokens of a model are spelled."""

    def __init__(self, names: Sequence[str]) -> None:
        any_name = "|".join(map(re.escape, names)) or NOTHING
        self.firsts = sorted({name[0] for name in names})
        longest = max(map(len, names), default=0)
        self.anywhere = Scanner(re.compile(any_name), longest)
        self.first = Scanner(re.compile(f"(?={any_name}).", re.DOTALL), longest)
        """The first character of each, also where two share some."""


class Disguise:
    """Lets what is said pass through a template without spelling a control token."""

    def __init__(self, spellings: Spellings, said: Any) -> None:
        self._spellings = spellings
        self._said = said
        self._originals: dict[int, str] = {}
        """By stand-in, once there is one."""

    @cached_property
    def _stand_ins(self) -> dict[str, str]:
        """By what they stand for. JSON may spell a character by its number, which is not to occur either."""
        whole = "\n".join(_texts(self._said)).lower()
        free = (chr(code) for code in STAND_INS if chr(code) not in whole and f"{code:04x}" not in whole)
        stand_ins = dict(zip(self._spellings.firsts, free, strict=False))
        if len(stand_ins) < len(self._spellings.firsts):
            raise ValueError("the conversation spells control tokens, and uses every character for private use")
        self._originals = {ord(stand_in): first for first, stand_in in stand_ins.items()}
        return stand_ins

    def put_on(self, said: Any) -> Any:
        if isinstance(said, str):
            return self._hidden(said) if self._spellings.anywhere.search(said) else said
        if isinstance(said, list):
            return [self.put_on(each) for each in cast("list[Any]", said)]
        if isinstance(said, dict):
            return {self.put_on(key): self.put_on(value) for key, value in cast("dict[Any, Any]", said).items()}
        return said

    def taken_off(self, text: str) -> str:
        return text.translate(self._originals) if self._originals else text

    def _hidden(self, text: str) -> str:
        return self._spellings.first.replace(text, self._stand_ins)


def _texts(said: Any) -> Iterator[str]:
    if isinstance(said, str):
        yield said
    elif isinstance(said, dict):
        for key, value in cast("dict[Any, Any]", said).items():
            yield str(key)
            yield from _texts(value)
    elif isinstance(said, list | tuple):
        for each in cast("Iterable[Any]", said):
            yield from _texts(each)


def _longest_match(token: AddedToken) -> int:
    """White space beside a token may be as long as the text."""
    return sys.maxsize // 2 if token.lstrip or token.rstrip else len(token.content)


def _with_margins(token: AddedToken) -> str:
    """Some tokens swallow the white space beside them."""
    before, after = (r"\s*" if strips else "" for strips in (token.lstrip, token.rstrip))
    return f"{before}{re.escape(token.content)}{after}"
