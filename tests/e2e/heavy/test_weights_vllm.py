"""Weight updates of a real vLLM on the processor, in float32: after each push its logprobs are those that
transformers computes from the new weights, to 1e-4; also within a reply that spans the update."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from vllm_server import VllmServer, converted, installed

from contracts.engine_contract import ask
from polar.engines.base import Piece
from polar.engines.vllm.engine import VllmEngine, VllmOptions
from polar.store.weights import default_weights
from polar.tokens.renderers.gguf_vocabulary import Vocabulary, load_vocabulary
from polar.trainers.weights import WeightError, WeightOptions, WeightProbe, WeightTarget, weight_target
from polar.trainers.weights.vllm import VllmTarget
from polar.types import Spec
from waiting import hang_limit

pytestmark = [pytest.mark.timeout(1800), pytest.mark.asyncio(loop_scope="module")]

CONTEXT_TOKENS = 512
EXACT = 1e-4
STEP = 0.02
"""Relative size of the change of each weight: the model is another one afterwards."""
SPANNING_TOKENS = 60
"""At most; long enough for an update within."""


class Trainer:
    """The same model in transformers, in float32."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

    def step(self, seed: int) -> None:
        import torch

        source = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in self.model.parameters():
                weight.mul_(1 + STEP * torch.randn(weight.shape, generator=source))

    def weights(self) -> dict[str, Any]:
        """A copy: later steps leave it as it is."""
        return {name: tensor.clone() for name, tensor in self.model.state_dict().items()}

    def load(self, weights: dict[str, Any]) -> None:
        self.model.load_state_dict(weights)

    def logprobs(self, ids: Sequence[int]) -> list[float]:
        import torch

        with torch.no_grad():
            scores = torch.log_softmax(self.model(torch.tensor([list(ids)])).logits[0, :-1], dim=-1)
        return scores[torch.arange(len(ids) - 1), torch.tensor(ids[1:])].tolist()


@pytest.fixture(scope="module")
def gguf() -> Path:
    return asyncio.run(default_weights())


@pytest.fixture(scope="module")
def vocabulary(gguf: Path) -> Vocabulary:
    return load_vocabulary(gguf)


@pytest.fixture(scope="module")
def ids(vocabulary: Vocabulary) -> list[int]:
    text = "The quick brown fox writes a small program, runs it twice and reads 42 lines of its output. "
    return vocabulary.encode_layout(f"<|im_start|>user\n{text * 3}<|im_end|>\n<|im_start|>assistant\n")


@pytest.fixture(scope="module")
def folder(gguf: Path) -> Path:
    """The model's checkpoint, whose head is tied."""
    return converted(installed(), gguf)


@pytest.fixture(scope="module")
def trainer(folder: Path) -> Trainer:
    os.environ["HF_HUB_OFFLINE"] = "1"
    return Trainer(folder)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VllmServer]:
    log = tmp_path_factory.mktemp("vllm") / "vllm.log"
    running = await VllmServer.spawn(installed(), folder, log, "--enable-scale-out", context_tokens=CONTEXT_TOKENS)
    yield running
    await running.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def target(server: VllmServer, folder: Path, trainer: Trainer) -> AsyncIterator[WeightTarget]:
    """Trainer and server have the same weights before each test and after it."""
    start = trainer.weights()
    made = weight_target(Spec(name="vllm", options={"url": server.url}), folder)
    yield made
    trainer.load(start)
    await made.load(start)
    await made.close()


async def test_each_push_is_exact_and_can_be_taken_back(
    target: WeightTarget, trainer: Trainer, ids: list[int]
) -> None:
    probe = WeightProbe(target, ids, trainer.logprobs)
    assert await probe.measure_noise() < EXACT
    start, before = trainer.weights(), trainer.logprobs(ids)
    trainer.step(seed=1)
    await target.load(trainer.weights())
    await _exact(target, trainer, probe, ids)
    assert max(map(abs, _differences(before, await target.score(ids)))) > 0.5
    trainer.load(start)
    await target.load(start)
    await _exact(target, trainer, probe, ids)
    assert max(_differences(before, await target.score(ids))) < EXACT


async def _exact(target: WeightTarget, trainer: Trainer, probe: WeightProbe, ids: list[int]) -> None:
    report = await probe.check()
    assert report.clear and report.moved > 100 * report.noise and report.difference < EXACT
    assert max(_differences(trainer.logprobs(ids), await target.score(ids))) < EXACT


