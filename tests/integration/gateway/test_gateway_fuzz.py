"""The gateway, fuzzed over real HTTP: nothing a harness sends makes it fail, in any dialect."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from playbook import running_gateway
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import status_code_conformance

from polar.gateway.http.openapi import POSTS, describe
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from waiting import HANG_S

BOUNDED = settings(
    max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None
)
schema = schemathesis.openapi.from_dict(describe())


@pytest.fixture(scope="module")
def served(smollm2: SmolLM2Renderer, tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[str, str]]:
    """Address and key of a gateway on an event loop of its own: the fuzzer is not asynchronous."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def do(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(HANG_S)

    async def start() -> tuple[AsyncExitStack, tuple[str, str]]:
        stack, folder = AsyncExitStack(), Path(tmp_path_factory.mktemp("fuzz"))
        gateway = await running_gateway(stack, smollm2, folder, lambda turn, ids: "Fine.")
        slot = await gateway.open()
        return stack, (slot.base_url, slot.key)

    stack, address = do(start())
    yield address
    do(stack.aclose())
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@schema.parametrize()
@BOUNDED
def test_nothing_the_page_describes_makes_the_gateway_fail(
    case: schemathesis.Case, served: tuple[str, str]
) -> None:
    base_url, key = served
    headers = {"Authorization": f"Bearer {key}"}
    case.call_and_validate(
        base_url=base_url, headers=headers, checks=[not_a_server_error, status_code_conformance], timeout=HANG_S
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
WORDS = st.sampled_from(
    (
        *("messages", "contents", "input", "prompt", "system", "instructions", "tools", "tool_choice", "stop"),
        *("role", "content", "parts", "text", "type", "user", "assistant", "model", "tool", "system", "function"),
        *("tool_use", "tool_result", "functionCall", "functionResponse", "function_call", "reasoning", "thinking"),
        *("name", "arguments", "args", "id", "call_id", "tool_calls", "stream", "max_tokens", "generationConfig"),
        *("response_format", "output_config", "json_schema", "image", "source", "data", "inlineData", "summary"),
    )
)
ALMOST = st.recursive(
    JSON | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=6),
    max_leaves=30,
)


@pytest.mark.parametrize("path", POSTS)
@BOUNDED
@given(body=st.dictionaries(WORDS, ALMOST, max_size=8))
def test_bodies_that_are_almost_right_are_answered_or_refused(
    path: str, served: tuple[str, str], body: dict[str, Any]
) -> None:
    base_url, key = served
    answer = requests.post(
        base_url + path.replace("{model}", "polar"),
        data=orjson.dumps(body),
        headers={"Authorization": f"Bearer {key}"},
        timeout=HANG_S,
    )
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        assert "error" in answer.json()


@BOUNDED
@given(
    body=st.binary(max_size=64),
    encoding=st.sampled_from(["", "gzip", "deflate", "zstd", "br", "gzip, zstd", "\u00e4"]),
    path=st.sampled_from(sorted(POSTS)),
)
def test_bytes_that_are_no_json_are_refused(
    served: tuple[str, str], body: bytes, encoding: str, path: str
) -> None:
    base_url, key = served
    headers = {"Authorization": f"Bearer {key}", "content-encoding": encoding.encode("latin-1")}
    address = base_url + path.replace("{model}", "polar")
    answer = requests.post(address, data=body, headers=headers, timeout=HANG_S)  # pyright: ignore[reportArgumentType]
    assert 400 <= answer.status_code < 500 and "error" in answer.json()
