"""The `torch` engine over its own process, with a small model; and once with the default model."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from contracts.engine_contract import EngineContract, ask, whole
from polar.engines.base import Engine, EngineInfo, Revivable, Scorer
from polar.engines.torch.default_model import default_model
from polar.engines.torch.engine import TorchEngine, TorchOptions
from polar.errors import EngineError
from polar.tokens.renderers.gguf_vocabulary import Vocabulary
from polar.types import token_ids
from waiting import until

pytestmark = [pytest.mark.check, pytest.mark.asyncio(loop_scope="session")]
EXACT = 1e-4


class TestTorchEngine(EngineContract):
    @pytest.fixture
    def prompt(self, vocabulary: Vocabulary) -> list[int]:
        return vocabulary.encode("Once upon a time there was")

    async def test_sampled_logprobs_are_the_scores(self, engine: TorchEngine, prompt: list[int]) -> None:
        assert isinstance(engine, Scorer)
        asked = [ask([*prompt, n], f"scored-{n}", max_tokens=20, seed=n) for n in range(100, 104)]
        pieces = await asyncio.gather(*(whole(engine, request) for request in asked))
        for request, piece in zip(asked, pieces, strict=True):
            ids = request.prompt_ids + piece.ids
            scored = await engine.score(ids, range(len(request.prompt_ids), len(ids)))
            assert piece.logprobs.tolist() == pytest.approx(scored.tolist(), abs=EXACT)

    async def test_logprobs_are_raw_whatever_the_temperature(
        self, engine: TorchEngine, info: EngineInfo, prompt: list[int]
    ) -> None:
        assert info.logprob_mode == "raw"
        piece = await whole(engine, ask(prompt, "warm", temperature=1.7, top_k=50, top_p=0.9))
        ids = token_ids([*prompt, *piece.ids])
        scored = await engine.score(ids, range(len(prompt), len(ids)))
        assert piece.logprobs.tolist() == pytest.approx(scored.tolist(), abs=EXACT)

    async def test_it_reports_what_runs(self, info: EngineInfo) -> None:
        assert info.model.startswith("tiny (")
        assert info.parallel == 2
        assert "float32 on cpu" in info.version
        assert not info.constrains


async def test_the_default_model_is_exact(vocabulary: Vocabulary) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from tiny_llama import recomputed

    engine = TorchEngine(TorchOptions(context_tokens=512, parallel=3, threads=1))
    await engine.start()
    text = "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n"
    prompts = [vocabulary.encode(text), vocabulary.encode("def add(a, b):"), vocabulary.encode("one two " * 40)]
    try:
        asked = [ask(ids, f"session-{n}", max_tokens=12, seed=n) for n, ids in enumerate(prompts)]
        replies = list(await asyncio.gather(*(whole(engine, request) for request in asked)))
        prompts.append([*prompts[2], *replies[2].ids, *vocabulary.encode("and then")])
        replies.append(await whole(engine, ask(prompts[3], "session-2", max_tokens=12)))
    finally:
        await engine.stop()
    assert (replies[3].evaluated_tokens or 99) < 10, "the second turn goes on from the first"
    model = AutoModelForCausalLM.from_pretrained(await default_model(), dtype=torch.float32)
    for ids, reply in zip(prompts, replies, strict=True):
        assert reply.logprobs.tolist() == pytest.approx(recomputed(model, ids, reply.ids), abs=EXACT)


async def test_an_engine_that_died_says_so_and_is_revived(tiny_model: Path) -> None:
    engine: Engine = TorchEngine(TorchOptions(model=str(tiny_model), context_tokens=64, threads=1))
    assert isinstance(engine, TorchEngine) and isinstance(engine, Revivable)
    await engine.start()
    assert engine._process is not None
    first = engine._process.pid
    await engine.revive()
    assert engine._process.pid == first, "one that lives is left alone"
    os.kill(first, signal.SIGKILL)
    with pytest.raises(EngineError, match="died: it ended with code -9; its log ends with"):
        await whole(engine, ask([5, 6, 7]))
    await engine.revive()
    assert (await whole(engine, ask([5, 6, 7]))).ids
    await engine.stop()
    with pytest.raises(EngineError, match="start it first"):
        await whole(engine, ask([5, 6, 7]))


async def test_a_folder_without_a_model_is_refused_with_the_reason(tmp_path: Path) -> None:
    engine = TorchEngine(TorchOptions(model=str(tmp_path), threads=1))
    with pytest.raises(EngineError, match=r"did not start.*cannot load the model"):
        await engine.start()


async def test_a_killed_parent_leaves_no_sampler(tiny_model: Path) -> None:
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PARENT, str(tiny_model)), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    child = Path(f"/proc/{(await parent.stdout.readline()).decode().strip()}")
    assert child.exists()
    parent.kill()
    await parent.wait()
    await until(lambda: not child.exists() or "State:\tZ" in child.joinpath("status").read_text())


PARENT = """
import asyncio, sys
from polar.engines.torch.engine import TorchEngine, TorchOptions

async def main():
    engine = TorchEngine(TorchOptions(model=sys.argv[1], context_tokens=64, threads=1))
    await engine.start()
    print(engine._process.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""
