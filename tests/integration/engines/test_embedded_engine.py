"""The default engine with its real weights."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
from pathlib import Path

import pytest
from running_llama import CONTEXT_TOKENS, Started

from contracts.engine_contract import EngineContract, SchemaContract, ask, whole
from polar.engines.base import Scorer
from polar.engines.embedded.engine import EmbeddedEngine, EmbeddedOptions
from polar.engines.llamacpp.forced_token import LogprobRecovery
from polar.errors import ConfigError, EngineError, SchemaRefused
from polar.registry import make
from polar.tokens.renderers.gguf_vocabulary import Vocabulary
from polar.types import Spec, token_ids

pytestmark = pytest.mark.asyncio(loop_scope="session")


class TestEmbeddedEngine(EngineContract, SchemaContract):
    @pytest.fixture
    def prompt(self, vocabulary: Vocabulary) -> list[int]:
        return chat(vocabulary, "Say hi.")

    async def test_the_models_own_end_token_is_sampled_with_its_logprob(
        self, engine: EmbeddedEngine, vocabulary: Vocabulary, prompt: list[int]
    ) -> None:
        end = vocabulary.control("<|im_end|>")
        piece = await whole(engine, ask(prompt, "eos", max_tokens=60, temperature=0, stop_ids=(end,)))
        assert piece.finish_reason == "stop"
        assert piece.ids.index(end) == len(piece.ids) - 1
        assert -5 < piece.logprobs[-1] < 0

    async def test_temperature_zero_ignores_the_seed_and_a_high_one_does_not(
        self, engine: EmbeddedEngine, prompt: list[int]
    ) -> None:
        async def replies(temperature: float) -> set[tuple[int, ...]]:
            asked = [ask(prompt, "t", seed=seed, temperature=temperature) for seed in range(3)]
            return {tuple((await whole(engine, request)).ids) for request in asked}

        assert len(await replies(temperature=0)) == 1
        assert len(await replies(temperature=1.5)) == 3

    async def test_logprobs_are_of_the_raw_softmax_whatever_the_temperature(
        self, engine: EmbeddedEngine, prompt: list[int]
    ) -> None:
        cold = await whole(engine, ask(prompt, "cold", max_tokens=1, temperature=0))
        warm = [await whole(engine, ask(prompt, "warm", 1, temperature=0.4, seed=seed)) for seed in range(6)]
        same = [piece.logprobs[0] for piece in warm if piece.ids == cold.ids]
        assert same, "the likeliest token comes at least once in six samples at a low temperature"
        assert same == pytest.approx([cold.logprobs[0]] * len(same), abs=1e-3)

    async def test_characters_that_span_tokens_have_their_logprobs(
        self, engine: EmbeddedEngine, vocabulary: Vocabulary
    ) -> None:
        before = engine.counters()["recovered_logprobs"]
        prompt = [*chat(vocabulary, "Repeat: 😀 你好世界 🎉🎉🎉🎉"), *vocabulary.encode("😀 你好世界 🎉🎉")]
        piece = await whole(engine, ask(prompt, "emoji", max_tokens=12, temperature=0))
        assert b"\xf0\x9f" in b"".join(map(vocabulary.token_bytes, piece.ids))
        assert not any(math.isnan(value) for value in piece.logprobs)
        assert engine.counters()["recovered_logprobs"] > before
        assert engine.counters()["missing_logprobs"] == 0

    async def test_logprobs_under_a_schema_are_of_the_raw_softmax(
        self, engine: EmbeddedEngine, vocabulary: Vocabulary, prompt: list[int]
    ) -> None:
        request = ask(prompt, "forced", max_tokens=20, json_schema={"const": "🎉 no"})
        piece = await whole(engine, request)
        assert vocabulary.decode(piece.ids).startswith('"🎉 no"')
        assert engine._client is not None
        recovery = LogprobRecovery(engine._client.server.complete, engine._client._complete_id)
        unheld = await recovery.fill(prompt, piece.ids, [math.nan] * len(piece.ids), sequence=0)
        assert piece.logprobs.tolist() == pytest.approx(unheld, abs=1e-3)
        assert min(piece.logprobs) < -3, "the schema has chosen what the model would not"

    async def test_sampled_logprobs_are_the_scores(self, engine: EmbeddedEngine, prompt: list[int]) -> None:
        assert isinstance(engine, Scorer)
        piece = await whole(engine, ask(prompt, "scored", max_tokens=6))
        ids = token_ids([*prompt, *piece.ids])
        scored = await engine.score(ids, range(len(prompt), len(ids)))
        assert piece.logprobs.tolist() == pytest.approx(scored.tolist(), abs=1e-3)

    async def test_trying_a_schema_evaluates_its_prompt_once(
        self, engine: EmbeddedEngine, vocabulary: Vocabulary
    ) -> None:
        prompt = chat(vocabulary, "Name a colour, as JSON, and no other word than that.")
        before = engine.counters()
        piece = await whole(engine, ask(prompt, "counted", max_tokens=4, json_schema={"type": "object"}))
        after = engine.counters()
        assert after["calls"] - before["calls"] == 1
        assert after["evaluated_tokens"] - before["evaluated_tokens"] == piece.evaluated_tokens
        counted = ("evaluated_tokens", "cached_tokens")
        assert sum(after[name] - before[name] for name in counted) == len(prompt)

    async def test_a_schema_that_would_take_all_memory_is_refused(
        self, engine: EmbeddedEngine, prompt: list[int]
    ) -> None:
        schema = {"anyOf": [{"type": "array", "items": {"type": "integer"}, "maxItems": 10**9}]}
        with pytest.raises(SchemaRefused, match="json_schema with arrays of more than"):
            await whole(engine, ask(prompt, "endless", json_schema=schema))


def chat(vocabulary: Vocabulary, text: str) -> list[int]:
    start, end = vocabulary.control("<|im_start|>"), vocabulary.control("<|im_end|>")
    user = [start, *vocabulary.encode(f"user\n{text}"), end, *vocabulary.encode("\n")]
    return [*user, start, *vocabulary.encode("assistant\n")]


async def test_it_says_which_weights_it_runs(started: Started) -> None:
    assert started.info.model == "SmolLM2-135M-Instruct.Q4_1.gguf@sha256:b179c9523d0e6a0f"
    assert started.info.context_tokens == CONTEXT_TOKENS
    assert started.info.logprob_mode == "raw"


async def test_the_childs_key_is_in_neither_arguments_nor_environment(started: Started) -> None:
    child = Path(f"/proc/{started.engine._process.pid}")
    arguments = child.joinpath("cmdline").read_bytes().split(b"\0")
    assert arguments[1:] == [b"-m", b"polar.engines.embedded.server", b""]
    names = {entry.split(b"=")[0].decode() for entry in child.joinpath("environ").read_bytes().split(b"\0")}
    assert names - {"", "LINES", "COLUMNS"} <= set(os.environ)


async def test_an_engine_that_dies_reports_the_end_of_its_log(gguf: Path, vocabulary: Vocabulary) -> None:
    engine = EmbeddedEngine(EmbeddedOptions(parallel=1, context_tokens=64, gguf=gguf))
    await engine.start()
    assert engine._process is not None
    os.kill(engine._process.pid, signal.SIGKILL)
    with pytest.raises(EngineError, match="died: it ended with code -9; its log ends with"):
        await whole(engine, ask(vocabulary.encode("hello")))
    await engine.stop()


async def test_an_engine_that_died_is_revived(gguf: Path, vocabulary: Vocabulary) -> None:
    engine = EmbeddedEngine(EmbeddedOptions(parallel=1, context_tokens=64, gguf=gguf))
    await engine.start()
    assert engine._process is not None
    first = engine._process.pid
    await engine.revive()
    assert engine._process.pid == first, "one that lives is left alone"
    os.kill(first, signal.SIGKILL)
    with pytest.raises(EngineError, match="died"):
        await whole(engine, ask(vocabulary.encode("hello")))
    await engine.revive()
    assert len((await whole(engine, ask(vocabulary.encode("hello")))).ids)
    await engine.stop()


async def test_a_stopped_engine_says_so_and_can_be_started_again(gguf: Path, vocabulary: Vocabulary) -> None:
    engine = EmbeddedEngine(EmbeddedOptions(parallel=1, context_tokens=64, gguf=gguf))
    with pytest.raises(EngineError, match="start it first"):
        await whole(engine, ask(vocabulary.encode("hello")))
    for _ in range(2):
        await engine.start()
        await whole(engine, ask(vocabulary.encode("hello"), max_tokens=1))
        await engine.stop()
        await engine.stop()
        assert engine.counters()["calls"] == 2, "the proof at the start and ours"
    with pytest.raises(EngineError, match="start it first"):
        await whole(engine, ask(vocabulary.encode("hello")))


async def test_starting_twice_is_refused(started: Started) -> None:
    with pytest.raises(EngineError, match="already started"):
        await started.engine.start()


async def test_broken_weights_are_refused_with_the_engines_log(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"not weights")
    with pytest.raises(EngineError, match="did not start; it ended with code"):
        await EmbeddedEngine(EmbeddedOptions(gguf=broken)).start()
    with pytest.raises(EngineError, match="correct the engine option `gguf`"):
        await EmbeddedEngine(EmbeddedOptions(gguf=tmp_path / "absent.gguf")).start()


async def test_a_killed_parent_leaves_no_engine_and_no_saved_state_behind(gguf: Path) -> None:
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PARENT, str(gguf)), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    pid, folder = (await parent.stdout.readline()).decode().split()
    child = Path(f"/proc/{pid}")
    assert child.exists() and Path(folder).is_dir()
    parent.kill()
    await parent.wait()
    await gone(child)
    assert not Path(folder).exists()


PARENT = """
import asyncio, sys
from polar.engines.embedded.engine import EmbeddedEngine, EmbeddedOptions

async def main():
    engine = EmbeddedEngine(EmbeddedOptions(parallel=1, context_tokens=64, gguf=sys.argv[1]))
    await engine.start()
    print(engine._process.pid, engine._state_folder, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def gone(process: Path) -> None:
    """Returns when the process is gone; the suite's own time limit is the only clock."""
    while process.exists() and "State:\tZ" not in process.joinpath("status").read_text():  # noqa: ASYNC110
        await asyncio.sleep(0.05)


async def test_options_are_checked_by_name() -> None:
    assert isinstance(make("engine", Spec(name="embedded")), EmbeddedEngine)
    with pytest.raises(ConfigError, match="parallel"):
        make("engine", Spec(name="embedded", options={"parallel": 0}))
