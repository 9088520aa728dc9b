"""A stub engine with vLLM's routes, in a process of its own: canned replies, encoded before the first call.

It passes the self-test of Polar's `vllm` engine, and speaks the chat route for relays and bare harnesses. HTTP is
parsed by hand and each event is one write of one turn of the loop, so that the stub takes a fraction of what any
proxy in front of it does; `read` gives its own processor time, which shows it.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

import orjson
import stub_replies
from stub_replies import DONE, MAX_MODEL_LEN, MODEL, CannedReply, event, logprob

from polar.tokens.renderers.gguf_vocabulary import Vocabulary
from polar.tokens.renderers.smollm2 import SmolLM2Renderer

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.I)
CALLER = re.compile(rb"\r\n(?:x-session-id|authorization): *(?:bearer )?([^\r]+)", re.I)
PROMPT = re.compile(rb'"(?:token_ids|prompt)":\s*\[([^\]]*)\]')
MAX_TOKENS = re.compile(rb'"max_tokens":\s*(\d+)')
PROBE_TOKENS = 16
"""A self-test asks for fewer tokens than this, a harness for more."""
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
END = b"0\r\n\r\n"


@dataclass
class Pace:
    """How replies come."""

    tokens: int = 8
    """In each event."""
    gap_s: float = 0.0
    """Between events."""
    latency_s: float = 0.0
    """Before the first."""
    held_call: int = 0
    """A caller's call of this number, from 1, waits for `release`; 0: none does."""


@dataclass
class Script:
    """Encoded replies; a caller gets the first with its first call, and the last with all calls after it."""

    replies: Sequence[CannedReply]
    prompt_ids: Callable[[bytes, CannedReply], list[int]] | None = None
    """For chat callers that ask for ids: the prompt's, from the body of the request and the reply it will get;
    None: they get none."""
    calls: Counter[bytes] = field(default_factory=Counter[bytes])
    encoded: dict[Any, list[bytes]] = field(default_factory=dict[Any, list[bytes]])

    held: list[Callable[[float], None]] = field(default_factory=list[Callable[[float], None]])
    """Replies that wait; each is let go after the seconds it is given."""

    def reply(self, head: bytes) -> tuple[CannedReply, int]:
        """The reply, and which of the caller's calls it answers."""
        if len(self.replies) == 1:
            return self.replies[0], 0
        found = CALLER.search(head)
        caller = found[1] if found else b""
        self.calls[caller] += 1
        number = self.calls[caller]
        return self.replies[min(number, len(self.replies)) - 1], number

    def events(self, path: bytes, reply: CannedReply, tokens: int, *, with_ids: bool) -> list[bytes]:
        key = (path, reply.text, tokens, with_ids)
        if key not in self.encoded:
            self.encoded[key] = [chunk(data) for data in _encoded(path, reply, tokens, with_ids=with_ids)]
        return self.encoded[key]


def _encoded(path: bytes, reply: CannedReply, tokens: int, *, with_ids: bool) -> list[bytes]:
    if path == b"/v1/chat/completions":
        return stub_replies.chat_events(reply, tokens, with_ids=with_ids)
    if path == b"/v1/completions":
        return stub_replies.completion_events(reply, tokens)
    return stub_replies.generate_events(reply, tokens)


