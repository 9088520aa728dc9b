"""The `pool` engine: several replicas of one engine, used as one.

A session's calls go to one replica, for its prefix cache. A call that has produced nothing yet moves on to another
replica if its own fails; after the first piece it fails with it, because the tokens of a reply must come from one
replica. A pool has the optional ports that all its replicas have.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Self, TypeVar

import msgspec
from pydantic import BaseModel

from polar import registry
from polar.engines.base import (
    ChatEngine,
    ChatPiece,
    ChatPrompt,
    EngineInfo,
    GenerateRequest,
    Piece,
    Scorer,
    TextEngine,
    TextPiece,
)
from polar.engines.pool.admission import Admission
from polar.engines.pool.choice import ReplicaSet
from polar.engines.pool.options import PoolOptions
from polar.engines.pool.replica import Member, Replica, fault_of
from polar.engines.pool.same_weights import version_in
from polar.engines.pool.watch import ReplicaWatch
from polar.engines.remote.proof import prove_chat
from polar.errors import EngineError
from polar.types import Logprobs, TokenIds

LOGGER = logging.getLogger("polar.engines.pool")

T = TypeVar("T")


class PoolEngine:
    """A pool of engines that sample tokens and do nothing else. Making one gives the subclass with the ports that
    its replicas have."""

    Options: type[BaseModel] = PoolOptions

    def __new__(cls, options: PoolOptions) -> Self:
        engines = [registry.make("engine", spec) for spec in options.specs()]
        kinds: list[tuple[type[PoolEngine], Any]] = [
            (TextPool, TextEngine),
            (ChatPool, ChatEngine),
            (ScoringPool, Scorer),
        ]
        for kind, port in kinds:
            if issubclass(kind, cls) and all(isinstance(engine, port) for engine in engines):
                return super().__new__(kind)  # pyright: ignore[reportReturnType]
        return super().__new__(cls)

    def __init__(self, options: PoolOptions) -> None:
        self._options = options
        made = [
            Replica(name, partial(registry.make, "engine", spec))
            for name, spec in zip(options.named(), options.specs(), strict=True)
        ]
        self._set = ReplicaSet(made, options)
        self._admission = Admission(self._set, options)
        self._watches: list[ReplicaWatch] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._comparing: asyncio.Task[None] | None = None

    async def start(self) -> EngineInfo:
        if self._tasks:
            raise EngineError("the pool is already started; stop it first")
        self._watches = [
            ReplicaWatch(replica, self._set, self._admission, self._options) for replica in self._set.replicas
        ]
        self._tasks = [asyncio.create_task(watch.run()) for watch in self._watches]
        self._set.running = True
        try:
            await self._gather()
            return self._info()
        except BaseException:
            await self.stop()
            raise

    async def _gather(self) -> None:
        """Waits for the replicas. Raises for one that would not come right by waiting, and if none answers."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.start_wait_s
        while len(self._set.serving()) < len(self._set.replicas):
            for replica in self._set.replicas:
                if replica.refused is not None:
                    raise replica.refused
            late = loop.time() >= deadline
            if late and (self._set.serving() or not any(replica.starting for replica in self._set.replicas)):
                break
            await self._set.changed(None if late else deadline)  # a self-test under way has a limit of its own
        missing = [replica for replica in self._set.replicas if not replica.serving]
        if len(missing) == len(self._set.replicas):
            raise self._set.none_answers()
        for replica in missing:
            LOGGER.warning("the pool starts without the replica %s: %s", replica.name, replica.why_out)

    def _info(self) -> EngineInfo:
        common = self._admission.info
        members = [replica.member.info for replica in self._set.serving() if replica.member is not None]
        assert common is not None
        return msgspec.structs.replace(
            common,
            parallel=sum(info.parallel for info in members),
            constrains=all(info.constrains for info in members),
        )

    async def stop(self) -> None:
        tasks, self._tasks = self._tasks, []
        self._set.running = False
        if self._comparing is not None:
            tasks.append(self._comparing)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for replica in self._set.replicas:
            replica.why_out = "the pool is stopped"
            member = replica.member
            await replica.drop()
            if member is not None:
                await member.engine.stop()  # whatever is under way
        self._set.wake_all()

    def replicas(self) -> dict[str, str]:
        return {replica.name: replica.why_out for replica in self._set.replicas}

    def counters(self) -> dict[str, Any]:
        """The sums over all replicas, and each replica's own under `replicas`."""
        total, each = Counter[str](), dict[str, dict[str, Any]]()
        for replica in self._set.replicas:
            own = replica.counters()
            total.update(own)
            about = {"serving": replica.serving, "under_way": replica.under_way, "losses": replica.losses}
            each[replica.name] = {**about, "moved_calls": replica.moved, **own}
        moved = sum(replica.moved for replica in self._set.replicas)
        return {**total, "moved_calls": moved, "replicas": each}

    async def revive(self) -> None:
        """Tries all lost replicas now instead of after their pause. Raises `EngineError` if none comes."""
        for watch, replica in zip(self._watches, self._set.replicas, strict=False):
            if not replica.serving:
                watch.try_now()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.patience_s
        while not self._set.serving() and loop.time() < deadline:
            await self._set.changed(deadline)
        if not self._set.serving():
            raise self._set.none_answers()

    def policy_changed(self, version: str) -> None:
        """No replica gets a call before its weights are known to be the current ones."""
        self._admission.policy = version
        if not self._tasks:  # the start compares them
            return
        self._set.checking = True
        if self._comparing is None:
            self._comparing = asyncio.create_task(self._compare())

    async def _compare(self) -> None:
        compared = None
        try:
            while compared != self._admission.policy:  # it may change meanwhile
                compared = self._admission.policy
                await self._admission.compare_all()
        finally:
            self._comparing, self._set.checking = None, False
            self._set.wake_all()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Piece]:
        calls = self._streamed(request.session_id, lambda member: _of_known_weights(member, request))
        async with aclosing(calls) as pieces:
            async for piece in pieces:
                yield piece

    async def _streamed(self, session_id: str, begin: Callable[[Member], AsyncGenerator[T]]) -> AsyncGenerator[T]:
        """One reply, of one replica."""
        attempts = _Attempts(self._options.failovers)
        while True:
            replica, member = await attempts.take(self._set, session_id)
            begun = False
            try:
                async with aclosing(begin(member)) as pieces:
                    piece = await member.first(pieces)
                    while piece is not None:
                        begun = True
                        yield piece
                        piece = await anext(pieces, None)
                replica.succeeded()
                return
            except EngineError as error:
                replica.failed(member, error)
                attempts.failed(member, error, begun=begun)
                replica.moved += 1
            finally:
                await self._set.leave(member)

    async def _asked(self, session_id: str, ask: Callable[[Member], Awaitable[T]]) -> T:
        """One answer that is not a reply, of any replica."""

        async def one(member: Member) -> AsyncGenerator[T]:
            yield await ask(member)

        async with aclosing(self._streamed(session_id, one)) as answers:
            answer = await anext(answers)
            await anext(answers, None)  # to its end, which counts as a success of the replica
            return answer


