"""A real rollout server and a real node for trainers' bridges. The engine follows a script, unless one is given.

They are in a thread of their own, because trainers call bridges where no event loop runs."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from polar.config import Config, ServerConfig
from polar.engines.base import Engine
from polar.node import Uplink, open_node, serve_server
from polar.server.serve import RolloutServer
from polar.store.paths import RunPaths
from polar.testing import ScriptedEngine
from polar.tokens.renderers.smollm2 import SmolLM2Renderer
from polar.types import TokenIds

AGENT = f"{sys.executable} {Path(__file__).parents[1] / 'session' / 'tiny_agent.py'}"
TASK: dict[str, Any] = {
    "instruction": "Write a word.",
    "harness": {"name": "shell", "options": {"command": AGENT}},
    "evaluator": {
        "name": "test_on_output",
        "options": {"command": "cat answer.txt", "expect_pattern": "^hello$"},
    },
}
MODULES = ["toy_world"]
SERVER: dict[str, Any] = {"heartbeat_s": 0.2, "lease_beats": 300, "allowed_modules": MODULES}
"""A weight update waits for the nodes' next heartbeat."""


class TrainingEngine(ScriptedEngine):
    """Every other session writes the right word. A session has two calls."""

    def __init__(self, vocabulary: Any) -> None:
        super().__init__(vocabulary, self._next)
        self._begun = 0

    def _next(self, _: int, prompt_ids: TokenIds) -> str:
        if "answer.txt" in self.encoder.decode(prompt_ids):
            return "Done."
        self._begun += 1
        word = "hello" if self._begun % 2 else "nothing"
        return f'<tool_call>{{"name": "bash", "arguments": {{"command": "echo {word} > answer.txt"}}}}</tool_call>'


@contextmanager
def training_service(
    renderer: SmolLM2Renderer, folder: Path, engine: Engine | None = None, task: dict[str, Any] = TASK
) -> Iterator[dict[str, Any]]:
    """The fields of a `BridgeConfig` for it."""
    ready: Future[str] = Future()
    stop: Future[asyncio.Event] = Future()

    async def serve() -> None:
        config = ServerConfig(port=0, database=f"sqlite:///{folder}/server.db", **SERVER)
        used = engine or TrainingEngine(renderer._vocabulary)  # pyright: ignore[reportPrivateUsage]
        node_config = Config.model_validate({"node": {"allowed_modules": MODULES}})
        paths = RunPaths.create(folder / "runs")
        async with (
            RolloutServer(config, control_token="control", node_token="node") as server,
            open_node(node_config, paths, engine=used, renderer=renderer) as node,
            Uplink(server.base_url, "node") as uplink,
        ):
            stopping = asyncio.Event()
            stop.set_result(stopping)
            serving = asyncio.create_task(serve_server(node, uplink, stopping))
            ready.set_result(server.base_url)
            await serving

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        yield {"url": ready.result(), "token": "control", "task": task}
    finally:
        loop.call_soon_threadsafe(stop.result().set)
        thread.join()
        loop.close()
