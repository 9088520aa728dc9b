"""The vocabulary of a GGUF file, as an encoder with the same ids as llama.cpp.

Content and control tokens are kept apart: `encode` never makes a control token, whatever the text says; control
tokens are looked up by name. Reading a GGUF takes seconds, so the tokenizer built from it is cached.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from copy import copy
from pathlib import Path
from typing import Any

from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from polar.config import cache_dir
from polar.errors import ConfigError
from polar.store.paths import write_whole
from polar.tokens.renderers.encoder import ControlTokens, TextEncoder, bytes_by_id

CONTROL_TYPE = 3
USER_DEFINED_TYPE = 4
PRE_TOKENIZERS = ("smollm",)
"""llama.cpp's pre-tokenizers that are rebuilt here and compared with the engine."""
CACHE_FORMAT = 1
"""Part of a cached file's name; increase it when the same GGUF must be built differently."""


class Vocabulary:
    """Text to ids and back for one model."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        # Control tokens are added tokens marked special: with this flag their text in content stays text.
        tokenizer.encode_special_tokens = True
        self.encoder = TextEncoder(tokenizer)
        """Of content: text that spells a control token stays text. Bytes without a token are left out, as in
        llama.cpp; SmolLM2 lacks some ASCII control characters and rare planes."""
        self._control = ControlTokens(tokenizer)
        self.bytes_by_id = bytes_by_id(tokenizer)
        """The bytes of each token, which may be part of a character."""
        self.fingerprint = hashlib.sha256(tokenizer.to_str().encode()).hexdigest()
        """Vocabularies with equal fingerprints encode alike."""

    def __len__(self) -> int:
        return len(self.bytes_by_id)

    def bounded(self, context_tokens: int) -> Vocabulary:
        """The same for a model with this context: see `TextEncoder.bounded`."""
        other = copy(self)
        other.encoder = self.encoder.bounded(context_tokens)
        return other

    def encode(self, text: str) -> list[int]:
        """Ids of content."""
        return self.encoder.encode(text)

    def encode_layout(self, text: str) -> list[int]:
        """Ids of a rendered prompt: control tokens where the text spells them."""
        return self._control.encode(text, self.encoder)

    def decode(self, ids: Iterable[int]) -> str:
        """Text with control tokens spelled out; invalid bytes become U+FFFD."""
        return b"".join(self.bytes_by_id[i] for i in ids).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return self.bytes_by_id[token_id]

    def control(self, name: str) -> int:
        """The id of a control token such as `<|im_end|>`."""
        ids = self._control.ids
        if name not in ids:
            raise ConfigError(f"no control token {name!r}; this vocabulary has {', '.join(ids)}")
        return ids[name]

    @property
    def control_ids(self) -> frozenset[int]:
        return frozenset(self._control.ids.values())


def load_vocabulary(gguf_path: Path) -> Vocabulary:
    cached = _cache_path(gguf_path)
    if not cached.exists():
        cached.parent.mkdir(parents=True, exist_ok=True)
        write_whole(cached, build_tokenizer(gguf_path).to_str().encode(), private=False)
    return Vocabulary(Tokenizer.from_file(str(cached)))


def _cache_path(gguf_path: Path) -> Path:
    if not gguf_path.is_file():
        raise ConfigError(f"no GGUF file at {gguf_path}; correct the option `gguf`")
    state = gguf_path.stat()
    key = f"{CACHE_FORMAT}:{gguf_path.resolve()}:{state.st_size}:{state.st_mtime_ns}"
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    return cache_dir() / "vocabularies" / f"{gguf_path.stem}-{digest}.tokenizer.json"


def build_tokenizer(gguf_path: Path) -> Tokenizer:
    """A byte-level BPE tokenizer with the GGUF's tokens, merges and control tokens."""
    try:
        fields: dict[str, Any] = GGUFReader(gguf_path).fields
    except ValueError as error:
        raise ConfigError(f"{gguf_path} is not a GGUF file: {error}") from error
    kind, cut = (_content(fields, name) for name in ("model", "pre"))
    if kind != "gpt2" or cut not in PRE_TOKENIZERS:
        raise ConfigError(
            f"{gguf_path.name} has the vocabulary {kind}/{cut}; Polar supports only "
            f"gpt2/{', gpt2/'.join(PRE_TOKENIZERS)}: use a renderer with the model's own tokenizer"
        )
    return _assemble(*(_content(fields, name) for name in ("tokens", "token_type", "merges")))


def _content(fields: dict[str, Any], name: str) -> Any:
    field = fields.get(f"tokenizer.ggml.{name}")
    return None if field is None else field.contents()


def _assemble(tokens: list[str], types: list[int], merges: list[str]) -> Tokenizer:
    pairs = [(first, second) for first, _, second in (merge.partition(" ") for merge in merges)]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    # Any: the package's lists of tokens are only partly typed.
    tokenizer: Any = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(_added(tokens, types, CONTROL_TYPE))
    tokenizer.add_tokens(_added(tokens, types, USER_DEFINED_TYPE))
    return tokenizer


def _added(tokens: list[str], types: list[int], wanted: int) -> list[AddedToken]:
    return [
        AddedToken(token, special=wanted == CONTROL_TYPE, normalized=False)
        for token, kind in zip(tokens, types, strict=True)
        if kind == wanted
    ]
