"""The agent server of NeMo Gym."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from pydantic import ConfigDict, PrivateAttr

from polar.trainers.bridges.config import BridgeConfig
from polar.trainers.bridges.nemo_gym.answers import SeveralTraces, answer_run, failed_answer
from polar.trainers.bridges.nemo_gym.capture import RunCapture
from polar.trainers.bridges.packages import load

INSTALL = "'nemo-gym==0.4.0' (Python 3.13 or newer)"


def agent_class() -> Any:
    """The agent server. In `responses_api_agents/polar_agent/app.py` of a Gym project:

        PolarAgent = agent_class()
        if __name__ == "__main__":
            PolarAgent.run_webserver()

    Its config has `polar` with the fields of a `BridgeConfig`, and `several_traces`."""
    agents = load("nemo_gym.base_responses_api_agent", INSTALL)
    resources = load("nemo_gym.base_resources_server", INSTALL)

    class PolarRunRequest(resources.BaseRunRequest):
        model_config = ConfigDict(extra="allow")

    class PolarVerifyResponse(resources.BaseVerifyResponse):
        model_config = ConfigDict(extra="allow")

    class PolarAgentConfig(agents.BaseResponsesAPIAgentConfig):
        polar: BridgeConfig = BridgeConfig()
        several_traces: SeveralTraces = "main"

    class PolarAgent(agents.SimpleResponsesAPIAgent):
        config: PolarAgentConfig
        _capture: RunCapture | None = PrivateAttr(default=None)

        def setup_webserver(self) -> FastAPI:
            base: Any = super()
            app: FastAPI = base.setup_webserver()
            self._capture = _capture_of(self.server_client.global_config_dict, self.config)
            return app if self._capture is None else _closing(app, self._capture)

        async def run(self, body: Any, request: Any) -> Any:
            asked = body.model_dump(mode="json", exclude_unset=True)
            work = answer_run(self.config.polar, asked, self.config.several_traces, self._capture)
            answer = await unless_left(request, work) or failed_answer(asked, "caller_left")
            return PolarVerifyResponse.model_validate(answer)

        async def responses(self) -> Any:
            raise NotImplementedError("a session of Polar is a whole run: POST /run")

    # FastAPI reads the types of the route from these; it does not see local names.
    PolarAgent.run.__annotations__ = {"body": PolarRunRequest, "request": Request, "return": PolarVerifyResponse}
    return PolarAgent


async def unless_left(request: Request, work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any] | None:
    """The result of the work. None: the caller left before, as when a collection is stopped, and the work was
    cancelled, which cancels its session at the server. The web server itself does not end it."""
    working, leaving = asyncio.create_task(work), asyncio.create_task(_left(request))
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.wait([working, leaving])


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _capture_of(global_config: Any, config: Any) -> RunCapture | None:
    """None: the run captures no tokens, or not those of this agent."""
    block: Any = global_config.get("token_id_capture") or {}
    wanted = block.get("enabled") and (block.get("all_agents") or getattr(config, "token_id_capture", False))
    return RunCapture(global_config) if wanted else None


def _closing(app: FastAPI, capture: RunCapture) -> FastAPI:
    before = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(application: Any) -> AsyncGenerator[Any]:
        async with before(application) as state:
            try:
                yield state
            finally:
                await capture.close()

    app.router.lifespan_context = lifespan
    return app
