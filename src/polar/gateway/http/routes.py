"""Which path speaks which dialect. Any other path is a 404, which is recorded nowhere."""

from __future__ import annotations

from typing import Any, Protocol

import orjson
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from polar.gateway.dialects.anthropic import Anthropic
from polar.gateway.dialects.base import Dialect
from polar.gateway.dialects.google import Google
from polar.gateway.dialects.openai_chat import OpenAIChat
from polar.gateway.dialects.openai_completions import OpenAICompletions
from polar.gateway.dialects.openai_responses import OpenAIResponses
from polar.gateway.dialects.problems import Problem
from polar.gateway.http.handler import CountRoute, GatewayApp, ModelRoute, RequestHead, Service, authenticate
from polar.gateway.http.openapi import describe

GENERATION_PATHS: dict[str, type[Dialect]] = {
    "/v1/messages": Anthropic,
    "/v1/chat/completions": OpenAIChat,
    "/v1/completions": OpenAICompletions,
    "/v1/responses": OpenAIResponses,
}
GOOGLE_VERSIONS = ("v1beta", "v1")
GOOGLE_ACTIONS = {"generateContent": ModelRoute, "streamGenerateContent": ModelRoute, "countTokens": CountRoute}


class ListingDialect(Dialect, Protocol):
    """A dialect whose provider lists its models."""

    def models(self, model: str, context_tokens: int, *, one: bool) -> bytes: ...


PROVIDER_HOSTS: dict[str, type[ListingDialect]] = {
    "api.anthropic.com": Anthropic,
    "api.openai.com": OpenAIChat,
    "generativelanguage.googleapis.com": Google,
}
"""Whose requests a session may intercept."""


def dialect_of(headers: Headers, path: str) -> ListingDialect:
    """The dialect of a request to a path that several share."""
    if dialect := PROVIDER_HOSTS.get(headers.get("host", "")):
        return dialect()
    if path.startswith("/v1beta/") or "x-goog-api-key" in headers:
        return Google()
    return Anthropic() if "anthropic-version" in headers or path.startswith("/v1/messages") else OpenAIChat()


def gateway_app(service: Service) -> GatewayApp:
    model_routes = {path: ModelRoute(dialect(), service) for path, dialect in GENERATION_PATHS.items()}
    posts = [Route(path, route, methods=["POST"]) for path, route in model_routes.items()]
    handlers: dict[Any, Any] = {404: not_found, 405: wrong_method}
    framework = Starlette(routes=[*posts, *_other_routes(service)], exception_handlers=handlers)
    framework.router.redirect_slashes = False
    return GatewayApp(model_routes, framework)


def _other_routes(service: Service) -> list[Route]:
    routes = [
        Route("/v1/messages/count_tokens", CountRoute(Anthropic(), service), methods=["POST"]),
        Route("/v1/responses/input_tokens", CountRoute(OpenAIResponses(), service), methods=["POST"]),
        Route("/v1/responses", refuse_websocket, methods=["GET"]),
        Route("/openapi.json", openapi, methods=["GET"]),
        Route("/", hello, methods=["HEAD"]),
        Route("/api/hello", hello, methods=["HEAD"]),
    ]
    for version in GOOGLE_VERSIONS:
        routes += _google_routes(version, service)
        routes += _listings(version, service)
    return routes


def _google_routes(version: str, service: Service) -> list[Route]:
    path = f"/{version}/models/{{model:path}}"
    served = [
        Route(f"{path}:{action}", route(Google(), service, action), methods=["POST"])
        for action, route in GOOGLE_ACTIONS.items()
    ]
    return [*served, Route(f"{path}:{{action}}", refuse_action, methods=["POST"])]


def _listings(version: str, service: Service) -> list[Route]:
    async def models(request: Request) -> Response:
        dialect = dialect_of(request.headers, request.url.path)
        model, asked = service.calls.model, request.path_params.get("model")
        try:
            authenticate(service.slots, RequestHead.of(request.scope))
            if asked is not None and asked.removeprefix("models/") != model:
                raise Problem(404, "model_not_found", f"no such model; this gateway serves {model!r}")
        except Problem as problem:
            return answer(dialect, problem)
        body = dialect.models(model, service.calls.context_tokens, one=asked is not None)
        return Response(body, media_type="application/json")

    paths = (f"/{version}/models", f"/{version}/models/{{model:path}}")
    return [Route(path, models, methods=["GET"]) for path in paths]


async def refuse_action(request: Request) -> Response:
    """Actions of Google's API that are not served, such as `embedContent`."""
    model, action = request.path_params["model"], request.path_params["action"]
    served = ", ".join(GOOGLE_ACTIONS)
    message = f"models/{model[:200]} is not supported for {action[:40]}: this gateway serves {served}"
    return answer(Google(), Problem(404, "method_not_supported", message))


async def refuse_websocket(request: Request) -> Response:
    """A harness that is refused a WebSocket goes on over HTTP at once."""
    problem = Problem(426, "upgrade_refused", "this path speaks plain HTTP: send a POST")
    return answer(OpenAIResponses(), problem)


async def openapi(_: Request) -> Response:
    return Response(orjson.dumps(describe()), media_type="application/json")


async def hello(_: Request) -> Response:
    """Harnesses use it as a health check."""
    return Response()


async def not_found(request: Request, _: Exception) -> Response:
    problem = Problem(404, "unknown_path", f"no such path: {request.method} {request.url.path}")
    return answer(dialect_of(request.headers, request.url.path), problem)


async def wrong_method(request: Request, _: Exception) -> Response:
    problem = Problem(405, "wrong_method", f"{request.url.path} does not take {request.method}")
    return answer(dialect_of(request.headers, request.url.path), problem)


def answer(dialect: Dialect, problem: Problem) -> Response:
    error = dialect.error(problem)
    return Response(error.body, error.status, error.headers, media_type="application/json")
