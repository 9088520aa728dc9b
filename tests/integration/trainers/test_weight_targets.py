"""Weights into servers that answer as vLLM and SGLang do: the requests, the proof, and what goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestServer
from updatable_servers import OPENED, ShiftedToy, UpdatableSglang, UpdatableVllm, model_folder, weights

from contracts.engine_contract import ask
from polar.engines.base import Piece
from polar.registry import make
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.trainers.weights import (
    WeightError,
    WeightOptions,
    WeightProbe,
    WeightTarget,
    WeightUpdates,
    vllm_ipc,
    weight_target,
)
from polar.types import Drain, Policy, Spec
from waiting import hang_limit, until

pytestmark = pytest.mark.check
IDS = [500, 501, 502, 503, 504, 505, 506, 507]

Serve = Callable[..., Awaitable[tuple[WeightTarget, Spec]]]


@pytest.fixture
async def serve(tmp_path: Path) -> AsyncIterator[Serve]:
    """Starts a fake server and gives its target, and the engine's spec."""
    async with AsyncExitStack() as stack:

        async def start(name: str, fake: Any, *, tied: bool = False, **options: Any) -> tuple[WeightTarget, Spec]:
            fake.served = model_folder(tmp_path / "model", tied=tied)
            server = await stack.enter_async_context(TestServer(fake.app()))
            spec = Spec(name=name, options={"url": str(server.make_url(""))})
            chosen = WeightOptions(folder=tmp_path / "pushed", **options)
            target = weight_target(spec, fake.served, chosen)
            stack.push_async_callback(target.close)
            return target, spec

        yield start


@pytest.fixture
def vllm(smollm2: SmolLM2Renderer) -> UpdatableVllm:
    return UpdatableVllm(smollm2._vocabulary)  # pyright: ignore[reportPrivateUsage]


@pytest.fixture
def sglang(smollm2: SmolLM2Renderer) -> UpdatableSglang:
    return UpdatableSglang(smollm2._vocabulary, processed=False)  # pyright: ignore[reportPrivateUsage]


class QuietService:
    """A client of a service without nodes."""

    def __init__(self) -> None:
        self.version = ""

    async def pause(self, **_: Any) -> Policy:
        return Policy(paused=True)

    async def resume(self) -> Policy:
        return Policy()

    async def set_policy_version(self, version: str) -> Policy:
        self.version = version
        return Policy(version=version)

    async def drain(self) -> Drain:
        return Drain(policy=Policy(), generating=0)


def updates(target: WeightTarget, mode: Any, probe: WeightProbe | None = None) -> WeightUpdates:
    client: Any = QuietService()
    return WeightUpdates(client, target, mode, probe)


async def proven(target: WeightTarget, mode: Any) -> None:
    """Trains twice: each push is proven, and each differs from the one before."""
    trainer = ShiftedToy()
    probe = WeightProbe(target, IDS, trainer.scores)
    await probe.measure_noise()
    for shift in (7, 3):
        trainer.shift = shift
        await updates(target, mode, probe).push(weights(shift), f"step-{shift}")
        assert probe.last and probe.last.clear and probe.last.share == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("engine", ["vllm", "torch"])
@pytest.mark.parametrize("mode", ["drain", "in_flight"])
async def test_vllm_takes_weights_from_disk(serve: Serve, vllm: UpdatableVllm, engine: str, mode: str) -> None:
    target, _ = await serve(engine, vllm)
    await proven(target, mode)
    assert vllm.version == "step-3"


async def test_the_requests_of_an_update_in_flight(serve: Serve, vllm: UpdatableVllm, tmp_path: Path) -> None:
    target, _ = await serve("vllm", vllm)
    await updates(target, "in_flight").push(weights(7), "1")
    folder = vllm.calls[1][1]["kwargs"]["weights_path"]
    assert vllm.calls == [
        ("/pause?mode=keep", {}),
        ("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": folder}}),
        ("/reset_prefix_cache?reset_running_requests=true", {}),
        ("/update_weight_version", {"new_version": "1"}),
        ("/resume", {}),
    ]
    await target.close()
    assert list((tmp_path / "pushed").iterdir()) == []