def _differences(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [abs(a - b) for a, b in zip(one, other, strict=True)]


async def test_a_trained_head_reaches_a_server_that_was_started_with_a_tied_one(
    target: WeightTarget, trainer: Trainer, ids: list[int]
) -> None:
    import torch

    start, tied = trainer.weights(), trainer.model.lm_head.weight
    probe = WeightProbe(target, ids, trainer.logprobs)
    await probe.measure_noise()
    trainer.model.lm_head.weight = torch.nn.Parameter(tied.detach() * 1.1)
    try:
        await target.load(trainer.weights())
        await _exact(target, trainer, probe, ids)
    finally:
        trainer.model.lm_head.weight = tied
        trainer.load(start)


async def test_a_checkpoint_without_a_head_is_lost_and_the_probe_finds_it_out(
    target: WeightTarget, trainer: Trainer, ids: list[int], tmp_path: Path
) -> None:
    """The trap itself: vLLM answers with success and keeps the old head."""
    from safetensors.torch import save_file

    probe = WeightProbe(target, ids, trainer.logprobs)
    await probe.measure_noise()
    trainer.step(seed=2)
    headless = {name: tensor for name, tensor in trainer.weights().items() if name != "lm_head.weight"}
    save_file(headless, tmp_path / "model.safetensors")
    assert isinstance(target, VllmTarget)
    body = {"method": "reload_weights", "kwargs": {"weights_path": str(tmp_path)}}
    await target.command("/collective_rpc", body)
    with pytest.raises(WeightError, match=r"other weights than the trainer|still has the old weights"):
        await probe.check()
    await target.load(trainer.weights())
    assert (await probe.check()).difference < EXACT


async def test_bfloat16_on_the_way_is_seen_by_the_probe(
    server: VllmServer, folder: Path, trainer: Trainer, ids: list[int], target: WeightTarget
) -> None:
    """The noise of a float32 engine is so small that rounded weights are other weights."""
    rounded = weight_target(
        Spec(name="vllm", options={"url": server.url}), folder, WeightOptions(dtype="bfloat16")
    )
    probe = WeightProbe(rounded, ids, trainer.logprobs)
    await probe.measure_noise()
    trainer.step(seed=3)
    await rounded.load(trainer.weights())
    with pytest.raises(WeightError, match="other weights than the trainer"):
        await probe.check()
    await rounded.close()


async def test_within_a_reply_each_token_has_the_version_and_the_logprob_of_its_weights(
    server: VllmServer, target: WeightTarget, trainer: Trainer, ids: list[int]
) -> None:
    assert isinstance(target, VllmTarget)
    engine = VllmEngine(VllmOptions(url=server.url, route="generate"))
    await engine.start()
    await target.name_version("1")
    old = trainer.weights()
    trainer.step(seed=4)
    begun = asyncio.Event()
    replying = asyncio.create_task(_reply(engine, ids, begun))
    try:
        async with hang_limit():
            await begun.wait()
        await target.hold()
        await target.load(trainer.weights())
        await target.name_version("2")
        await target.release()
        async with hang_limit():
            pieces = await replying
    finally:
        replying.cancel()
        with suppress(asyncio.CancelledError):
            await replying
        await engine.stop()
    sampled = [token_id for piece in pieces for token_id in piece.ids]
    [first, second] = pieces[-1].policy_spans
    assert (first.version, second.version) == ("1", "2")
    assert (first.start, second.start, second.start + second.length) == (0, first.length, len(sampled))
    captured = [value for piece in pieces for value in piece.logprobs]
    whole, start = [*ids, *sampled], len(ids) - 1
    by_new = trainer.logprobs(whole)[start:]
    trainer.load(old)
    by_old = trainer.logprobs(whole)[start:]
    split = first.length
    assert max(_differences(captured[:split], by_old[:split])) < EXACT
    assert max(_differences(captured[split:], by_new[split:])) < EXACT
    assert max(_differences(by_old[split:], by_new[split:])) > 0.1, "the weights that came before are others"


async def _reply(engine: VllmEngine, ids: list[int], begun: asyncio.Event) -> list[Piece]:
    pieces: list[Piece] = []
    request = ask(ids, "spanning", max_tokens=SPANNING_TOKENS, stop_ids=(), seed=1)
    async for piece in engine.generate(request):
        pieces.append(piece)
        begun.set()
    return pieces
