"""Weight updates of a running vLLM: how long each step takes, and the proof that the engine has the new weights.

    python benchmarks/weight_updates.py --url http://127.0.0.1:8000 --model FOLDER \
        [--transfer disk ipc] [--dtype bfloat16] [--rounds 5] [--replies 0 64] [--json FILE]

FOLDER is the checkpoint that the server serves, started as docs/weights.md says. The trainer is the same model in
transformers, in float32, computing in bfloat16 if it is on a GPU. Each round changes every weight by a random half
per cent and pushes it, while so many replies are under way; at the end the start weights are pushed back.
`difference` is the mean difference of the logprobs of 199 tokens between trainer and engine, to compare with the
noise before the first update; `moved` is how far the weights are from the last ones; `share` is how much of
that way the engine has gone.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from page import origin, table, write_json
from transformers import AutoModelForCausalLM

from polar.engines.base import GenerateRequest
from polar.engines.pieces import joined
from polar.engines.vllm.engine import VllmEngine, VllmOptions
from polar.trainers.weights import WeightOptions, WeightProbe, WeightTarget, weight_target
from polar.trainers.weights.probe import probe_ids
from polar.types import Sampling, Spec, token_ids

STEP = 0.005
REPLY_TOKENS = 2000
"""Of the replies under way: more than are sampled during an update."""


@dataclass(frozen=True)
class Push:
    transfer: str
    replies: int
    hold_s: float
    load_s: float
    release_s: float
    difference: float
    moved: float
    share: float
    broken_replies: int
    """Of those under way, aborted or failed."""


class TransformersModel:
    def __init__(self, folder: Path) -> None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
        self._device = device
        self._draw = torch.Generator(device).manual_seed(0)

    def step(self) -> None:
        with torch.no_grad():
            for weight in self.model.parameters():
                weight.mul_(1 + STEP * torch.randn(weight.shape, generator=self._draw, device=self._device))

    def logprobs(self, ids: Sequence[int]) -> list[float]:
        given = torch.tensor([list(ids)], device=self._device)
        with torch.no_grad(), torch.autocast(self._device, torch.bfloat16, enabled=self._device == "cuda"):
            logits = self.model(given).logits[0, :-1]
        scores = torch.log_softmax(logits.float(), dim=-1)
        return scores.gather(1, given[0, 1:, None])[:, 0].tolist()


@asynccontextmanager
async def replying(url: str, count: int, vocabulary_size: int) -> AsyncGenerator[list[asyncio.Task[str | None]]]:
    """So many replies under way at the engine."""
    engine = VllmEngine(VllmOptions(url=url))
    await engine.start()
    draw = random.Random(count)

    async def reply(number: int) -> str | None:
        prompt = token_ids(draw.randrange(vocabulary_size) for _ in range(64))
        request = GenerateRequest(prompt, REPLY_TOKENS, Sampling(), (), f"reply-{number}")
        return (await joined(engine.generate(request))).finish_reason

    tasks = [asyncio.create_task(reply(number)) for number in range(count)]
    await asyncio.sleep(1.0 if tasks else 0.0)  # until the engine has begun them
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await engine.stop()


async def timed(work: Any) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


async def pushed(
    target: WeightTarget, trainer: TransformersModel, probe: WeightProbe, url: str, case: tuple[str, int]
) -> Push:
    transfer, count = case
    async with replying(url, count, trainer.model.config.vocab_size) as tasks:
        hold_s = await timed(target.hold())
        load_s = await timed(target.load(trainer.model.state_dict()))
        release_s = await timed(target.release())
        report = await probe.check()
        broken = sum(
            task.done() and (task.exception() or task.result()) not in ("stop", "length") for task in tasks
        )
    return Push(transfer, count, hold_s, load_s, release_s, report.difference, report.moved, report.share, broken)


async def measured(arguments: argparse.Namespace) -> tuple[float, list[Push]]:
    trainer = TransformersModel(arguments.model)
    ids = probe_ids(trainer.model.config.vocab_size)
    spec = Spec(name="vllm", options={"url": arguments.url})
    start = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    pushes: list[Push] = []
    noise = 0.0
    for transfer in arguments.transfer:
        options = WeightOptions(transfer=transfer, dtype=arguments.dtype)
        target = weight_target(spec, arguments.model, options)
        probe = WeightProbe(target, ids, trainer.logprobs)
        noise = await probe.measure_noise()
        for count in arguments.replies:
            for _ in range(arguments.rounds):
                trainer.step()
                pushes.append(await pushed(target, trainer, probe, arguments.url, (transfer, count)))
        trainer.model.load_state_dict(start)
        await target.load(start)
        await probe.check()
        await target.close()
    return noise, pushes


def row(pushes: Sequence[Push]) -> list[str]:
    first = pushes[0]
    times = [mean(getattr(push, name) for push in pushes) for name in ("hold_s", "load_s", "release_s")]
    worst = max(push.difference for push in pushes)
    moved, share = mean(push.moved for push in pushes), min(push.share for push in pushes)
    cells = [*(f"{value:.2f}" for value in times), f"{worst:.2g}", f"{moved:.2g}", f"{share:.2f}"]
    return [first.transfer, str(first.replies), *cells, str(sum(push.broken_replies for push in pushes))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--transfer", nargs="+", choices=["disk", "ipc"], default=["disk"])
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], default="bfloat16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--replies", type=int, nargs="+", default=[0, 64])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    noise, pushes = asyncio.run(measured(arguments))
    cases = sorted({(push.transfer, push.replies) for push in pushes})
    rows = [row([push for push in pushes if (push.transfer, push.replies) == case]) for case in cases]
    head = ["transfer", "replies under way", "hold, s", "load, s", "release, s"]
    print(table([*head, "difference, at most", "moved", "share, at least", "replies broken"], rows))
    command = (
        f"python benchmarks/weight_updates.py --model MODEL --transfer {' '.join(arguments.transfer)} "
        f"--dtype {arguments.dtype} --rounds {arguments.rounds} --replies {' '.join(map(str, arguments.replies))}"
    )
    print(f"\nNoise before the first update: {noise:.2g}. {origin(command)}")
    write_json(arguments.json, command, {"noise": noise, "pushes": [asdict(push) for push in pushes]})


if __name__ == "__main__":
    main()
