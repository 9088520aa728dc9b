"""Weight updates over two real samplers behind one pool: one version, the logprobs of the new weights from each,
and a sampler that was killed and comes back with the weights of its start."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from contracts.engine_contract import ask
from polar.engines.base import Piece
from polar.engines.pieces import joined
from polar.engines.pool.affinity import ranked
from polar.registry import make
from polar.trainers.weights import WeightError, WeightOptions, WeightProbe, WeightUpdates, weight_target
from polar.types import Drain, Policy, Spec
from ports import port_to_come_back_to
from waiting import hang_limit, until

pytestmark = pytest.mark.check
EXACT = 1e-4
PROMPT = [5, 6, 7, 8]
PROBE = list(range(20, 90))


class Sampler:
    """A program at a fixed port, which can be killed and started again."""

    def __init__(self, model: Path) -> None:
        self.port = port_to_come_back_to()
        self.url = f"http://127.0.0.1:{self.port}"
        self._model = model
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        more = ("--threads", "1", "--context-tokens", "512", "--parallel", "2")
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "polar.engines.torch.server"),
            *("--model", str(self._model), "--port", str(self.port), *more),
            stdout=asyncio.subprocess.PIPE,
        )
        assert self._process.stdout is not None
        async with hang_limit():
            assert (await self._process.stdout.readline()).decode().strip() == self.url

    async def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            await self._process.wait()
            self._process = None


class Node:
    """The service as a trainer sees it, with a node whose engine is the pool and which hears of a version at
    once."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self.paused = False

    async def pause(self, **_: Any) -> Policy:
        self.paused = True
        return Policy(paused=True)

    async def resume(self) -> Policy:
        self.paused = False
        return Policy()

    async def set_policy_version(self, version: str) -> Policy:
        self._pool.policy_changed(version)
        return Policy(version=version)

    async def drain(self) -> Drain:
        return Drain(policy=Policy(), generating=0)


class Bench:
    """Two samplers, a pool over them, and a trainer."""

    def __init__(self, samplers: list[Sampler], model: Path, folder: Path) -> None:
        self.samplers = samplers
        urls = [sampler.url for sampler in samplers]
        options = {"engine": "torch", "urls": urls, "check_s": 0.1, "patience_s": 120.0}
        spec = Spec(name="pool", options=options)
        self.pool = make("engine", spec)
        self.target = weight_target(spec, model, WeightOptions(folder=folder / "pushed"))
        self.trainer = _weights(0)
        self.probe = WeightProbe(self.target, PROBE, lambda ids: _logprobs(self.trainer, ids[:1], ids[1:]))
        self.node = Node(self.pool)
        self.folder = folder

    async def push(self, seed: int, mode: Any, version: str) -> None:
        self.trainer = _weights(seed)
        client: Any = self.node
        async with hang_limit():
            await WeightUpdates(client, self.target, mode, self.probe).push(self.trainer.state_dict(), version)

    async def reply(self, sampler: Sampler) -> Piece:
        """Of a session whose replica this is."""
        replicas = self.pool._set.replicas
        names = (f"session-{number}" for number in range(1000))
        mine = next(name for name in names if ranked(name, replicas)[0].name == sampler.url)
        return await joined(self.pool.generate(ask(PROMPT, mine, max_tokens=12)))

    async def check_replies(self, version: str) -> None:
        for sampler in self.samplers:
            piece = await self.reply(sampler)
            assert [span.version for span in piece.policy_spans] == [version]
            expected = _logprobs(self.trainer, PROMPT, piece.ids)
            assert piece.logprobs.tolist() == pytest.approx(expected, abs=EXACT)

    def calls(self) -> list[int]:
        counted = self.pool.counters()["replicas"]
        return [counted[sampler.url]["calls"] for sampler in self.samplers]


def _weights(seed: int) -> Any:
    from tiny_llama import tiny_llama

    return tiny_llama(seed)


def _logprobs(model: Any, prompt_ids: Any, reply_ids: Any) -> list[float]:
    from tiny_llama import recomputed

    return recomputed(model, list(prompt_ids), list(reply_ids))


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    from tiny_llama import saved

    model = saved(tmp_path / "model", 0)
    async with AsyncExitStack() as stack:
        samplers = [Sampler(model), Sampler(model)]
        for sampler in samplers:
            stack.push_async_callback(sampler.kill)
        await asyncio.gather(*(sampler.start() for sampler in samplers))
        made = Bench(samplers, model, tmp_path)
        stack.push_async_callback(made.pool.stop)
        stack.push_async_callback(made.target.close)
        await made.pool.start()
        await made.probe.measure_noise()
        yield made


@pytest.mark.parametrize("mode", ["drain", "in_flight"])
async def test_both_get_the_weights_under_one_version(bench: Bench, mode: str) -> None:
    for seed, version in ((1, "first"), (2, "second")):
        await bench.push(seed, mode, version)
        report = bench.probe.last
        assert report and report.clear and report.difference < EXACT and report.share == pytest.approx(1, abs=0.01)
        before = bench.calls()
        await bench.check_replies(version)
        assert all(after > count for after, count in zip(bench.calls(), before, strict=True)), "each sampled"
    files = list((bench.folder / "pushed").glob("*/model.safetensors"))
    assert len(files) == 1, "the weights are written once for both"


async def test_one_that_was_killed_comes_back_with_the_next_update(bench: Bench) -> None:
    one, two = bench.samplers
    await bench.push(1, "drain", "1")
    await one.kill()
    await bench.push(2, "drain", "2")  # goes on without it: the other one reports versions
    assert set(bench.target.present()) == {two.url}  # pyright: ignore[reportAttributeAccessIssue]
    await bench.check_replies("2")
    await one.start()
    await until(lambda: "weights of version (none named), the pool those of 2" in bench.pool.replicas()[one.url])
    await bench.check_replies("2")
    await bench.push(3, "in_flight", "3")
    await until(lambda: not any(bench.pool.replicas().values()))
    before = bench.calls()
    await bench.check_replies("3")
    assert all(after > count for after, count in zip(bench.calls(), before, strict=True))


async def test_before_the_first_version_none_may_be_missing(bench: Bench) -> None:
    one, two = bench.samplers
    await one.kill()
    with pytest.raises(
        WeightError, match=f"do not answer: {one.url}.*no weight version.*take them out of the pool"
    ):
        await bench.push(1, "drain", "1")
    await bench.pool.revive()
    assert bench.pool.replicas()[two.url] == ""


async def test_one_that_does_not_take_them_is_named_and_none_samples(bench: Bench) -> None:
    """The second sampler was started from a model of another shape, and refuses the weights."""
    from tiny_llama import saved

    two = bench.samplers[1]
    await two.kill()
    two._model = saved(bench.folder / "other", 0, vocabulary=200)
    await two.start()
    with pytest.raises(WeightError, match=rf"1 of 2 replicas did not take the weights: {two.url}.*none of them"):
        await bench.push(1, "drain", "1")
    assert bench.node.paused
    await two.kill()
    two._model = bench.folder / "model"
    await two.start()
    await bench.push(1, "drain", "1")
    assert not bench.node.paused
    await until(lambda: not any(bench.pool.replicas().values()))
    await bench.check_replies("1")
