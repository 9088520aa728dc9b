"""The sampler as a program, with the routes that a trainer uses for new weights."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from sampler_program import running_sampler

from contracts.engine_contract import ask, whole
from polar.engines.torch.engine import TorchEngine, TorchOptions
from polar.errors import EngineError
from polar.types import PolicySpan
from tiny_llama import recomputed, saved, tiny_llama
from waiting import until

pytestmark = [pytest.mark.check, pytest.mark.asyncio(loop_scope="module")]
EXACT = 1e-4
PROMPT = list(range(50, 90))
GENERATE = "/inference/v1/generate"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sampler(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[aiohttp.ClientSession]:
    folder = saved(tmp_path_factory.mktemp("server") / "tiny", seed=0)
    async with running_sampler(folder, "--parallel", "2") as address, aiohttp.ClientSession(address) as http:
        yield http


@pytest_asyncio.fixture(loop_scope="module")
async def engine(sampler: aiohttp.ClientSession, tmp_path: Path) -> AsyncIterator[TorchEngine]:
    """A client of the sampler, which has the first weights again."""
    await post(sampler, "/collective_rpc", reload_from(saved(tmp_path / "first", seed=0)))
    await post(sampler, "/update_weight_version", {"new_version": "default"})
    engine = TorchEngine(TorchOptions(url=str(sampler._base_url)))
    await engine.start()
    yield engine
    await engine.stop()


async def post(http: aiohttp.ClientSession, path: str, body: Any = None, status: int = 200) -> Any:
    async with http.post(path, json=body) as response:
        assert response.status == status, await response.text()
        return await response.json()


async def get(http: aiohttp.ClientSession, path: str) -> Any:
    async with http.get(path) as response:
        assert response.status == 200
        return await response.json() if response.content_type == "application/json" else None


def reload_from(folder: Path) -> dict[str, Any]:
    return {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}


async def test_a_push_in_flight_changes_the_rest_of_a_reply(
    sampler: aiohttp.ClientSession, engine: TorchEngine, tmp_path: Path
) -> None:
    await post(sampler, "/update_weight_version", {"new_version": "1"})
    pieces = engine.generate(ask(PROMPT, "in-flight", max_tokens=400))
    received = [await anext(pieces)]
    await post(sampler, "/pause?mode=keep")
    await post(sampler, "/collective_rpc", reload_from(saved(tmp_path / "second", seed=1)))
    await post(sampler, "/reset_prefix_cache")
    await post(sampler, "/update_weight_version", {"new_version": "2"})
    assert await get(sampler, "/is_paused") == {"is_paused": True}
    await post(sampler, "/resume")
    received += [piece async for piece in pieces]
    first, second = received[-1].policy_spans
    assert (first.version, second.version) == ("1", "2")
    assert second == PolicySpan("2", first.length, 400 - first.length)
    ids = [token_id for piece in received for token_id in piece.ids]
    values = [value for piece in received for value in piece.logprobs]
    old, new = (recomputed(tiny_llama(seed), PROMPT, ids) for seed in (0, 1))
    assert values == pytest.approx([*old[: first.length], *new[first.length :]], abs=EXACT)


async def test_scores_are_of_the_new_weights(
    sampler: aiohttp.ClientSession, engine: TorchEngine, tmp_path: Path
) -> None:
    before = await whole(engine, ask(PROMPT, "before"))
    await post(sampler, "/collective_rpc", reload_from(saved(tmp_path / "third", seed=2)))
    after = await whole(engine, ask(PROMPT, "after"))
    assert after.evaluated_tokens == len(PROMPT), "nothing of the old weights is reused"
    ids = ask([*PROMPT, *before.ids]).prompt_ids
    scored = await engine.score(ids, range(len(PROMPT), len(ids)))
    assert scored.tolist() == pytest.approx(recomputed(tiny_llama(2), PROMPT, before.ids), abs=EXACT)
    assert scored.tolist() != pytest.approx(before.logprobs.tolist(), abs=0.1)


async def test_no_version_was_set_no_version_is_reported(engine: TorchEngine) -> None:
    piece = await whole(engine, ask(PROMPT, "unversioned"))
    assert (piece.policy_version, piece.policy_spans) == ("", ())


async def test_a_reply_is_ended_by_a_pause_that_aborts(
    sampler: aiohttp.ClientSession, engine: TorchEngine
) -> None:
    pieces = engine.generate(ask(PROMPT, "aborted", max_tokens=400))
    received = [await anext(pieces)]
    await post(sampler, "/pause")
    received += [piece async for piece in pieces]
    await post(sampler, "/resume")
    assert received[-1].finish_reason == "aborted"


async def test_a_client_that_goes_away_frees_its_row(sampler: aiohttp.ClientSession, engine: TorchEngine) -> None:
    await post(sampler, "/pause?mode=keep")
    asked = [asyncio.create_task(whole(engine, ask(PROMPT, f"gone-{n}", max_tokens=400))) for n in range(3)]

    async def waiting() -> int:
        info = await get(sampler, "/server_info")
        return info["waiting"] + info["live"]

    async def all_wait() -> bool:
        return await waiting() == 3

    async def none_waits() -> bool:
        return await waiting() == 0

    await until(all_wait)
    for task in asked:
        task.cancel()
    await until(none_waits)
    await post(sampler, "/resume")
    await asyncio.gather(*asked, return_exceptions=True)


async def test_a_whole_reply_comes_at_once_if_it_is_not_streamed(sampler: aiohttp.ClientSession) -> None:
    body = {"token_ids": PROMPT, "sampling_params": {"max_tokens": 3, "temperature": 0.0}}
    reply = await post(sampler, GENERATE, body)
    choice = reply["choices"][0]
    assert (len(choice["token_ids"]), choice["finish_reason"]) == (3, "length")
    assert [entry["token_id"] for entry in choice["logprobs"]["content"]] == choice["token_ids"]
    assert reply["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        (GENERATE, {"token_ids": [], "sampling_params": {}}, "at least one id"),
        (GENERATE, {"token_ids": [9999], "sampling_params": {}}, "between 0 and 299"),
        (GENERATE, {"token_ids": [1] * 600, "sampling_params": {}}, "maximum context length is 512"),
        (GENERATE, {"token_ids": [1], "sampling_params": {"n": 3}}, "does not support n"),
        (GENERATE, {"token_ids": "one", "sampling_params": {}}, "cannot read the request"),
        ("/collective_rpc", {"method": "sleep"}, "only method is `reload_weights`"),
        ("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": "/no"}}, "no safetensors"),
        ("/pause?mode=soon", None, "must be abort, wait or keep"),
    ],
)
async def test_a_wrong_request_is_refused_with_the_reason(
    sampler: aiohttp.ClientSession, path: str, body: Any, reason: str
) -> None:
    reply = await post(sampler, path, body, status=400)
    assert reason in reply["error"]["message"]


async def test_a_key_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_sampler(saved(tmp_path), "--api-key-env", "SAMPLER_KEY", key="secret") as address:
        with pytest.raises(EngineError, match="401"):
            await TorchEngine(TorchOptions(url=address)).start()
        monkeypatch.setenv("CLIENT_KEY", "secret")
        engine = TorchEngine(TorchOptions(url=address, api_key_env="CLIENT_KEY"))
        assert (await engine.start()).parallel == 4
        await engine.stop()
