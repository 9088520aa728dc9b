"""The self-tests of an engine behind an address, which it must pass before a session may use it.

Ids and logprobs come back in equal number; a stop id stays in the reply; and the meaning of the logprobs is
measured: a reply sampled at another temperature has the same logprobs as its scores only if they are raw. Chat
mode has a separate test.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from typing import Protocol, TypeVar

from polar.engines.base import ChatEngine, ChatPrompt, GenerateRequest, LogprobMode, Piece, Scorer
from polar.engines.pieces import joined, one_piece
from polar.errors import ChatRefused, ConfigError, EngineBusy, EngineDefect, EngineError
from polar.types import Message, Sampling, Tool, token_ids

PROBE_TEXT = "Once upon a time"
PROBE_IDS = (100, 101, 102, 103)
"""For a server that does not tokenize: every vocabulary has these ids."""
PROBE_TOKENS = 12
STOP_TRIALS = 3
"""Where two tokens are about equally likely, the greedy choice may change between calls."""
MAX_NOISE = 0.5
"""Mean difference between a sampled logprob and its score that a server's arithmetic may explain."""
CLEAR_GAP = 0.15
TEMPERATURES = (2.0, 0.1)
"""A sharp distribution shows the difference at the first, a flat one at the second. Servers refuse more than 2."""
CHAT_TEXT = "Say hi to the moon."
CHAT_TOOL = Tool(
    name="look",
    description="Looks into a file.",
    parameters={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
)
CHAT_ADVICE = "see docs/engines.md for the versions and flags that chat mode needs"

T = TypeVar("T")


async def within(limit_s: float, self_test: Awaitable[T], server: str) -> T:
    try:
        async with asyncio.timeout(limit_s):
            return await self_test
    except TimeoutError as error:
        raise EngineError(
            f"{server} has not passed the self-test in {limit_s:.0f} s; see its log, or raise the engine option "
            "`start_timeout_s`"
        ) from error


class Provable(Scorer, Protocol):
    def generate(self, request: GenerateRequest) -> AsyncGenerator[Piece]: ...


def check_logprobs(server: str, piece: Piece, advice: str) -> None:
    """Raises `EngineDefect` unless each id has a usable logprob."""
    if len(piece.ids) != len(piece.logprobs) or not piece.ids:
        raise EngineDefect(f"{server} gave {len(piece.ids)} ids and {len(piece.logprobs)} logprobs; {advice}")
    if not all(value <= 1e-3 for value in piece.logprobs):  # false for NaN, too
        values = [round(value, 3) for value in piece.logprobs]
        raise EngineDefect(f"{server} gave no usable logprobs: {values}; {advice}")


class Proof:
    """One self-test. `name` is the server's name in messages, with its url."""

    def __init__(self, engine: Provable, name: str, prompt_ids: Sequence[int]) -> None:
        self._engine = engine
        self._name = name
        self._prompt_ids = token_ids(prompt_ids)

    async def run(self, configured: LogprobMode | None) -> LogprobMode:
        """The measured logprob mode. Raises `EngineDefect` for a server that cannot be trained on."""
        plain = await self._reply(1.0)
        check_logprobs(self._name, plain, "start it with log probabilities of sampled tokens, not logits")
        await self._check_stop()
        return await self._mode(plain, configured)

    async def _check_stop(self) -> None:
        for _ in range(STOP_TRIALS):
            stop_id = (await self._reply(0.0, max_tokens=1)).ids[0]
            piece = await self._reply(0.0, max_tokens=3, stop_ids=(stop_id,))
            if piece.finish_reason == "stop":
                if piece.ids and piece.ids[-1] == stop_id:
                    return
                raise EngineDefect(f"{self._name} leaves the stop id out of a reply's ids; see docs/engines.md")
        raise EngineDefect(f"{self._name} does not stop at a stop id; see docs/engines.md for its versions")

    async def _mode(self, plain: Piece, configured: LogprobMode | None) -> LogprobMode:
        try:
            noise = await self._gap(plain)
        except (EngineBusy, EngineDefect):
            raise
        except EngineError as error:  # a server may refuse to score and still sample well
            if configured is None:
                raise ConfigError(
                    f"{self._name} does not score, so the meaning of its logprobs cannot be measured: set the "
                    f'engine option `logprob_mode` to "raw" or "processed" ({error})'
                ) from error
            return configured
        measured = await self._measured(noise)
        if configured not in (None, measured):
            raise EngineDefect(
                f"{self._name} gives {measured} logprobs, and the engine option `logprob_mode` says {configured}: "
                "correct it, or leave it out"
            )
        return measured

    async def _measured(self, noise: float) -> LogprobMode:
        if not noise < MAX_NOISE:
            raise EngineDefect(
                f"{self._name} scores tokens differently than it sampled them (mean difference {noise:.2f}); "
                "start it with log probabilities, not logits, and do not update its weights during the start"
            )
        for temperature in TEMPERATURES:
            if await self._gap(await self._reply(temperature)) > max(CLEAR_GAP, 4 * noise):
                return "processed"
        return "raw"

    async def _gap(self, piece: Piece) -> float:
        """Mean difference between a reply's logprobs and the scores of its tokens."""
        start = len(self._prompt_ids)
        ids = self._prompt_ids + piece.ids
        scored = await self._engine.score(ids, range(start, len(ids)))
        return sum(abs(a - b) for a, b in zip(piece.logprobs, scored, strict=True)) / len(scored)

    async def _reply(
        self, temperature: float, max_tokens: int = PROBE_TOKENS, stop_ids: tuple[int, ...] = ()
    ) -> Piece:
        sampling = Sampling(temperature=temperature)
        request = GenerateRequest(self._prompt_ids, max_tokens, sampling, stop_ids, "start-up", seed=1)
        return await joined(self._engine.generate(request))


async def prove_chat(engine: object) -> None:
    """Asks for two short replies, the second with a tool. Raises `EngineError`, naming the fix."""
    if not isinstance(engine, ChatEngine):
        raise EngineError("this engine has no chat mode: use `vllm` or `sglang`, or turn chat mode off")
    try:
        await _prove_chat(engine, ())
        await _prove_chat(engine, (CHAT_TOOL,))
    except ChatRefused as error:
        raise EngineError(f"the engine refuses a short chat: {error}; {CHAT_ADVICE}") from error


async def _prove_chat(engine: ChatEngine, tools: tuple[Tool, ...]) -> None:
    messages = (Message(role="user", content=CHAT_TEXT),)
    prompt = ChatPrompt(messages, tools, Sampling(), (), "start-up", max_tokens=PROBE_TOKENS, seed=1)
    async with aclosing(engine.chat(prompt)) as pieces:
        parts = [part async for part in pieces]
    if not parts or not (prompt_ids := parts[0].prompt_ids):
        raise EngineDefect(f"the engine did not report the ids of the prompt it rendered; {CHAT_ADVICE}")
    if [part.piece.finish_reason is not None for part in parts] != [False] * (len(parts) - 1) + [True]:
        raise EngineDefect(
            f"the finish reason must be on the last piece of a reply, and only there; {CHAT_ADVICE}"
        )
    piece = one_piece([part.piece for part in parts])
    check_logprobs("the engine", piece, CHAT_ADVICE)
    text = await engine.decode(prompt_ids + piece.ids)
    if CHAT_TEXT not in text:
        raise EngineDefect(f"the engine's ids do not spell the message it was sent: {text[:300]!r}; {CHAT_ADVICE}")
