"""What a call costs depends on what is new in it, not on the history before it: counted, not timed."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import orjson
import pytest

from polar.engines.remote import engine as remote_engine
from polar.engines.remote.engine import PromptJson
from polar.gateway.calls.call_service import CallService
from polar.gateway.calls.policy_gate import PolicyGate
from polar.gateway.calls.token_mode import TokenMode
from polar.gateway.dialects import raw_request
from polar.gateway.dialects.openai_chat import OpenAIChat
from polar.gateway.http import bodies
from polar.gateway.http.bodies import MOST_VALUES
from polar.gateway.slots import OpenSlot, SlotTable
from polar.store.journal import Journal
from polar.testing import ScriptedEngine
from polar.tokens.matching import Matcher, ToolDeclarations
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.types import CallProfile, Lease, Message, Retention, Session, TaskRequest, TokenIds, Tool, token_ids

OUTPUT = "def parse(line):\n    return line.split(',')[:-1]  # drops the last field\n" * 4
TURNS = 20


class CountingRenderer:
    """Hands everything to the real one and counts what is rendered."""

    def __init__(self, inner: SmolLM2Renderer) -> None:
        self._inner = inner
        self.Options = inner.Options
        self.stop_ids = inner.stop_ids
        self.fingerprint = inner.fingerprint
        self.takes_images = inner.takes_images
        self.parse = inner.parse
        self.reader = inner.reader
        self.encode = inner.encode
        self.decode = inner.decode
        self.load = inner.load
        self.renders = 0
        self.bridged: list[tuple[int, int]] = []
        """Characters that came in and ids that came out, of each bridge."""

    def retaining(self, _: Retention) -> CountingRenderer:
        return self

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> TokenIds:
        self.renders += 1
        return self._inner.render(messages, tools)

    def bridge(
        self,
        prompt_ids: TokenIds,
        completion_ids: TokenIds,
        new_messages: Sequence[Message],
        tools: Sequence[Tool],
    ) -> TokenIds | None:
        ids = self._inner.bridge(prompt_ids, completion_ids, new_messages, tools)
        self.bridged.append((sum(len(m.content) for m in new_messages), len(ids or ())))
        return ids


async def _talk(renderer: CountingRenderer, vocabulary: object, path: Path) -> None:
    """An append-only session of `TURNS` calls without HTTP."""
    engine = ScriptedEngine(vocabulary, lambda *_: "I look at the next file.")  # pyright: ignore
    async with await Journal.open(path) as journal:
        slots = SlotTable(journal, "polar", 8192)
        info = await engine.start()
        calls = CallService(TokenMode(renderer, engine, info), PolicyGate(), info, journal, "polar")
        lease = Lease(session=Session(session_id="s", task_id="t", index=0), task=TaskRequest(instruction="go"))
        await journal.add_session(lease)
        slot = slots.find((await slots.open(lease, CallProfile())).key)
        assert slot is not None
        messages = [{"role": "user", "content": "Make the tests pass."}]
        for _ in range(TURNS):
            messages += [await _call(calls, slot, messages), {"role": "user", "content": OUTPUT}]


async def _call(calls: CallService, slot: OpenSlot, messages: list[dict[str, str]]) -> dict[str, str]:
    body, recent = orjson.dumps({"model": "polar", "messages": messages}), slot.recent_bodies("chat", "messages")
    request = OpenAIChat().parse(recent.read(body, MOST_VALUES, recent.shared(body)))
    call = calls.receive(slot, request, "openai_chat")
    while not call.replied:
        await call.news
    slot.forget(call)
    calls.delivered(call)
    return {"role": "assistant", "content": call.reply.message.content}


async def test_rendering_and_rows_do_not_grow_with_the_history(smollm2: SmolLM2Renderer, tmp_path: Path) -> None:
    renderer = CountingRenderer(smollm2)
    await _talk(renderer, smollm2._vocabulary, tmp_path / "journal.db")  # pyright: ignore[reportPrivateUsage]
    assert renderer.renders == 1 and len(renderer.bridged) == TURNS - 1
    assert set(renderer.bridged) == {renderer.bridged[0]} and renderer.bridged[0][0] == len(OUTPUT)
    with closing(sqlite3.connect(tmp_path / "journal.db")) as database, database:
        rows = [size for (size,) in database.execute("SELECT length(body) FROM calls ORDER BY sequence")]
    # Numbers such as the count of prompt tokens take a byte or two more when they are larger.
    assert len(rows) == TURNS and abs(rows[19] - rows[4]) <= 16


async def test_a_body_is_decoded_and_digested_only_where_it_is_new(
    smollm2: SmolLM2Renderer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded, digested = list[int](), list[int]()
    real_read, real_digest = bodies.read_object, raw_request.digest_item
    monkeypatch.setattr(bodies, "read_object", lambda text: decoded.append(len(text)) or real_read(text))  # pyright: ignore
    monkeypatch.setattr(raw_request, "digest_item", lambda item: digested.append(1) or real_digest(item))  # pyright: ignore
    renderer = CountingRenderer(smollm2)
    await _talk(renderer, smollm2._vocabulary, tmp_path / "journal.db")  # pyright: ignore[reportPrivateUsage]
    assert len(decoded) == TURNS and len(set(decoded[1:])) == 1
    # Of the rest in each turn, and of each message once; the tools are digested by the dialect itself.
    assert len(digested) == TURNS + 2 * TURNS - 1


async def test_ids_are_written_as_json_only_where_they_are_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they come from a session: each prompt goes on from the one before."""
    prompts, ids, written = PromptJson(), token_ids(range(1000)), list[int]()
    real = orjson.dumps
    monkeypatch.setattr(remote_engine.orjson, "dumps", lambda ids: written.append(len(ids)) or real(ids))  # pyright: ignore
    for _ in range(TURNS):
        prompts.write("s", ids)
        ids = ids + token_ids(range(300))
    assert written == [1000, *[300] * (TURNS - 1)]


async def test_a_request_is_hashed_only_where_it_is_new(
    smollm2: SmolLM2Renderer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[int] = []
    real = Matcher.key

    def counting(matcher: Matcher, message: Message, declarations: ToolDeclarations) -> bytes:
        hashed.append(len(message.content))
        return real(matcher, message, declarations)

    monkeypatch.setattr(Matcher, "key", counting)
    renderer = CountingRenderer(smollm2)
    await _talk(renderer, smollm2._vocabulary, tmp_path / "journal.db")  # pyright: ignore[reportPrivateUsage]
    # In each turn: the echo and the new message when the request is matched, the new one and the reply when the
    # call is added.
    assert len(hashed) <= 4 * TURNS
