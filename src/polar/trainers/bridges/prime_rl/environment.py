"""A verifiers environment whose one agent is a session of Polar."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from pydantic import ValidationError

from polar.errors import PolarError
from polar.trainers.bridges.config import BridgeConfig
from polar.trainers.bridges.packages import load
from polar.trainers.bridges.prime_rl.record import record_of
from polar.trainers.bridges.sessions import GroupClient, run_session

INSTALL = "'verifiers==0.4.0'"


def environment(
    config: BridgeConfig, connect: Callable[[], AbstractAsyncContextManager[GroupClient]] | None = None
) -> Any:
    """A verifiers `Env` class whose episodes are sessions of Polar. In the package of an environment:

        MyEnv = environment(BridgeConfig(task={"harness": "pi", "evaluator": ...}))

    The task's prompt is the instruction; a field `polar` of the task's data has further fields of a Polar task.
    The model context that prime-rl gives is not used: Polar's nodes know their engine."""
    single = load("verifiers.v1.envs.single_agent.env", INSTALL).SingleAgentEnv

    class PolarEnv(single):
        @asynccontextmanager
        async def serving(self) -> AsyncGenerator[None]:
            """Without verifiers' interception of model calls: no call of a session passes it, and for its default
            runtime it opens a tunnel, which needs an account."""
            try:
                await self.start()
                yield
            finally:
                await self.stop()

        async def run(self, task: Any, agents: Any) -> None:
            seat = agents.agent

            async def attempt(
                given: Any, _runtime: Any, _tools: Any, on_trace: Callable[[Any], None] | None, _artifacts: bool
            ) -> Any:
                trace = minted(seat.config, given)
                if on_trace is not None:
                    on_trace(trace)
                await run_rollout(trace, given, config, connect or config.client)
                return trace

            # In place of one attempt of the agent, and of no more: its retries, the deadline and hooks of the
            # episode, and what observes the trace are verifiers' own.
            seat._run_once = attempt
            await seat.run(task)

    return PolarEnv


async def run_rollout(
    trace: Any, task: Any, config: BridgeConfig, connect: Callable[[], AbstractAsyncContextManager[GroupClient]]
) -> None:
    """One session, written into its trace. As in a rollout of verifiers, a failure is data on the trace and does
    not end the episodes beside it."""
    trace.timing.agent.start = time.time()
    try:
        async with connect() as client:
            session = await run_session(
                client, config, config.task_for(prompt_of(task.data), task.data.model_dump())
            )
            counts = session.result.in_baseline
            calls = (await client.upload(session.result.session_id)).calls if counts else ()
        _fill(trace, record_of(session, calls, config.max_tokens))
    except (PolarError, ValidationError) as error:
        trace.record_error(error)
    trace.is_completed = True
    trace.timing.agent.end = time.time()
    trace.split_agent_time()
    trace.notify()


def minted(agent_config: Any, task: Any) -> Any:
    """The trace before anything has happened. It keeps the task's own data, with the fields of its class."""
    traces = load("verifiers.v1.trace", INSTALL)
    described = traces.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
    return traces.Trace(task=described, agent=traces.AgentInfo(config=agent_config))


def prompt_of(data: Any) -> Any:
    """The prompt of a task's data, after its system prompt if it has one."""
    fields = data.model_dump(include={"prompt", "system_prompt"})
    prompt, system = fields["prompt"], fields["system_prompt"]
    if not system or prompt is None:
        return prompt
    asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return [{"role": "system", "content": system}, *asked]


def _fill(trace: Any, record: Mapping[str, Any]) -> None:
    fields: Any = load("verifiers.v1.trace", INSTALL).Trace
    read = fields.model_validate({"task": trace.task, "agent": trace.agent, **record})
    for name in record:
        setattr(trace, name, getattr(read, name))
