"""Gym's token capture (`nemo_gym.token_id_capture`): the tokens of a run outside of its answer.

Gym's model servers put each call into the sink that is configured there. Polar's calls do not pass them, so the
agent puts a run's chain into the same sink when its session has ended. Whoever reads that sink finds it; a
trainer that would rather ask the rollout server has `TokenSource`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from polar.credit.advantages import FinishedSession
from polar.credit.group import Group
from polar.trainers.bridges.config import BridgeConfig
from polar.trainers.bridges.nemo_gym.chain import ChainLink, chain_of, reply_items
from polar.trainers.bridges.packages import load
from polar.trainers.bridges.sessions import GroupClient, sessions_of
from polar.types import Call, SessionResult

INSTALL = "'nemo-gym @ git+https://github.com/NVIDIA-NeMo/Gym' (0.5.0 has no token capture yet)"
LOGGER = logging.getLogger("polar.trainers")


def explicit_id(body: Mapping[str, Any]) -> str:
    """The id that a row gives its run; a later attempt of it has another. Empty: the row has none."""
    given = body.get("_ng_rollout_id")
    return f"{given}{_attempt(body)}" if given else ""


def rollout_id_of(body: Mapping[str, Any]) -> str:
    """The id of a run in Gym's capture. Without one of its own it is the row's place in the collection, which
    comes again in the next collection. Empty: the row has neither."""
    task, rollout = body.get("_ng_task_index"), body.get("_ng_rollout_index")
    by_place = "" if task is None or rollout is None else f"{task}-{rollout}{_attempt(body)}"
    return explicit_id(body) or by_place


def _attempt(body: Mapping[str, Any]) -> str:
    attempt = int(body.get("_ng_attempt_index") or 0)
    return f"-a{attempt}" if attempt else ""


def entries_of(rollout_id: str, chain: Sequence[ChainLink], calls: Mapping[str, Call]) -> list[Any]:
    """The chain as Gym's `TokenEntry`s."""
    capture = load("nemo_gym.token_id_capture", INSTALL)
    return [
        capture.TokenEntry(
            rollout_id=rollout_id,
            model_call_id=link.call_id,
            model="polar",
            prompt_token_ids=link.prompt_ids,
            generation_token_ids=link.generation_ids,
            generation_log_probs=link.logprobs,
            output_items=(items := reply_items(calls[link.call_id])),
            token_item_index=len(items) - 1,
            created_at=calls[link.call_id].times.sampled,
        )
        for link in chain
    ]


class RunCapture:
    """Puts the chains of runs into Gym's sink: `token_id_capture.sink`, else the file store in
    `token_id_capture.dir`."""

    def __init__(self, global_config: Mapping[str, Any]) -> None:
        config = load("nemo_gym.token_id_capture.config", INSTALL)
        store = load("nemo_gym.token_id_capture.store", INSTALL)
        settings = config.token_id_capture_config(global_config)
        self._sink: Any = settings.build_sink() or store.make_token_store(global_config)

    async def put(self, body: Mapping[str, Any], chain: Sequence[ChainLink], calls: Mapping[str, Call]) -> None:
        """The run has its answer whatever becomes of this: a chain with a hole is marked, so that no reader takes
        it."""
        rollout_id = rollout_id_of(body)
        if not rollout_id or self._sink is None:
            return
        try:
            for entry in entries_of(rollout_id, chain, calls):
                await self._sink.put(entry)
        except Exception:  # a sink is a plug-in of Gym and may fail in any way
            LOGGER.exception("the tokens of run %s could not be put into Gym's sink", rollout_id)
            await self.lose(body)

    async def lose(self, body: Mapping[str, Any]) -> None:
        """Marks the run: a reader does not train on it."""
        rollout_id = rollout_id_of(body)
        if not rollout_id or self._sink is None:
            return
        try:
            await self._sink.mark_incomplete(rollout_id)
        except Exception:  # as above
            LOGGER.exception("run %s could not be marked as incomplete in Gym's sink", rollout_id)

    async def close(self) -> None:
        if self._sink is not None:
            await self._sink.close()


class TokenSource:
    """Captured tokens by Gym's rollout id, as `TokenSource` of `nemo_gym.token_id_capture`: for a reader that asks
    the rollout server. It finds runs whose row has an id of its own (`_ng_rollout_id`)."""

    def __init__(
        self,
        config: BridgeConfig,
        connect: Callable[[], AbstractAsyncContextManager[GroupClient]] | None = None,
    ) -> None:
        self._config = config
        self._connect = connect or config.client

    async def freeze(self, rollout_id: str) -> Any:
        """A session at its end never changes, so every snapshot is frozen. `incomplete`: do not train on it."""
        capture = load("nemo_gym.token_id_capture", INSTALL)
        async with self._connect() as client:
            task_id = (await client.group(rollout_id)).task_ids[-1]
            upload = await client.upload(f"{task_id}-0")
        result = SessionResult.model_validate_json(upload.result)
        group = Group(rollout_id, (FinishedSession(result, upload.trajectory),))
        (session,) = sessions_of(group, self._config)
        calls = {call.call_id: call for call in upload.calls}
        entries = tuple(entries_of(rollout_id, chain_of(session), calls))
        return capture.TokenCaptureSnapshot(
            rollout_id=rollout_id,
            entries=entries,
            incomplete=not entries,
            snapshot_id=result.session_id,
            version=result.attempt,
        )

    async def drop(self, rollout_id: str, *, snapshot_id: str, version: int) -> bool:
        """Polar keeps its sessions."""
        return True

    async def close(self) -> None: ...
