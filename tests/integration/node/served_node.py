"""A real rollout server and real nodes in the test's own process; only the engine follows a script."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polar.client import PolarClient
from polar.config import Config, ServerConfig
from polar.engines.base import GenerateRequest, Piece
from polar.errors import EngineError
from polar.node import Node, Uplink, open_node, serve_server
from polar.node.observers import SessionObserver
from polar.node.probes import PROBE
from polar.node.uplink import ServerAway
from polar.server.serve import RolloutServer
from polar.store.paths import RunPaths
from polar.testing import ScriptedEngine, ScriptedReply
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.types import ResultEntry, SessionResult, TaskRequest, TokenIds
from waiting import hang_limit

AGENT = f"{sys.executable} {Path(__file__).parents[1] / 'session' / 'tiny_agent.py'}"
WRITE = '<tool_call>{"name": "bash", "arguments": {"command": "echo hello > answer.txt"}}</tool_call>'
CHECK = {"name": "test_on_output", "options": {"command": "cat answer.txt", "expect_pattern": "^hello$"}}


class FragileEngine(ScriptedEngine):
    """An engine that a test can take away and give back."""

    outage = ""
    """What it says instead of a reply."""
    outage_for_sessions = ""
    """The same, but a node's probe is answered."""

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Piece]:
        outage = self.outage or ("" if request.session_id == PROBE else self.outage_for_sessions)
        if outage:
            raise EngineError(outage)
        async for piece in super().generate(request):
            yield piece


class FragileUplink(Uplink):
    """A line that a test can cut, also under a request that waits for its answer."""

    def __init__(self, base_url: str, node_token: str) -> None:
        super().__init__(base_url, node_token)
        self._cut = asyncio.Event()

    def cut(self) -> None:
        self._cut.set()

    def mend(self) -> None:
        self._cut.clear()

    async def _ask(self, *arguments: Any) -> bytes:
        asking = asyncio.ensure_future(super()._ask(*arguments))
        cut = asyncio.ensure_future(self._cut.wait())
        try:
            await asyncio.wait([asking, cut], return_when=asyncio.FIRST_COMPLETED)
            if cut.done():  # not the event: a line that was mended since has lost this request all the same
                raise ServerAway("the line is cut")
            return asking.result()
        finally:
            asking.cancel()
            cut.cancel()
            await asyncio.gather(asking, cut, return_exceptions=True)


@dataclass
class ServedNode:
    node: Node
    uplink: FragileUplink
    stop: asyncio.Event
    hurry: asyncio.Event
    serving: asyncio.Task[None]

    @property
    def engine(self) -> FragileEngine:
        assert isinstance(self.node.engine, FragileEngine)
        return self.node.engine

    async def leave(self) -> None:
        self.stop.set()
        async with hang_limit():
            await self.serving


class Service:
    def __init__(
        self,
        renderer: SmolLM2Renderer,
        folder: Path,
        lease_beats: float = 15,
        allowed_modules: tuple[str, ...] = (),
    ) -> None:
        self._renderer = renderer
        self.folder = folder
        self.first_reply = ScriptedReply(text=WRITE)
        self.last_reply = ScriptedReply(text="Done.")
        self.node_modules: tuple[str, ...] = ()
        """That nodes which are added from now on may import."""
        self.node_settings: dict[str, Any] = {}
        """Of `[node]`, for nodes which are added from now on."""
        self.observers: Sequence[SessionObserver] = ()
        """Of nodes which are added from now on."""
        self.server = RolloutServer(
            ServerConfig(
                port=0,
                database=f"sqlite:///{folder}/server.db",
                heartbeat_s=0.1,
                lease_beats=lease_beats,
                allowed_modules=allowed_modules,
            ),
            control_token="control",
            node_token="node",
        )
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Service:
        await self._stack.enter_async_context(self.server)
        self.client = await self._stack.enter_async_context(PolarClient(self.server.base_url, "control"))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def add_node(self, **pools: int) -> ServedNode:
        return await self._stack.enter_async_context(self._node(pools))

    @asynccontextmanager
    async def _node(self, pools: dict[str, int]) -> AsyncGenerator[ServedNode]:
        vocabulary = self._renderer._vocabulary  # pyright: ignore[reportPrivateUsage]

        def script(_: int, prompt_ids: TokenIds) -> ScriptedReply:
            """Chosen by the content of the prompt, not by the number of requests: a session may run again here."""
            return self.last_reply if "echo hello" in vocabulary.decode(prompt_ids) else self.first_reply

        engine = FragileEngine(vocabulary, script, strict=False)
        node = {
            "probe_pause_s": 0.05,
            "allowed_modules": self.node_modules,
            "runtimes": ["local"],
            **self.node_settings,
        }
        config = Config.model_validate({"pools": pools, "node": node})
        async with (
            open_node(
                config, RunPaths.create(self.folder / "runs"), engine=engine, renderer=self._renderer
            ) as node,
            FragileUplink(self.server.base_url, "node") as uplink,
        ):
            stop, hurry = asyncio.Event(), asyncio.Event()
            serving = asyncio.create_task(serve_server(node, uplink, stop, hurry, self.observers))
            served = ServedNode(node, uplink, stop, hurry, serving)
            yield served
            await served.leave()

    def held_up(self, name: str) -> tuple[str, Path, Path]:
        """A harness command that works, says so, and waits to be let go; the files that say both."""
        here, go = self.folder / f"{name}.here", self.folder / f"{name}.go"
        return f"{AGENT}; touch {here}; while [ ! -e {go} ]; do sleep 0.05; done", here, go


def agent_task(command: str = AGENT, **fields: Any) -> TaskRequest:
    harness = {"name": "shell", "options": {"command": command}}
    return TaskRequest.model_validate(
        {"instruction": "Write hello.", "harness": harness, "evaluator": CHECK, **fields}
    )


async def results_of(service: Service, *task_ids: str) -> dict[str, SessionResult]:
    entries: list[ResultEntry] = []
    async with hang_limit():
        async for entry in service.client.results(task_ids=task_ids):
            entries.append(entry)
    found = {entry.result.session_id: entry.result for entry in entries}
    assert len(found) == len(entries), "one result each"
    return found
