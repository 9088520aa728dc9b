"""The HTTP routes of the sampler: the part of vLLM's that Polar's `vllm` engine and a trainer use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from polar.engines.torch.batch import Batch, BatchSequence, Delivery, PauseMode, SampledToken
from polar.engines.torch.model import SamplerModel
from polar.engines.torch.sampling import SamplingParameters
from polar.engines.torch.weights import WeightsRefused

Tokens = list[SampledToken]
T = TypeVar("T")


class GenerateBody(msgspec.Struct, frozen=True):
    token_ids: list[int]
    sampling_params: SamplingParameters
    stream: bool = False


class RpcArguments(msgspec.Struct, frozen=True):
    weights_path: str = ""


class RpcBody(msgspec.Struct, frozen=True):
    method: str
    kwargs: RpcArguments = RpcArguments()


class VersionBody(msgspec.Struct, frozen=True):
    new_version: str


class BadRequest(Exception):
    """A request that the sampler cannot serve; its text goes to the client, with status 400."""


class Streams:
    """Carries tokens from the batch's thread to the requests that wait for them."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queues: dict[BatchSequence, asyncio.Queue[SampledToken]] = {}

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Called by the batch's thread: one wake-up for all tokens of a step."""
        with suppress(RuntimeError):  # the loop is closed: the server has stopped
            self._loop.call_soon_threadsafe(self._put, deliveries)

    def _put(self, deliveries: list[Delivery]) -> None:
        for sequence, token in deliveries:
            if queue := self._queues.get(sequence):
                queue.put_nowait(token)

    async def of(self, sequence: BatchSequence, batch: Batch) -> AsyncGenerator[Tokens]:
        """Submits a sequence, and yields its tokens as they come. Leaving early aborts it."""
        queue = self._queues[sequence] = asyncio.Queue[SampledToken]()
        batch.submit(sequence)
        ended = False
        try:
            while not ended:
                tokens = [await queue.get()]
                while not queue.empty():
                    tokens.append(queue.get_nowait())
                ended = tokens[-1].ending is not None
                yield tokens
        finally:
            del self._queues[sequence]
            if not ended:
                batch.abort(sequence)


