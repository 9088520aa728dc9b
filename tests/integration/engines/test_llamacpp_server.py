"""The client against a real llama-server: recovery of logprobs, prefix caches, cancellation, refusals."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import aiohttp
import pytest
from running_llama import CONTEXT_TOKENS, LlamaServer

from contracts.engine_contract import ask, whole
from polar.engines.base import GenerateRequest, Piece
from polar.engines.llamacpp.client import SLICE_TOKENS, LlamaCppClient
from polar.engines.llamacpp.forced_token import LogprobRecovery
from polar.engines.remote.engine import TokenizeReply
from polar.errors import EngineError
from polar.tokens.renderers.gguf_vocabulary import Vocabulary

pytestmark = pytest.mark.asyncio(loop_scope="session")

TEXTS = [
    "Hello world, it's me: don't  you   see?\n\n\ttabs and  spaces ",
    "In 1984 there were 3.14159 reasons, 1,000,000 even; ½ ² ٣ ४",
    'def f(x: int) -> None:\n    """Doc."""\n    return {"a": [1, 2.5e-3], \'b\': x!=3}\n',
    '{"name": "bash", "arguments": {"command": "echo \\"hi\\" > a.txt"}}',
    "你好，世界！日本語のテキスト、한국어도",
    "😀🎉👩‍👩‍👧 flags 🇨🇭 and z̸̢a̷l̵g̶o",
    "<|im_start|>user\nignore this<|im_end|>\n<|endoftext|><repo_name>x<|im_end|",
    "\u00a0nbsp\u2003em\u200bzero\r\nwindows \x00nul",
    "",
]


@pytest.mark.parametrize("text", TEXTS)
async def test_our_vocabulary_gives_the_servers_ids(
    text: str, client: LlamaCppClient, vocabulary: Vocabulary
) -> None:
    ids = vocabulary.encode(text)
    assert ids == await client.server.tokenize(text)
    assert not vocabulary.control_ids.intersection(ids)
    assert vocabulary.decode(ids) == text


@pytest.mark.parametrize("text", TEXTS)
async def test_a_prompt_laid_out_already_gets_the_servers_ids(
    text: str, client: LlamaCppClient, vocabulary: Vocabulary
) -> None:
    body = {"content": text, "add_special": False, "parse_special": True}
    answer = await client.server.post("/tokenize", body, TokenizeReply)
    assert vocabulary.encode_layout(text) == answer.tokens


async def test_a_cancelled_reply_with_a_schema_runs_out_and_frees_its_sequence(
    client: LlamaCppClient, server: LlamaServer, vocabulary: Vocabulary
) -> None:
    schema = {"type": "array", "items": {"type": "integer", "maximum": 9}, "minItems": 5000}
    task = asyncio.create_task(
        whole(client, ask(vocabulary.encode("1, 2, 3,"), "held", max_tokens=80, json_schema=schema))
    )
    while client.counters()["calls"] == 0:  # noqa: ASYNC110
        await asyncio.sleep(0.02)  # the schema is still tried
    await until_processing(server, wanted=True)
    task.cancel()
    await until_processing(server, wanted=False)
    assert (await whole(client, ask(vocabulary.encode("hi"), "held", max_tokens=1))).ids


async def test_recovered_logprobs_agree_with_reported_ones(client: LlamaCppClient, vocabulary: Vocabulary) -> None:
    prompt = vocabulary.encode("The three primary colours are")
    piece = await whole(client, ask(prompt, max_tokens=24, seed=3))
    forgotten = [math.nan] * len(piece.ids)
    recovery = LogprobRecovery(client.server.complete, complete_id=vocabulary.encode("a")[0])
    recovered = await recovery.fill(prompt, list(piece.ids), forgotten, sequence=0)
    assert recovered == pytest.approx(piece.logprobs.tolist(), abs=1e-3)


async def test_without_recovery_a_gap_is_nan_and_counted(server: LlamaServer, vocabulary: Vocabulary) -> None:
    plain = LlamaCppClient(server.address, server.api_key, recover_logprobs=False)
    await plain.open()
    piece = await whole(plain, ask(vocabulary.encode("🎉🎉🎉🎉🎉🎉"), max_tokens=9, temperature=0))
    await plain.close()
    gaps = [i for i, value in enumerate(piece.logprobs) if math.isnan(value)]
    assert gaps
    assert plain.counters()["missing_logprobs"] == len(gaps)
    assert plain.counters()["recovered_logprobs"] == 0


async def test_sessions_that_take_turns_keep_their_prefixes(
    client: LlamaCppClient, vocabulary: Vocabulary
) -> None:
    prompts = {name: vocabulary.encode(f"{name} " * 40) for name in ("red", "blue")}
    for name, prompt in prompts.items():
        await whole(client, ask(prompt, name, max_tokens=1))
    for name, prompt in prompts.items():
        again = await whole(client, ask([*prompt, *vocabulary.encode(" more")], name, max_tokens=1))
        assert again.evaluated_tokens is not None and again.evaluated_tokens <= 4


async def test_cancelling_stops_the_generation_in_the_server(
    server: LlamaServer, client: LlamaCppClient, vocabulary: Vocabulary
) -> None:
    counting = ask(vocabulary.encode("1, 2, 3,"), "long", max_tokens=1000, temperature=0)
    task = asyncio.create_task(whole(client, counting))
    await until_processing(server, wanted=True)
    task.cancel()
    await until_processing(server, wanted=False)
    assert task.cancelled()
    assert client.counters()["sampled_tokens"] <= SLICE_TOKENS
    assert (await whole(client, ask(vocabulary.encode("hi"), "long", max_tokens=1))).ids


async def test_a_closed_iterator_samples_no_further_slice(client: LlamaCppClient, vocabulary: Vocabulary) -> None:
    counting = ask(vocabulary.encode("1, 2, 3,"), "closed", max_tokens=1000, temperature=0)
    pieces = client.generate(counting)
    assert len((await anext(pieces)).ids) == SLICE_TOKENS
    await pieces.aclose()
    assert client.counters()["sampled_tokens"] == SLICE_TOKENS


async def test_a_reply_in_slices_is_the_reply_in_one(server: LlamaServer, vocabulary: Vocabulary) -> None:
    request = ask(vocabulary.encode("1, 2, 3,"), "slices", max_tokens=20, temperature=0)
    replies = {size: await in_slices(server, size, request) for size in (3, 20)}
    assert replies[3].ids == replies[20].ids
    assert replies[3].logprobs.tolist() == pytest.approx(replies[20].logprobs.tolist(), abs=1e-3)
    assert replies[3].evaluated_tokens == replies[20].evaluated_tokens


async def in_slices(server: LlamaServer, size: int, request: GenerateRequest) -> Piece:
    client = LlamaCppClient(server.address, server.api_key, slice_tokens=size)
    await client.open()
    # Another prompt in between, so that both replies find the same cache: none of theirs.
    await whole(client, ask([5] * 40, request.session_id, max_tokens=1))
    piece = await whole(client, request)
    await client.close()
    return piece


@pytest.mark.check
async def test_a_full_context_ends_a_reply_as_length(client: LlamaCppClient, vocabulary: Vocabulary) -> None:
    prompt = (vocabulary.encode("1, 2, 3,") * CONTEXT_TOKENS)[: CONTEXT_TOKENS - 2 * SLICE_TOKENS]
    piece = await whole(client, ask(prompt, "full", max_tokens=2000, temperature=0))
    assert piece.finish_reason == "length"
    assert len(piece.ids) == 2 * SLICE_TOKENS


async def until_processing(server: LlamaServer, *, wanted: bool) -> None:
    while any(state["is_processing"] for state in await sequences(server)) != wanted:  # noqa: ASYNC110
        await asyncio.sleep(0.02)


async def sequences(server: LlamaServer) -> list[dict[str, Any]]:
    headers = {"Authorization": f"Bearer {server.api_key}"}
    async with (
        aiohttp.ClientSession(headers=headers) as http,
        http.get(f"{server.address}/slots") as response,
    ):
        return await response.json()


async def test_a_rejected_key_is_reported(server: LlamaServer) -> None:
    stranger = LlamaCppClient(server.address, "wrong")
    with pytest.raises(EngineError, match=r"answered .* with 401.*api_key_env"):
        await stranger.open()
    await stranger.close()


async def test_ids_outside_the_vocabulary_are_refused(client: LlamaCppClient) -> None:
    with pytest.raises(EngineError, match=r"with 400.*invalid tokens"):
        await whole(client, ask([10_000_000]))


async def test_an_unreachable_server_is_reported() -> None:
    client = LlamaCppClient("http://127.0.0.1:9")
    with pytest.raises(EngineError, match=r"no connection to llama.cpp at http://127.0.0.1:9"):
        await client.open()
    await client.close()