class StubHttp(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, script: Script, pace: Pace, served: Counter[str]) -> None:
        self._script = script
        self._pace = pace
        self._served = served
        self._received = bytearray()
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._timer: asyncio.Handle | None = None
        self._number = 0
        """Of the call under way, among those of its caller."""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._served["connections"] += 1

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return
        found = LENGTH.search(self._received, 0, end + 2)
        whole = end + 4 + (int(found[1]) if found else 0)
        if len(self._received) < whole:
            return
        head, body = bytes(self._received[:end]), bytes(self._received[end + 4 : whole])
        del self._received[:whole]
        self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        path = head.split(b" ", 2)[1]
        if path == b"/v1/models":
            card = {"id": MODEL, "object": "model", "root": MODEL, "parent": None, "max_model_len": MAX_MODEL_LEN}
            self._json({"object": "list", "data": [card]})
        elif path in (b"/version", b"/health"):
            self._json({"version": "0.32.0"})
        elif path == b"/tokenize":
            self._json({"tokens": [100, 101, 102, 103], "count": 4, "max_model_len": MAX_MODEL_LEN})
        elif path == b"/v1/chat/completions":
            self._chat(path, head, body)
        elif path in (b"/inference/v1/generate", b"/v1/completions"):
            self._generate(path, head, body)
        else:
            self._json({"error": {"message": "no such route", "code": 404}}, b"404 Not Found")

    def _generate(self, path: bytes, head: bytes, body: bytes) -> None:
        limit = MAX_TOKENS.search(body)
        if b'"stream":true' not in body.replace(b" ", b"") or (limit and int(limit[1]) < PROBE_TOKENS):
            self._probe(path, orjson.loads(body))
            return
        self._served["calls"] += 1
        found = PROMPT.search(body)
        prompt_tokens = found[1].count(b",") + 1 if found else 0
        reply, self._number = self._script.reply(head)
        self._stream(path, reply, prompt_tokens, with_ids=True)

    def _chat(self, path: bytes, head: bytes, body: bytes) -> None:
        self._served["calls"] += 1
        reply, self._number = self._script.reply(head)
        with_ids = b'"logprobs"' in body or b'"return_token_ids"' in body
        prompt_ids = self._script.prompt_ids(body, reply) if with_ids and self._script.prompt_ids else []
        prompt_tokens = len(prompt_ids) or len(body) // 4
        if re.search(rb'"stream":\s*true', body):
            self._stream(path, reply, prompt_tokens, with_ids=with_ids, prompt_ids=prompt_ids)
            return
        data = stub_replies.chat_reply(reply, with_ids=with_ids)
        data["usage"] = usage(prompt_tokens, reply)
        if prompt_ids:
            data["prompt_token_ids"] = prompt_ids
        self._begin(self._json, data)

    def _stream(
        self, path: bytes, reply: CannedReply, prompt_tokens: int, *, with_ids: bool, prompt_ids: Any = ()
    ) -> None:
        events = self._script.events(path, reply, self._pace.tokens, with_ids=with_ids)
        last = chunk(event({"choices": [], "usage": usage(prompt_tokens, reply)})) + chunk(DONE) + END
        if prompt_ids:
            told = orjson.loads(events[0].split(b"data: ", 1)[1].strip())
            events = [chunk(event({**told, "prompt_token_ids": prompt_ids})), *events[1:]]
        parts = iter([STREAM_HEAD + events[0], *events[1:], last])
        self._begin(self._next, parts, self._pace.gap_s)

    def _begin(self, answer: Callable[..., None], *arguments: Any) -> None:
        def after(delay_s: float) -> None:
            self._timer = self._loop.call_later(delay_s, answer, *arguments)

        if self._number and self._number == self._pace.held_call:
            self._script.held.append(after)
        elif self._pace.latency_s:
            after(self._pace.latency_s)
        else:
            answer(*arguments)

    def _next(self, parts: Any, gap_s: float) -> None:
        part = next(parts, None)
        if part is None:
            return
        self._transport.write(part)
        self._timer = (
            self._loop.call_later(gap_s, self._next, parts, gap_s)
            if gap_s
            else self._loop.call_soon(self._next, parts, gap_s)
        )

    def _probe(self, path: bytes, body: dict[str, Any]) -> None:
        """What a self-test asks: short replies, a stop id, scores."""
        by_tokens = path == b"/inference/v1/generate"
        knobs = body["sampling_params"] if by_tokens else body
        prompt = body["token_ids"] if by_tokens else body["prompt"]
        if body.get("stream"):
            self._probe_stream(path, knobs, len(prompt))
            return
        choice: dict[str, Any] = {"index": 0, "token_ids": [5], "finish_reason": "length"}
        if "prompt_logprobs" not in knobs:
            self._json({"choices": [choice]})
            return
        scored = [None, *({str(i): {"logprob": logprob(i), "rank": 1}} for i in prompt[1:])]
        if by_tokens:
            self._json({"choices": [choice], "prompt_logprobs": scored})
        else:
            self._json({"choices": [{**choice, "prompt_logprobs": scored}]})

    def _probe_stream(self, path: bytes, knobs: dict[str, Any], prompt_tokens: int) -> None:
        ids, finish = self._script.replies[0].ids[: knobs["max_tokens"]], "length"
        for stop_id in knobs.get("stop_token_ids", ()):
            if stop_id in ids:
                ids, finish = ids[: ids.index(stop_id) + 1], "stop"
        short = CannedReply("", ids, tuple("" for _ in ids))
        events = _encoded(path, short, len(ids), with_ids=True)
        events = [
            part.replace(b'"finish_reason":"stop"', b'"finish_reason":"%s"' % finish.encode()) for part in events
        ]
        told = event({"choices": [], "usage": usage(prompt_tokens, short)})
        self._transport.write(STREAM_HEAD + b"".join(map(chunk, [*events, told, DONE])) + END)

    def _json(self, data: Any, status: bytes = b"200 OK") -> None:
        body = orjson.dumps(data)
        head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
        self._transport.write(head + body)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def usage(prompt_tokens: int, reply: CannedReply) -> dict[str, Any]:
    sampled = len(reply.ids)
    total = {"prompt_tokens": prompt_tokens, "completion_tokens": sampled, "total_tokens": prompt_tokens + sampled}
    return {**total, "prompt_tokens_details": {"cached_tokens": max(0, prompt_tokens - 1)}}


class StubEngine:
    """The target: `url` serves all routes; `pace` changes how replies come, also while it serves."""

    def __init__(self, texts: Sequence[str], pace: Pace | None = None, prompt_ids: Any = None) -> None:
        self._texts = texts
        self._pace = pace or Pace()
        self._prompt_ids = prompt_ids
        self._served: Counter[str] = Counter()

    async def start(self, stack: AsyncExitStack) -> str:
        if hasattr(self._prompt_ids, "load"):
            await self._prompt_ids.load()
        vocabulary, stop_id = await vocabulary_and_stop()
        replies = [CannedReply.of(text, vocabulary, stop_id) for text in self._texts]
        script = self._script = Script(replies, self._prompt_ids)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: StubHttp(script, self._pace, self._served), "127.0.0.1", 0, backlog=2048
        )
        stack.callback(server.close)
        host, port = server.sockets[0].getsockname()[:2]
        return f"http://{host}:{port}"

    async def pace(self, pace: Pace) -> None:
        for name, value in asdict(pace).items():
            setattr(self._pace, name, value)

    async def release(self, over_s: float) -> None:
        """Lets the held replies go, one after another, over so many seconds."""
        held, self._script.held = self._script.held, []
        for number, after in enumerate(held):
            after(over_s * number / len(held))

    def read(self) -> dict[str, float]:
        return {**self._served, "held": float(len(self._script.held))}


async def vocabulary_and_stop() -> tuple[Vocabulary, int]:
    """SmolLM2's, whose weights the cache holds."""
    renderer = SmolLM2Renderer(SmolLM2Renderer.Options())
    await renderer.load()
    return renderer._vocabulary, renderer.stop_ids[0]  # pyright: ignore[reportPrivateUsage]