class SamplerRoutes:
    def __init__(self, model: SamplerModel, batch: Batch, streams: Streams, name: str) -> None:
        self._model = model
        self._batch = batch
        self._streams = streams
        self._name = name

    def app(self, api_key: str = "") -> Starlette:
        routes: dict[str, tuple[str, Callable[[Request], Awaitable[Response]]]] = {
            "/health": ("GET", self._health),
            "/version": ("GET", self._version),
            "/server_info": ("GET", self._server_info),
            "/v1/models": ("GET", self._models),
            "/inference/v1/generate": ("POST", self._generate),
            "/pause": ("POST", self._pause),
            "/resume": ("POST", self._resume),
            "/is_paused": ("GET", self._is_paused),
            "/collective_rpc": ("POST", self._collective_rpc),
            "/reset_prefix_cache": ("POST", self._reset_prefix_cache),
            "/update_weight_version": ("POST", self._update_weight_version),
            "/weight_info": ("GET", self._weight_info),
        }
        return Starlette(
            routes=[
                Route(path, _guarded(handler, api_key), methods=[verb]) for path, (verb, handler) in routes.items()
            ]
        )

    async def _health(self, request: Request) -> Response:
        return Response()

    async def _version(self, request: Request) -> Response:
        return JSONResponse({"version": f"torch {version('torch')}, transformers {version('transformers')}"})

    async def _server_info(self, request: Request) -> Response:
        model = self._model
        dtype = str(model.model.dtype).removeprefix("torch.")
        about = {"device": str(model.device), "dtype": dtype, "parallel": model.parallel}
        return JSONResponse({**about, "weight_version": self._batch.version, **self._batch.counts()})

    async def _models(self, request: Request) -> Response:
        root = self._model.config.name_or_path
        card = {"id": self._name, "object": "model", "root": root, "parent": None}
        return JSONResponse({"object": "list", "data": [{**card, "max_model_len": self._model.context_tokens}]})

    async def _generate(self, request: Request) -> Response:
        body = await _read(request, GenerateBody)
        self._check(body)
        if body.sampling_params.prompt_logprobs is not None:
            return await self._scored(body.token_ids)
        sequence = BatchSequence(body.token_ids, body.sampling_params)
        if body.stream:
            return StreamingResponse(self._events(sequence), media_type="text/event-stream")
        tokens = [token async for part in self._streams.of(sequence, self._batch) for token in part]
        return JSONResponse({"choices": [_choice(tokens, sequence)], "usage": _usage(sequence)})

    def _check(self, body: GenerateBody) -> None:
        ids, size = body.token_ids, self._model.config.vocab_size
        if problem := body.sampling_params.problem():
            raise BadRequest(problem)
        if not ids or min(ids) < 0 or max(ids) >= size:
            raise BadRequest(f"`token_ids` must be at least one id between 0 and {size - 1}")
        limit = self._model.context_tokens
        if len(ids) > limit or (len(ids) == limit and body.sampling_params.prompt_logprobs is None):
            raise BadRequest(f"the prompt has {len(ids)} tokens, and the maximum context length is {limit}")

    async def _scored(self, ids: Sequence[int]) -> Response:
        values = await asyncio.wrap_future(self._batch.score(ids))
        scores = [{str(token_id): {"logprob": value}} for token_id, value in zip(ids[1:], values, strict=True)]
        choice: dict[str, Any] = {"index": 0, "token_ids": [], "finish_reason": "length"}
        return JSONResponse({"choices": [choice], "prompt_logprobs": [None, *scores]})

    async def _events(self, sequence: BatchSequence) -> AsyncGenerator[bytes]:
        async for tokens in self._streams.of(sequence, self._batch):
            yield _event({"choices": [_choice(tokens, sequence)]})
        yield _event({"choices": [], "usage": _usage(sequence)})
        yield b"data: [DONE]\n\n"

    async def _pause(self, request: Request) -> Response:
        mode = request.query_params.get("mode", "abort")
        try:
            checked = msgspec.convert(mode, PauseMode)
        except msgspec.ValidationError as error:
            raise BadRequest(f"`mode` is {mode!r}, and must be abort, wait or keep") from error
        await asyncio.wrap_future(self._batch.pause(checked))
        return JSONResponse({"status": "paused"})

    async def _resume(self, request: Request) -> Response:
        await asyncio.wrap_future(self._batch.resume())
        return JSONResponse({"status": "resumed"})

    async def _is_paused(self, request: Request) -> Response:
        return JSONResponse({"is_paused": self._batch.is_paused})

    async def _collective_rpc(self, request: Request) -> Response:
        body = await _read(request, RpcBody)
        if body.method != "reload_weights" or not body.kwargs.weights_path:
            raise BadRequest("the only method is `reload_weights`, with the folder as `kwargs.weights_path`")
        await asyncio.wrap_future(self._batch.load_weights(Path(body.kwargs.weights_path)))
        return JSONResponse({"results": [None]})

    async def _reset_prefix_cache(self, request: Request) -> Response:
        live = request.query_params.get("reset_running_requests", "false").lower() == "true"
        await asyncio.wrap_future(self._batch.forget(live))
        return JSONResponse({"success": True})

    async def _update_weight_version(self, request: Request) -> Response:
        body = await _read(request, VersionBody)
        await asyncio.wrap_future(self._batch.set_version(body.new_version))
        return JSONResponse({"success": True, "new_version": body.new_version})

    async def _weight_info(self, request: Request) -> Response:
        return JSONResponse({"weight_version": self._batch.version})


def _guarded(
    handler: Callable[[Request], Awaitable[Response]], api_key: str
) -> Callable[[Request], Awaitable[Response]]:
    """The handler, behind the key and with its errors as vLLM's clients read them."""

    async def answer(request: Request) -> Response:
        if api_key and request.headers.get("authorization") != f"Bearer {api_key}":
            return _error(401, "this sampler needs its key as a bearer token")
        try:
            return await handler(request)
        except (BadRequest, WeightsRefused) as error:
            return _error(400, str(error))

    return answer


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": {"message": message, "code": status}}, status_code=status)


async def _read(request: Request, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(await request.body(), type=kind)
    except msgspec.MsgspecError as error:
        raise BadRequest(f"cannot read the request: {error}") from error


def _choice(tokens: Tokens, sequence: BatchSequence) -> dict[str, Any]:
    sampled = [token for token in tokens if token.token_id is not None]
    content = [
        {"token": f"token_id:{token.token_id}", "token_id": token.token_id, "logprob": token.logprob}
        for token in sampled
    ]
    ending = tokens[-1].ending
    choice: dict[str, Any] = {
        "index": 0,
        "token_ids": [token.token_id for token in sampled],
        "logprobs": {"content": content},
        "finish_reason": ending,
    }
    return {**choice, "weight_versions": _version_spans(sequence)} if ending else choice


def _version_spans(sequence: BatchSequence) -> list[dict[str, Any]]:
    ends = [*(start for _, start in sequence.versions[1:]), sequence.sampled_tokens]
    return [
        {"version": name, "start": start, "end": end}
        for (name, start), end in zip(sequence.versions, ends, strict=False)
    ]


def _usage(sequence: BatchSequence) -> dict[str, Any]:
    return {
        "prompt_tokens": sequence.prompt_tokens,
        "completion_tokens": sequence.sampled_tokens,
        "prompt_tokens_details": {"cached_tokens": sequence.cached_tokens},
    }


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"