async def test_a_server_without_the_routes_says_how_to_start_it(serve: Serve, vllm: UpdatableVllm) -> None:
    vllm.dev_mode = False
    target, _ = await serve("vllm", vllm)
    for mode in ("drain", "in_flight"):
        with pytest.raises(WeightError, match=r"does not offer /\w+.*VLLM_SERVER_DEV_MODE=1"):
            await updates(target, mode).push(weights(7), "1")


async def test_vllm_before_it_named_versions(serve: Serve, vllm: UpdatableVllm) -> None:
    vllm.names_versions = False
    target, _ = await serve("vllm", vllm)
    await proven(target, "in_flight")


async def test_a_server_that_does_not_take_them_is_found_out(serve: Serve, vllm: UpdatableVllm) -> None:
    vllm.deaf = True
    target, _ = await serve("vllm", vllm)
    with pytest.raises(WeightError, match="still has the old weights"):
        await proven(target, "drain")


async def test_a_server_that_is_gone(serve: Serve, vllm: UpdatableVllm, tmp_path: Path) -> None:
    _, _ = await serve("vllm", vllm)
    spec = Spec(name="vllm", options={"url": "http://127.0.0.1:9"})
    target = weight_target(spec, vllm.served)
    with pytest.raises(WeightError, match="no connection to vLLM"):
        await updates(target, "in_flight").push(weights(7), "1")
    await target.close()


class TestTiedHeads:
    @pytest.mark.parametrize("release", ["0.32.0", "0.33.1.dev7+g1234567", "1.0"])
    async def test_a_new_vllm_takes_the_head_of_a_tied_model(
        self, serve: Serve, vllm: UpdatableVllm, release: str
    ) -> None:
        vllm.release_number = release
        target, _ = await serve("vllm", vllm, tied=True)
        await target.load(weights(7, tied=True))
        assert vllm.model.shift == 7

    async def test_an_old_one_would_keep_its_head(self, serve: Serve, vllm: UpdatableVllm) -> None:
        vllm.release_number = "0.25.1"
        target, _ = await serve("vllm", vllm, tied=True)
        with pytest.raises(WeightError, match=r"0\.25\.1.*keep the old head.*weights\.untie"):
            await target.load(weights(7, tied=True))
        assert vllm.calls == [], "it is refused before anything changes"

    async def test_an_old_one_that_serves_an_untied_copy_takes_it(self, serve: Serve, vllm: UpdatableVllm) -> None:
        vllm.release_number = "0.25.1"
        target, _ = await serve("vllm", vllm)
        await target.load(weights(7))
        assert vllm.model.shift == 7


async def test_a_reply_across_an_update_has_the_version_of_each_token(serve: Serve, vllm: UpdatableVllm) -> None:
    target, spec = await serve("vllm", vllm)
    service = updates(target, "in_flight")
    await service.push(weights(1), "1")
    engine = make("engine", spec)
    await engine.start()
    vllm.step_s = 0.05
    vllm.sampled_by.clear()
    replying = asyncio.create_task(_pieces(engine))
    await until(lambda: len(vllm.sampled_by) >= 3)
    await service.push(weights(9), "2")
    async with hang_limit():
        pieces = await replying
    await engine.stop()
    [before, after] = pieces[-1].policy_spans
    assert (before.version, after.version) == ("1", "2")
    assert (before.start, after.start, after.start + after.length) == (0, before.length, 12)
    ids = [*IDS, *(token_id for piece in pieces for token_id in piece.ids)]
    logprobs = [value for piece in pieces for value in piece.logprobs]
    split = len(IDS) + before.length
    old, new = ShiftedToy(shift=1).scores(ids[:split]), ShiftedToy(shift=9).scores(ids)
    wanted = [*old[len(IDS) - 1 :], *new[split - 1 :]]
    assert logprobs == pytest.approx(wanted, abs=1e-5), "each logprob is of the weights that sampled the token"


async def _pieces(engine: Any) -> list[Piece]:
    return [piece async for piece in engine.generate(ask(IDS, max_tokens=12, seed=4))]


