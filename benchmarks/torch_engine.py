"""The `torch` engine against transformers by itself: sampled tokens a second, first and second turn.

    python benchmarks/torch_engine.py [--at-once 1 4 8] [--prompt 400] [--common 0] [--threads 1] [--write]

Prompts are random ids. The first `--common` of them are the same in all, as in a harness's first prompt; the
second turn adds the reply and 20 ids. `generate` is one padded batch, which computes the whole prompt each time;
continuous batching is transformers' own, on the same model; the engine is measured through its process and HTTP,
with and without its prefix cache. Seconds are of the machine at hand; compare columns of one run. `--write` puts
the table into docs/design/torch-engine.md.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from page import origin, table, write_json, write_section

from polar.engines.base import GenerateRequest
from polar.engines.pieces import joined
from polar.engines.torch.default_model import default_model
from polar.engines.torch.engine import TorchEngine, TorchOptions
from polar.types import Sampling, token_ids

PAGE = Path(__file__).parent.parent / "docs" / "design" / "torch-engine.md"
PAGE_TOKENS = 32
"""Size of a block of continuous batching: prefixes are shared by whole blocks."""
NEW_IDS = 20
Prompts = list[list[int]]
Ask = Callable[[Prompts, int], Awaitable[Prompts]]
"""Prompts and a number of tokens to replies."""


class Transformers:
    """`generate`, and continuous batching, in this process."""

    def __init__(self, model: str, threads: int) -> None:
        import torch  # noqa: PLC0415 - an optional dependency
        from transformers import AutoModelForCausalLM  # noqa: PLC0415 - an optional dependency

        self._torch: Any = torch
        torch.set_num_threads(threads)
        self._model: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()

    async def generate(self, prompts: Prompts, tokens: int) -> Prompts:
        return await asyncio.to_thread(self._generate, prompts, tokens)

    def _generate(self, prompts: Prompts, tokens: int) -> Prompts:
        longest = max(map(len, prompts))
        ids = self._torch.tensor([[0] * (longest - len(each)) + each for each in prompts])
        mask = self._torch.tensor([[0] * (longest - len(each)) + [1] * len(each) for each in prompts])
        options = {"do_sample": True, "top_k": 0, "min_new_tokens": tokens, "max_new_tokens": tokens}
        return self._model.generate(ids, attention_mask=mask, pad_token_id=0, **options)[:, longest:].tolist()

    @asynccontextmanager
    async def batching(self, blocks: int) -> Any:
        from transformers import GenerationConfig  # noqa: PLC0415 - an optional dependency
        from transformers.generation.configuration_utils import (  # noqa: PLC0415 - an optional dependency
            ContinuousBatchingConfig,
        )

        sampling = GenerationConfig(do_sample=True, top_k=0, eos_token_id=-1)
        config = ContinuousBatchingConfig(
            page_size=PAGE_TOKENS, num_blocks=blocks, max_batch_tokens=1024, return_logprobs=True
        )
        loop = self._model.init_continuous_batching(generation_config=sampling, continuous_batching_config=config)
        loop.start()

        def replies(prompts: Prompts, tokens: int) -> Prompts:
            names = loop.add_requests(prompts, max_new_tokens=tokens)
            found: dict[str, list[int]] = {}
            while len(found) < len(names):
                result = loop.get_result(timeout=60)
                if result is not None and result.is_finished():
                    found[result.request_id] = result.generated_tokens
            return [found[name] for name in names]

        async def ask(prompts: Prompts, tokens: int) -> Prompts:
            return await asyncio.to_thread(replies, prompts, tokens)

        yield ask
        loop.stop()


@asynccontextmanager
async def engine(options: argparse.Namespace, model: str, at_once: int, prefix_cache_mib: int) -> Any:
    context_tokens = options.prompt + 2 * options.tokens + NEW_IDS + 8
    started = TorchEngine(
        TorchOptions(
            model=model,
            context_tokens=context_tokens,
            parallel=at_once,
            threads=options.threads,
            prefix_cache_mib=prefix_cache_mib,
        )
    )
    await started.start()

    async def ask(prompts: Prompts, tokens: int) -> Prompts:
        asked = [
            GenerateRequest(token_ids(ids), tokens, Sampling(), (), f"session-{n}", seed=n)
            for n, ids in enumerate(prompts)
        ]
        pieces = await asyncio.gather(*(joined(started.generate(request)) for request in asked))
        return [list(piece.ids) for piece in pieces]

    yield ask
    await started.stop()


def random_ids(random: Random, count: int) -> list[int]:
    return [random.randrange(1000, 40_000) for _ in range(count)]


async def two_turns(ask: Ask, prompts: Prompts, tokens: int) -> tuple[float, float]:
    """Sampled tokens a second in the first and in the second turn."""
    await ask([[1, 2, 3]], 2)  # what is made at the first call
    began = time.perf_counter()
    replies = await ask(prompts, tokens)
    middle = time.perf_counter()
    longer = [[*ids, *reply, *range(100, 100 + NEW_IDS)] for ids, reply in zip(prompts, replies, strict=True)]
    again = await ask(longer, tokens)
    end = time.perf_counter()
    return sum(map(len, replies)) / (middle - began), sum(map(len, again)) / (end - middle)


async def measured(options: argparse.Namespace) -> dict[int, dict[str, tuple[float, float]]]:
    model = str(options.model or await default_model())
    alone = Transformers(model, options.threads)
    results: dict[int, dict[str, tuple[float, float]]] = {}
    for at_once in options.at_once:
        random = Random(at_once)
        common = random_ids(random, options.common)
        prompts = [common + random_ids(random, options.prompt - options.common) for _ in range(at_once)]
        blocks = at_once * (options.prompt + 2 * options.tokens + NEW_IDS) // PAGE_TOKENS + 16
        row = results[at_once] = {"generate": await two_turns(alone.generate, prompts, options.tokens)}
        async with alone.batching(2 * blocks) as ask:
            row["continuous batching"] = await two_turns(ask, prompts, options.tokens)
        async with engine(options, model, at_once, 0) as ask:
            row["engine without prefixes"] = await two_turns(ask, prompts, options.tokens)
        async with engine(options, model, at_once, 2048) as ask:
            row["engine"] = await two_turns(ask, prompts, options.tokens)
    return results


def shown(results: dict[int, dict[str, tuple[float, float]]]) -> str:
    rows: list[Sequence[str]] = []
    for at_once, row in results.items():
        for turn, name in enumerate(("first", "second")):
            speeds = {way: turns[turn] for way, turns in row.items()}
            ratios = [speeds["engine"] / speeds[way] for way in ("generate", "continuous batching")]
            numbers = [f"{speed:.1f}" for speed in speeds.values()] + [f"{ratio:.1f} ×" for ratio in ratios]
            rows.append([str(at_once), name, *numbers])
    ways = list(next(iter(results.values())))
    return table(["sequences", "turn", *ways, "engine / generate", "engine / continuous batching"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--prompt", type=int, default=400, help="ids of each prompt, the common ones included")
    parser.add_argument("--common", type=int, default=0, help="ids that all prompts begin with")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--model", type=Path, help="a folder; none: the default model")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    numbers = " ".join(map(str, options.at_once))
    command = (
        f"python benchmarks/torch_engine.py --at-once {numbers} --prompt {options.prompt} "
        f"--common {options.common} --tokens {options.tokens} --threads {options.threads}"
    )
    results = asyncio.run(measured(options))
    text = f"{shown(results)}\n\n{origin(command)}"
    print(text)
    write_json(options.json, command, results)
    if options.write:
        write_section("torch engine", text, PAGE)


if __name__ == "__main__":
    main()
