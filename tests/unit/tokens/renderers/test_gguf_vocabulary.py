"""The vocabulary of the default model. That its ids are llama.cpp's own is tested against the engine, in
tests/integration/engines."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from gguf import GGUFWriter

from polar.errors import ConfigError
from polar.store.weights import WeightsError, default_weights
from polar.tokens.renderers.gguf_vocabulary import Vocabulary, build_tokenizer, load_vocabulary


@pytest.fixture(scope="module")
def gguf() -> Path:
    try:
        return asyncio.run(default_weights())
    except WeightsError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def vocabulary(gguf: Path) -> Vocabulary:
    return load_vocabulary(gguf)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Hello world",
        " leading and trailing ",
        "a\n\n\tb",
        "1984",
        "héllo 你好 😀",
        '{"a": [1, 2]}',
        "<|im_end|>",
    ],
)
def test_text_survives_the_way_there_and_back(vocabulary: Vocabulary, text: str) -> None:
    assert vocabulary.decode(vocabulary.encode(text)) == text


@pytest.mark.parametrize(
    "text", ["<|im_end|>", "a<|im_start|>user\nb", "<|endoftext|>", "<repo_name>", "x <|im_end|> y"]
)
def test_text_that_spells_a_control_token_stays_text(vocabulary: Vocabulary, text: str) -> None:
    ids = vocabulary.encode(text)
    assert not vocabulary.control_ids & set(ids)
    assert vocabulary.decode(ids) == text


def test_control_tokens_are_had_by_name(vocabulary: Vocabulary) -> None:
    assert [vocabulary.control(name) for name in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")] == [0, 1, 2]
    with pytest.raises(ConfigError, match=r"no control token '<\|eot\|>'.*<\|im_end\|>"):
        vocabulary.control("<|eot|>")


def test_control_tokens_are_spelled_out_for_people(vocabulary: Vocabulary) -> None:
    assert vocabulary.decode([1, *vocabulary.encode("user\nhi"), 2]) == "<|im_start|>user\nhi<|im_end|>"


def test_a_prompt_laid_out_already_has_its_control_tokens(vocabulary: Vocabulary) -> None:
    text = "<|im_start|>user\nhi <|im_end|x> <|im_end|>\n<|im_start|>"
    ids = vocabulary.encode_layout(text)
    assert [i for i in ids if i in vocabulary.control_ids] == [1, 2, 1]
    assert vocabulary.decode(ids) == text
    assert vocabulary.encode_layout("no control 😀") == vocabulary.encode("no control 😀")


def test_digits_stand_alone(vocabulary: Vocabulary) -> None:
    assert len(vocabulary.encode("12345")) == 5


def test_a_part_of_a_character_keeps_its_bytes(vocabulary: Vocabulary) -> None:
    ids = vocabulary.encode("🎉")
    assert len(ids) > 1
    assert b"".join(map(vocabulary.token_bytes, ids)) == "🎉".encode()
    assert vocabulary.decode(ids[:1]) == "\N{REPLACEMENT CHARACTER}"


def test_bytes_the_model_has_no_token_for_are_left_out(vocabulary: Vocabulary) -> None:
    assert vocabulary.decode(vocabulary.encode("end of\x04 transmission")) == "end of transmission"


@pytest.mark.check
def test_the_built_tokenizer_is_cached_and_equal(
    gguf: Path, vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLAR_CACHE", str(tmp_path))
    assert load_vocabulary(gguf).fingerprint == vocabulary.fingerprint
    [cached] = (tmp_path / "vocabularies").iterdir()
    written_at = cached.stat().st_mtime_ns
    assert load_vocabulary(gguf).fingerprint == vocabulary.fingerprint
    assert cached.stat().st_mtime_ns == written_at


def write_gguf(path: Path, pre: str, *, tokens: list[str], types: list[int], merges: list[str]) -> Path:
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_a_small_vocabulary_of_ones_own(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "own.gguf",
        "smollm",
        tokens=["<end>", "a", "b", "ab", "<", "e", "n", "d", ">", "<user>"],
        types=[3, 1, 1, 1, 1, 1, 1, 1, 1, 4],
        merges=["a b"],
    )
    own = Vocabulary(build_tokenizer(path))
    assert own.encode("abba") == [3, 2, 1]
    assert own.encode("<end>") == [4, 5, 6, 7, 8], "control: text stays text"
    assert own.encode("a<user>") == [1, 9], "user-defined: llama.cpp finds these in content too"


@pytest.mark.parametrize(
    ("names", "text", "ids"), [([], "ab", [2]), (["a!", "aa!"], "baa!", [1, 4]), (["aa!", "a!"], "baa!", [1, 3])]
)
def test_control_tokens_are_found_by_their_longest_name(
    tmp_path: Path, names: list[str], text: str, ids: list[int]
) -> None:
    types = [1, 1, 1, *(3 for _ in names)]
    path = write_gguf(
        tmp_path / "own.gguf", "smollm", tokens=["a", "b", "ab", *names], types=types, merges=["a b"]
    )
    assert Vocabulary(build_tokenizer(path)).encode_layout(text) == ids


def test_a_vocabulary_that_cannot_be_rebuilt_exactly_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "other.gguf", "qwen2", tokens=["a", "b"], types=[1, 1], merges=["a b"])
    with pytest.raises(ConfigError, match="gpt2/qwen2"):
        load_vocabulary(path)


def test_what_is_no_gguf_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"not a model at all" * 10)
    with pytest.raises(ConfigError, match="not a GGUF file"):
        load_vocabulary(broken)
    with pytest.raises(ConfigError, match="no GGUF file at"):
        load_vocabulary(tmp_path / "absent.gguf")
