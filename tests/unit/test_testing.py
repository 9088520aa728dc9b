"""The engine that follows a script: what it catches, and what it can be reported to do."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from contracts.engine_contract import ask, whole
from polar.errors import ContextOverflow, EngineBusy, EngineError
from polar.testing import Encoder, ScriptedEngine, ScriptedReply, encoder_of, pseudo_logprob, split_once


@pytest.fixture
def tokenizer() -> Tokenizer:
    """A Hugging Face tokenizer of bytes, one longer token and one end token."""
    tokens = [*pre_tokenizers.ByteLevel.alphabet(), "he", "ll", "hell", "hello"]
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o")]
    tokenizer: Any = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(sorted(tokens))}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer


@pytest.fixture
def encoder(tokenizer: Tokenizer) -> Encoder:
    return encoder_of(tokenizer)


@pytest.fixture
def end(tokenizer: Tokenizer) -> int:
    return tokenizer.token_to_id("<end>")


async def started(encoder: Encoder, script: Any, **more: Any) -> ScriptedEngine:
    engine = ScriptedEngine(encoder, script, **more)
    await engine.start()
    return engine


async def test_a_reply_is_split_as_no_tokenizer_would(encoder: Encoder, end: int) -> None:
    engine = await started(encoder, ["hello"])
    piece = await whole(engine, ask(encoder.encode("hi"), stop_ids=(end,)))
    assert encoder.decode(piece.ids) == "hello<end>"
    assert list(piece.ids[:-1]) != encoder.encode("hello")
    assert piece.finish_reason == "stop"


async def test_logprobs_come_from_position_and_id(encoder: Encoder) -> None:
    engine = await started(encoder, [[5, 6]])
    piece = await whole(engine, ask([1, 2, 3]))
    assert piece.logprobs.tolist() == pytest.approx([pseudo_logprob(3, 5), pseudo_logprob(4, 6)])
    assert all(-5 <= pseudo_logprob(p, t) < 0 for p in range(200) for t in range(200))


async def test_exact_tokens_are_recognised_as_a_continuation(encoder: Encoder, end: int) -> None:
    engine = await started(encoder, ["hello", "hell"])
    prompt = encoder.encode("hi ")
    first = await whole(engine, ask(prompt, stop_ids=(end,)))
    new = encoder.encode(" more")
    second = await whole(engine, ask([*prompt, *first.ids, *new], stop_ids=(end,)))
    assert [seen.parent for seen in engine.requests] == [None, 0]
    assert second.evaluated_tokens == len(new)
    assert engine.counters()["cached_tokens"] == len(prompt) + len(first.ids)


async def test_tokens_made_anew_from_sampled_text_are_refused(encoder: Encoder) -> None:
    engine = await started(encoder, ["hello", "hello"])
    prompt = encoder.encode("hi ")
    await whole(engine, ask(prompt))
    with pytest.raises(EngineError, match="as different tokens"):
        await whole(engine, ask(encoder.encode("hi hello") + encoder.encode(" more")))


async def test_without_strictness_they_are_recorded_as_a_new_root(encoder: Encoder) -> None:
    engine = await started(encoder, ["hello", "hello"], strict=False)
    await whole(engine, ask(encoder.encode("hi ")))
    await whole(engine, ask(encoder.encode("hi hello more")))
    assert [seen.parent for seen in engine.requests] == [None, None]


async def test_a_deeper_completion_in_other_tokens_is_refused_too(encoder: Encoder) -> None:
    engine = await started(encoder, ["hello", "hello", "hello"])
    prompt = encoder.encode("hi ")
    first = await whole(engine, ask(prompt))
    second_prompt = [*prompt, *first.ids, *encoder.encode(" and ")]
    await whole(engine, ask(second_prompt))
    with pytest.raises(EngineError, match="as different tokens"):
        await whole(engine, ask([*second_prompt, *encoder.encode("hello"), *encoder.encode("!")]))


async def test_two_samples_with_the_same_text_may_both_go_on(encoder: Encoder) -> None:
    canonical = encoder.encode("hello")
    engine = await started(encoder, ["hello", canonical, "!"])
    prompt = encoder.encode("hi ")
    await whole(engine, ask(prompt))
    retried = await whole(engine, ask(prompt))
    await whole(engine, ask([*prompt, *retried.ids, *encoder.encode("?")]))
    assert engine.requests[2].parent == 1


async def test_sessions_do_not_know_each_other(encoder: Encoder) -> None:
    engine = await started(encoder, ["hello"])
    for session_id in ("a", "b"):
        assert (await whole(engine, ask(encoder.encode("hi"), session_id))).ids
    assert [seen.parent for seen in engine.requests] == [None, None]


async def test_the_script_can_be_a_function_of_turn_and_prompt(encoder: Encoder) -> None:
    engine = await started(encoder, lambda turn, prompt: f"{turn} of {len(prompt)}", strict=False)
    texts = [encoder.decode((await whole(engine, ask([7] * n, max_tokens=20))).ids) for n in (1, 2)]
    assert texts == ["0 of 1", "1 of 2"]


async def test_a_script_that_is_over_says_so(encoder: Encoder) -> None:
    engine = await started(encoder, ["hello"])
    await whole(engine, ask([1]))
    with pytest.raises(EngineError, match="none for turn 1"):
        await whole(engine, ask([2]))


async def test_a_blocked_reply_waits_to_be_released(encoder: Encoder) -> None:
    engine = await started(encoder, [ScriptedReply(ids=(1, 2, 3, 4), block_after=2)])
    pieces = engine.generate(ask([9]))
    assert list((await anext(pieces)).ids) == [1, 2]
    rest = asyncio.ensure_future(anext(pieces))
    await asyncio.sleep(0)
    assert not rest.done()
    engine.release()
    assert list((await rest).ids) == [3, 4]
    await pieces.aclose()


async def test_the_tokens_before_a_block_come_in_pieces(encoder: Encoder) -> None:
    engine = await started(encoder, [ScriptedReply(ids=(1, 2, 3, 4, 5, 6), block_after=5)], piece_tokens=2)
    pieces = engine.generate(ask([9]))
    assert [list((await anext(pieces)).ids) for _ in range(3)] == [[1, 2], [3, 4], [5]]
    engine.release()
    assert [list(piece.ids) async for piece in pieces] == [[6], []]


async def test_a_busy_engine_says_when_to_ask_again(encoder: Encoder) -> None:
    engine = await started(encoder, [ScriptedReply(busy_s=1.5), [5]])
    with pytest.raises(EngineBusy) as refused:
        await whole(engine, ask([9]))
    assert refused.value.retry_after_s == 1.5
    assert (engine.active, engine.requests[0].completion_ids) == (0, [])
    assert list((await whole(engine, ask([9]))).ids) == [5]


async def test_the_script_is_asked_for_schemas_too(encoder: Encoder) -> None:
    engine = await started(encoder, [[5]])
    assert (await engine.start()).constrains
    await whole(engine, ask([9], json_schema={"type": "object"}))
    assert engine.requests[0].request.json_schema == {"type": "object"}


async def test_closing_a_blocked_reply_ends_it(encoder: Encoder) -> None:
    engine = await started(encoder, [ScriptedReply(text="hello", block_after=1)])
    pieces = engine.generate(ask([9]))
    await anext(pieces)
    assert engine.active == 1
    await pieces.aclose()
    assert engine.active == 0
    assert len(engine.requests[0].completion_ids) == 1


async def test_an_error_comes_after_the_tokens(encoder: Encoder) -> None:
    engine = await started(encoder, [ScriptedReply(ids=(1, 2), error="the engine caught fire")])
    with pytest.raises(EngineError, match="caught fire"):
        await whole(engine, ask([9]))
    assert engine.requests[0].completion_ids == [1, 2]


async def test_an_aborted_reply_and_one_without_logprobs(encoder: Encoder) -> None:
    engine = await started(
        encoder, [ScriptedReply(ids=(1, 2), abort=True), ScriptedReply(ids=(3,), without_logprobs=True)]
    )
    assert (await whole(engine, ask([9]))).finish_reason == "aborted"
    assert math.isnan((await whole(engine, ask([8]))).logprobs[0])


async def test_a_full_context_and_a_short_budget(encoder: Encoder) -> None:
    engine = await started(encoder, ["hello"])
    with pytest.raises(ContextOverflow):
        await whole(engine, ask([9] * 8192))
    piece = await whole(engine, ask([9], max_tokens=2))
    assert (len(piece.ids), piece.finish_reason) == (2, "length")


def test_what_has_only_single_characters_cannot_be_split(encoder: Encoder) -> None:
    assert split_once(encoder, "xyz") == encoder.encode("xyz")


def test_the_callers_tokenizer_is_left_alone(tokenizer: Tokenizer, end: int) -> None:
    assert end not in encoder_of(tokenizer).encode("<end>")
    assert tokenizer.encode("<end>", add_special_tokens=False).ids == [end]
