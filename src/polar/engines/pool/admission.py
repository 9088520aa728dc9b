"""How a replica comes into service: self-test, the same model as the others, the same weights."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping

from polar.engines.base import EngineInfo, TextEngine
from polar.engines.pool.choice import ReplicaSet
from polar.engines.pool.options import PoolOptions
from polar.engines.pool.replica import Member, Replica
from polar.engines.pool.same_weights import WeightState, drift, stale, weight_state
from polar.errors import ConfigError, EngineBusy, EngineDefect, EngineError

LOGGER = logging.getLogger("polar.engines.pool")
COMPARED = ("model", "context_tokens", "logprob_mode")
WEIGHTS_S = 600.0
"""How long a token may take that tells the weight version: a server that is held for an update gives none."""


class MixedPool(EngineError):
    """A replica has another model or other weights than the rest."""


class Admission:
    def __init__(self, replicas: ReplicaSet, options: PoolOptions) -> None:
        self.info: EngineInfo | None = None
        """Of the pool: what all its replicas have in common."""
        self.policy = ""
        """The policy version under which the node records calls."""
        self._set = replicas
        self._options = options
        self._reference = ""
        """The replica that the others are compared with."""
        self._last: WeightState | None = None
        """Of a replica with the current weights, for when none is in service to compare with."""
        self._one_by_one = asyncio.Lock()

    async def start(self, replica: Replica) -> None:
        """Starts its engine, with the self-test. Raises `EngineError`, or `MixedPool` for another model."""
        engine = replica.make()
        info = await engine.start()
        try:
            self._check_model(replica, info)
        except BaseException:
            await engine.stop()
            raise
        replica.member = Member(engine, info)

    def _check_model(self, replica: Replica, info: EngineInfo) -> None:
        ours = self.info
        if ours is None:
            self.info, self._reference = _without_address(info, replica.name), replica.name
            return
        theirs = _without_address(info, replica.name)
        if other := [name for name in COMPARED if getattr(theirs, name) != getattr(ours, name)]:
            raise MixedPool(
                f"all replicas of a pool must serve the same model: {self._reference} has {_shown(ours, other)}, "
                f"{replica.name} has {_shown(theirs, other)}; correct one of them, or take it out of the pool"
            )

    async def admit(self, replica: Replica) -> None:
        """Puts a started replica into service, or says in `why_out` why it is not. Raises `EngineError`."""
        async with self._one_by_one:
            states = await self._states([replica, *self._set.serving()])
            if replica not in states:
                raise EngineError(replica.why_out)
            problems = stale(states, self.policy)
            if replica not in problems and not self._compared(replica, states):
                problems[replica] = NOTHING_TO_COMPARE
            for each in states:
                each.why_out = problems.get(each, "")
            if not replica.why_out:
                self._last = self._last or states[replica]
        if not replica.why_out:
            LOGGER.info("replica %s is in service", replica.name)
        self._set.wake_all()

    def _compared(self, replica: Replica, states: Mapping[Replica, WeightState]) -> bool:
        """Whether the weights are known to be the pool's, by scores if no version is named. Raises `MixedPool` for
        others."""
        own = states[replica]
        if own.version or _gives_text(replica):
            return True
        others = [(each.name, state) for each, state in states.items() if each is not replica and state.scores]
        if self._last is not None and self._last.scores:
            others.append(("the pool before", self._last))
        if not others or not own.scores:
            return not self.policy
        name, state = others[0]
        if (apart := drift(own, state)) > self._options.max_drift:
            raise MixedPool(
                f"{replica.name} has other weights than {name}: their logprobs differ by {apart:.3g} on average, "
                f"and `max_drift` is {self._options.max_drift:g}; push the current weights to it, or start all "
                "replicas with the same ones"
            )
        return True

    async def compare_all(self) -> None:
        """After an update: those with another version than the current one leave, those that have it return. Where
        none reports a version all stay: the trainer has proven each of them, or the update has failed."""
        async with self._one_by_one:
            # One that starts is compared by its admission, which comes next.
            states = await self._states(replica for replica in self._set.replicas if not replica.starting)
            problems = stale(states, self.policy)
            for replica in states:
                replica.why_out = problems.get(replica, "")
                if replica.why_out:
                    LOGGER.warning("replica %s gets no calls: %s", replica.name, replica.why_out)
            current = [state for replica, state in states.items() if not replica.why_out]
            self._last = current[0] if current else None

    async def _states(self, replicas: Iterable[Replica]) -> dict[Replica, WeightState]:
        """Of those that answer; the others are lost. Without those that a call or a check has found lost
        meanwhile."""
        members = {replica: replica.member for replica in replicas if replica.member is not None}
        found = await asyncio.gather(*(_state(member) for member in members.values()))
        states: dict[Replica, WeightState] = {}
        for (replica, member), state in zip(members.items(), found, strict=True):
            if member is not replica.member or replica.suspected.is_set():
                continue
            if isinstance(state, EngineError):
                replica.take_out(str(state))
            else:
                member.names_version = bool(state.version)
                states[replica] = state
        return states


NOTHING_TO_COMPARE = (
    "it was lost after a weight update and reports no weight version, and no other replica is in service to "
    "compare its weights with: push the weights again"
)


async def _state(member: Member) -> WeightState | EngineError:
    if isinstance(member.engine, TextEngine):
        return WeightState("")
    try:
        async with asyncio.timeout(WEIGHTS_S):
            while True:
                try:
                    return await weight_state(member.engine)
                except EngineBusy as error:
                    await asyncio.sleep(error.retry_after_s)
    except EngineError as error:
        return error
    except TimeoutError:
        return EngineError(f"it has sampled no token for {WEIGHTS_S:.0f} s")
    except Exception as error:  # an engine is a plug-in: it may raise anything, and the others are compared
        return EngineError(f"{type(error).__name__}: {error}")


def waiting_helps(error: Exception) -> bool:
    """Whether a replica that failed to start may do better later, without a change by a person."""
    return not isinstance(error, ConfigError | EngineDefect | MixedPool)


def _gives_text(replica: Replica) -> bool:
    return replica.member is not None and isinstance(replica.member.engine, TextEngine)


def _without_address(info: EngineInfo, name: str) -> EngineInfo:
    """An endpoint has its own address in the model's name."""
    return EngineInfo(
        name=info.name,
        model=info.model.replace(f" at {name}", ""),
        context_tokens=info.context_tokens,
        logprob_mode=info.logprob_mode,
        parallel=info.parallel,
        version=info.version,
        constrains=info.constrains,
    )


def _shown(info: EngineInfo, fields: list[str]) -> str:
    return ", ".join(f"{field} {getattr(info, field)}" for field in fields)
