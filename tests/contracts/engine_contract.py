"""What every engine must do. An engine's test class inherits this and has the fixtures `started` (an engine and
its info), `vocabulary` and `prompt` (ids the engine can answer)."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from typing import Any

import pytest

from polar.engines.base import Engine, EngineInfo, GenerateRequest, Piece
from polar.engines.pieces import one_piece
from polar.errors import ContextOverflow, SchemaRefused
from polar.tokens.renderers.gguf_vocabulary import Vocabulary
from polar.types import Sampling, token_ids

SLACK_TOKENS = 8
"""An engine may evaluate a few tokens again at the seam of a cached prefix."""


def ask(ids: Sequence[int], session_id: str = "s", max_tokens: int = 8, **more: Any) -> GenerateRequest:
    stop_ids = more.pop("stop_ids", ())
    seed = more.pop("seed", 7)
    schema = more.pop("json_schema", None)
    return GenerateRequest(token_ids(ids), max_tokens, Sampling(**more), stop_ids, session_id, seed, schema)


async def whole(engine: Engine, request: GenerateRequest) -> Piece:
    """All pieces of a reply as one; only the last may have a finish reason and spans."""
    pieces = [piece async for piece in engine.generate(request)]
    assert [piece.finish_reason is not None for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert not any(piece.policy_spans for piece in pieces[:-1])
    return one_piece(pieces)


class StartedEngine:
    @pytest.fixture
    def engine(self, started: tuple[Any, EngineInfo]) -> Any:
        return started[0]

    @pytest.fixture
    def info(self, started: tuple[Any, EngineInfo]) -> EngineInfo:
        return started[1]


class EngineContract(StartedEngine):
    async def test_every_id_has_a_place_for_its_logprob(self, engine: Engine, prompt: list[int]) -> None:
        piece = await whole(engine, ask(prompt))
        assert len(piece.ids) == len(piece.logprobs) > 0
        assert all(math.isnan(value) or -1e4 < value <= 0 for value in piece.logprobs)

    async def test_max_tokens_ends_a_reply_as_length(self, engine: Engine, prompt: list[int]) -> None:
        piece = await whole(engine, ask(prompt, max_tokens=3, temperature=0))
        assert len(piece.ids) == 3
        assert piece.finish_reason == "length"

    async def test_any_id_can_be_a_stop_id_and_stays_in_the_reply(self, engine: Engine, prompt: list[int]) -> None:
        free = await whole(engine, ask(prompt, "free", max_tokens=6, temperature=0))
        stop_id = free.ids[3]
        end = free.ids.index(stop_id) + 1
        piece = await whole(engine, ask(prompt, "stopped", max_tokens=6, temperature=0, stop_ids=(stop_id,)))
        assert piece.ids == free.ids[:end]
        assert piece.finish_reason == "stop"
        assert piece.logprobs.tolist() == pytest.approx(free.logprobs[:end].tolist(), abs=1e-3)

    async def test_the_same_seed_gives_the_same_ids(self, engine: Engine, prompt: list[int]) -> None:
        first = await whole(engine, ask(prompt, "one", seed=11))
        again = await whole(engine, ask(prompt, "two", seed=11))
        assert first.ids == again.ids

    async def test_a_logprob_is_the_same_when_its_prefix_is_asked_again(
        self, engine: Engine, prompt: list[int]
    ) -> None:
        reply = await whole(engine, ask(prompt, "teacher", max_tokens=5, temperature=0))
        for position in range(len(reply.ids)):
            prefix = [*prompt, *reply.ids[:position]]
            once_more = await whole(engine, ask(prefix, "pupil", max_tokens=1, temperature=0))
            if once_more.ids[0] == reply.ids[position]:
                assert once_more.logprobs[0] == pytest.approx(reply.logprobs[position], abs=1e-3)

    async def test_several_generations_at_once(self, engine: Engine, info: EngineInfo, prompt: list[int]) -> None:
        count = min(info.parallel, 4) + 1
        asked = [ask(prompt, f"at-once-{n}", max_tokens=4, temperature=0) for n in range(count)]
        pieces = await asyncio.gather(*(whole(engine, request) for request in asked))
        assert [len(piece.ids) for piece in pieces] == [4] * count

    async def test_a_second_turn_evaluates_only_what_is_new(
        self, engine: Engine, vocabulary: Vocabulary, prompt: list[int]
    ) -> None:
        long_prompt = [*prompt, *vocabulary.encode("one two three four five " * 20)]
        first = await whole(engine, ask(long_prompt, "turns", max_tokens=4, temperature=0))
        new_ids = vocabulary.encode("and then")
        before = engine.counters()["evaluated_tokens"]
        second = await whole(engine, ask([*long_prompt, *first.ids, *new_ids], "turns", max_tokens=4))
        assert second.evaluated_tokens is not None
        assert second.evaluated_tokens <= len(new_ids) + SLACK_TOKENS
        assert engine.counters()["evaluated_tokens"] - before == second.evaluated_tokens

    @pytest.mark.check
    async def test_each_sequence_has_the_whole_context(
        self, engine: Engine, info: EngineInfo, prompt: list[int]
    ) -> None:
        nearly_full = (prompt * info.context_tokens)[: info.context_tokens - 6]
        assert (await whole(engine, ask(nearly_full, "long", max_tokens=4, temperature=0))).ids

    async def test_a_prompt_that_leaves_no_room_is_refused(
        self, engine: Engine, info: EngineInfo, prompt: list[int]
    ) -> None:
        too_long = (prompt * info.context_tokens)[: info.context_tokens]
        with pytest.raises(ContextOverflow, match=str(info.context_tokens)):
            await whole(engine, ask(too_long, "too-long"))

    async def test_a_cancelled_generation_frees_its_sequence(
        self, engine: Engine, info: EngineInfo, prompt: list[int]
    ) -> None:
        asked = [ask(prompt, f"cancelled-{n}", max_tokens=900) for n in range(info.parallel)]
        tasks = [asyncio.create_task(whole(engine, request)) for request in asked]
        await asyncio.sleep(0.2)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        piece = await whole(engine, ask(prompt, "after", max_tokens=2, temperature=0))
        assert len(piece.ids) == 2


class SchemaContract:
    """For engines that can hold a reply to a JSON schema."""

    async def test_a_schema_holds_the_reply(
        self, engine: Engine, vocabulary: Vocabulary, prompt: list[int]
    ) -> None:
        schema = {
            "type": "object",
            "properties": {"colour": {"enum": ["red", "green"]}, "size": {"enum": [1, 2]}},
            "required": ["colour", "size"],
            "additionalProperties": False,
        }
        for seed in range(3):
            request = ask(prompt, "schema", max_tokens=60, seed=seed, json_schema=schema)
            piece = await whole(engine, request)
            assert piece.finish_reason == "stop"
            assert len(piece.ids) == len(piece.logprobs)
            assert not any(map(math.isnan, piece.logprobs))
            value = json.loads(vocabulary.decode(i for i in piece.ids if i not in vocabulary.control_ids))
            assert value["colour"] in ("red", "green")
            assert value["size"] in (1, 2)

    async def test_a_schema_that_cannot_be_held_is_refused_before_a_token(
        self, engine: Engine, prompt: list[int]
    ) -> None:
        pieces = engine.generate(ask(prompt, "refused", max_tokens=4, json_schema={"type": "no such type"}))
        with pytest.raises(SchemaRefused, match="json_schema"):
            await anext(pieces)

    async def test_a_stop_id_ends_a_reply_with_a_schema(self, engine: Engine, prompt: list[int]) -> None:
        schema = {"const": {"a": [1, 2, 3]}}
        free = await whole(engine, ask(prompt, "free-schema", 40, temperature=0, json_schema=schema))
        stop_id = free.ids[2]
        end = free.ids.index(stop_id) + 1
        request = ask(prompt, "schema", 40, temperature=0, json_schema=schema, stop_ids=(stop_id,))
        piece = await whole(engine, request)
        assert (piece.ids, piece.finish_reason) == (free.ids[:end], "stop")
