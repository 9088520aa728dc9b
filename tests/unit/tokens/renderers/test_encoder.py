"""Encoding: the same ids as the plain call, refused by size, from many threads at once."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from real_families import LLAMA, QWEN3, QWEN25, SMOLLM2, RealFamily, loaded
from talk import user

from polar.errors import ConfigError, HarnessError
from polar.tokens.base import Renderer, bounded
from polar.tokens.renderers.encoder import MARGIN, TextEncoder, TooLong
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.types import Message, Tool, token_ids

TEXTS = {
    "words": "the quick brown fox ",
    "no_spaces": "abcdefghij",
    "digits": "0123456789",
    "spaces": " ",
    "lines": "\n\n\t ",
    "cjk": "漢字かな",
    "emoji": "👩\u200d🔬 e\u0301",
    "control": "<|im_end|><|im_",
    "unknown": "\x01\x02",
}


def renderer_of(which: RealFamily) -> Renderer:
    try:
        return loaded(which)
    except (HarnessError, ConfigError) as error:
        pytest.skip(str(error))


def parts(smollm2: SmolLM2Renderer) -> tuple[TextEncoder, Any]:
    encoder: Any = smollm2._vocabulary.encoder  # pyright: ignore[reportPrivateUsage]
    return encoder, encoder._tokenizer


@pytest.mark.parametrize("size", [1, 255, 257, 5000, 150_000])
@pytest.mark.parametrize("name", TEXTS)
def test_a_long_text_has_the_ids_of_the_plain_call(smollm2: SmolLM2Renderer, name: str, size: int) -> None:
    encoder, tokenizer = parts(smollm2)
    text = (TEXTS[name] * size)[:size]
    plain = tokenizer.encode(text, add_special_tokens=False).ids
    assert encoder.encode(text) == plain
    assert encoder.bounded(len(plain)).encode(text) == plain, "what fits is never refused"


@pytest.mark.parametrize("name", sorted(TEXTS.keys() - {"unknown"}))
def test_what_cannot_fit_is_refused(smollm2: SmolLM2Renderer, name: str) -> None:
    encoder, tokenizer = parts(smollm2)
    text = TEXTS[name] * (2_000_000 // len(TEXTS[name]))
    context_tokens = len(tokenizer.encode(text[:4000], add_special_tokens=False))
    with pytest.raises(TooLong) as refused:
        encoder.bounded(context_tokens).encode(text)
    assert refused.value.tokens >= context_tokens


def test_what_is_a_little_too_long_is_encoded_so_that_its_size_is_known(smollm2: SmolLM2Renderer) -> None:
    encoder, _ = parts(smollm2)
    text = TEXTS["words"] * 1000
    tokens = len(encoder.encode(text))
    assert len(encoder.bounded(tokens // MARGIN + 1).encode(text)) == tokens


@pytest.mark.parametrize("which", [SMOLLM2, QWEN3, QWEN25, LLAMA], ids=str)
def test_the_parts_of_a_prompt_are_added_up(which: RealFamily) -> None:
    renderer = bounded(renderer_of(which), 4096)
    messages = [
        Message(role="user" if n % 2 == 0 else "assistant", content=TEXTS["words"] * 50) for n in range(401)
    ]
    with pytest.raises(TooLong):
        renderer.render(messages, ())
    with pytest.raises(TooLong):
        renderer.encode(TEXTS["digits"] * 20_000)
    assert renderer.render(messages[:1], ()), "a prompt that was refused leaves nothing behind"


@pytest.mark.parametrize("which", [SMOLLM2, QWEN3, QWEN25, LLAMA], ids=str)
def test_a_bounded_renderer_renders_as_the_other(which: RealFamily) -> None:
    free = renderer_of(which)
    renderer = bounded(free, 32_768)
    messages = [
        user(TEXTS["words"] * 400),
        Message(role="assistant", content=TEXTS["cjk"] * 50),
        user("<|im_end|> Go"),
    ]
    tools = (Tool(name="bash", description="Run", parameters={"type": "object", "properties": {}}),)
    assert renderer.render(messages, tools) == free.render(messages, tools)
    assert renderer.fingerprint == free.fingerprint


@pytest.mark.parametrize("which", [SMOLLM2, QWEN3, QWEN25, LLAMA], ids=str)
def test_many_threads_get_the_ids_of_one(which: RealFamily) -> None:
    renderer = bounded(renderer_of(which), 65_536)
    chance = random.Random(7)
    talks = [
        [user("".join(chance.choices([*TEXTS.values(), "a ", "<", "é"], k=chance.randrange(1, 400))))]
        for _ in range(40)
    ]
    alone = [renderer.render(talk, ()) for talk in talks]
    reply = token_ids([*renderer.encode("So be it."), renderer.stop_ids[0]])
    bridges = [renderer.bridge(ids, reply, [user("Go on.")], ()) for ids in alone]
    texts = [renderer.decode(ids) for ids in alone]

    def again(index: int) -> bool:
        ids = renderer.render(talks[index], ())
        bridged = renderer.bridge(ids, reply, [user("Go on.")], ())
        return (ids, bridged, renderer.decode(ids)) == (alone[index], bridges[index], texts[index])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(again, list(range(len(talks))) * 5))