async def _of_known_weights(member: Member, request: GenerateRequest) -> AsyncGenerator[Piece]:
    """A reply. Fails at its end if the server no longer names the version of its weights: then it was restarted so
    fast that no check saw it, and the reply would be recorded under a version that did not sample it."""
    names_version, sampled = member.names_version, False
    async with aclosing(member.engine.generate(request)) as pieces:
        async for piece in pieces:
            sampled = sampled or bool(piece.ids)
            ended = piece.finish_reason not in (None, "aborted")
            if names_version and sampled and ended and not version_in(piece):
                raise EngineError(
                    "the server no longer reports a weight version: it was restarted, and its weights are not the "
                    "current ones"
                )
            yield piece


class _Attempts:
    """The replicas that one call was sent to."""

    def __init__(self, failovers: int) -> None:
        self._left = failovers
        self._tried: list[Member] = []
        self._error: EngineError | None = None

    async def take(self, replicas: ReplicaSet, session_id: str) -> tuple[Replica, Member]:
        try:
            return await replicas.take(session_id, self._tried)
        except EngineError as error:
            if self._error is None or fault_of(error) == "busy":
                raise
            raise self._error from error

    def failed(self, member: Member, error: EngineError, *, begun: bool) -> None:
        """Raises the error unless the call may move on."""
        if begun or self._left == 0 or fault_of(error) == "request":
            raise error
        self._left -= 1
        if fault_of(error) != "busy":  # it is left alone for a while anyway
            self._tried.append(member)
        self._error = error


class ScoringPool(PoolEngine):
    async def score(self, ids: TokenIds, positions: Sequence[int]) -> Logprobs:
        return await self._asked(str(hash(ids.tobytes())), lambda member: member.engine.score(ids, positions))


class ChatPool(ScoringPool):
    def __init__(self, options: PoolOptions) -> None:
        super().__init__(options)
        first: ChatEngine = registry.make("engine", options.specs()[0])
        self.counts_by_sampling = first.counts_by_sampling

    async def chat(self, prompt: ChatPrompt) -> AsyncGenerator[ChatPiece]:
        async with aclosing(
            self._streamed(prompt.session_id, lambda member: self._chat(member, prompt))
        ) as pieces:
            async for piece in pieces:
                yield piece

    async def _chat(self, member: Member, prompt: ChatPrompt) -> AsyncGenerator[ChatPiece]:
        """A replica's chat mode is proven before its first reply: the node's own proof asks only one of them."""
        async with member.proving:
            if not member.chat_proven:
                await prove_chat(member.engine)
                member.chat_proven = True
        async with aclosing(member.engine.chat(prompt)) as pieces:
            async for piece in pieces:
                yield piece

    async def count(self, prompt: ChatPrompt) -> int:
        return await self._asked(prompt.session_id, lambda member: member.engine.count(prompt))

    async def decode(self, ids: TokenIds) -> str:
        return await self._asked("decode", lambda member: member.engine.decode(ids))


class TextPool(PoolEngine):
    async def text(self, prompt: ChatPrompt) -> AsyncGenerator[TextPiece]:
        calls = self._streamed(prompt.session_id, lambda member: member.engine.text(prompt))
        async with aclosing(calls) as pieces:
            async for piece in pieces:
                yield piece