class TestTransfer:
    """vLLM's routes for weight transfer. Memory of a GPU is played by a table."""

    @pytest.fixture(autouse=True)
    def gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        @contextmanager
        def shared(tensors: dict[str, Any]) -> Generator[list[dict[str, tuple[str]]]]:
            OPENED.update({(name,): tensor for name, tensor in tensors.items()})
            yield [{"GPU-1": (name,)} for name in tensors]
            OPENED.clear()

        monkeypatch.setattr(vllm_ipc, "shared", shared)

    async def test_weights_come_out_of_the_trainers_memory(self, serve: Serve, vllm: UpdatableVllm) -> None:
        target, _ = await serve("vllm", vllm, transfer="ipc")
        await proven(target, "in_flight")

    async def test_the_requests_of_a_transfer(self, serve: Serve, vllm: UpdatableVllm) -> None:
        target, _ = await serve("vllm", vllm, transfer="ipc", dtype="bfloat16")
        for shift in (7, 8):
            await target.load(weights(shift))
        paths = [path for path, _ in vllm.calls]
        update = ["/start_weight_update", "/update_weights", "/finish_weight_update"]
        drop = ["/reset_prefix_cache?reset_running_requests=true"]
        assert paths == ["/init_weight_transfer_engine", *update, *drop, *update, *drop]
        info = vllm.calls[2][1]["update_info"]
        assert info["dtype_names"] == ["bfloat16"] * 2 and info["shapes"] == [[1], [1]]

    async def test_a_server_with_another_backend_says_how_to_start_it(
        self, serve: Serve, vllm: UpdatableVllm
    ) -> None:
        vllm.transfers = False
        target, _ = await serve("vllm", vllm, transfer="ipc")
        with pytest.raises(WeightError, match=r"INSECURE_SERIALIZATION=1.*weight-transfer-config"):
            await target.load(weights(7))

    async def test_a_server_on_another_gpu_is_an_error(
        self, serve: Serve, vllm: UpdatableVllm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        @contextmanager
        def shared(tensors: dict[str, Any]) -> Generator[list[dict[str, tuple[str]]]]:
            yield [{"GPU-2": (name,)} for name in tensors]

        monkeypatch.setattr(vllm_ipc, "shared", shared)
        target, _ = await serve("vllm", vllm, transfer="ipc")
        with pytest.raises(WeightError, match="IPC handle not found for GPU UUID"):
            await target.load(weights(7))


async def test_weights_that_are_not_on_a_gpu_cannot_be_shared(serve: Serve, vllm: UpdatableVllm) -> None:
    target, _ = await serve("vllm", vllm, transfer="ipc")
    with pytest.raises(WeightError, match="not all on a GPU: use the transfer `disk`"):
        await target.load(weights(7))
    assert vllm.calls == []


class TestSglang:
    @pytest.mark.parametrize("mode", ["drain", "in_flight"])
    async def test_it_takes_weights_from_disk(self, serve: Serve, sglang: UpdatableSglang, mode: str) -> None:
        target, _ = await serve("sglang", sglang)
        await proven(target, mode)
        assert sglang.weight_version == "step-3"

    async def test_the_requests_of_an_update(self, serve: Serve, sglang: UpdatableSglang) -> None:
        target, spec = await serve("sglang", sglang)
        await updates(target, "in_flight").push(weights(7), "1")
        assert [path for path, _ in sglang.calls] == [
            "/pause_generation",
            "/flush_cache",
            "/update_weights_from_disk",
            "/flush_cache",
            "/update_weight_version",
            "/continue_generation",
        ]
        engine = make("engine", spec)
        await engine.start()
        pieces = [piece async for piece in engine.generate(ask(IDS, max_tokens=3))]
        await engine.stop()
        assert {piece.policy_version for piece in pieces} == {"1"}

    async def test_with_requests_under_way_it_keeps_its_cache_and_the_old_weights(
        self, serve: Serve, sglang: UpdatableSglang
    ) -> None:
        sglang.busy = True
        target, _ = await serve("sglang", sglang)
        with pytest.raises(WeightError, match=r"keeps its prefix cache.*`drain`"):
            await updates(target, "in_flight").push(weights(7), "1")
        assert (sglang.model.shift, sglang.weight_version, sglang.gate.held) == (0, "default", False)

    async def test_weights_that_do_not_fit_are_refused(self, serve: Serve, sglang: UpdatableSglang) -> None:
        sglang.refuses = "Failed to update weights: size mismatch."
        target, _ = await serve("sglang", sglang)
        with pytest.raises(WeightError, match="size mismatch"):
            await updates(target, "drain").push(weights(7), "1")
