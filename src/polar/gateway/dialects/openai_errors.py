"""OpenAI's error body, which its Chat Completions and its Responses share."""

from __future__ import annotations

import re
from typing import Any

import orjson

from polar.gateway.dialects.base import ErrorReply, Overflow, Problem, retry_headers

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_LOOKS_RETRYABLE = re.compile(r"\d*(?:429|50[0234])\d*")


def openai_error(problem: Problem) -> ErrorReply:
    return ErrorReply(problem.status, retry_headers(problem), orjson.dumps(openai_error_body(problem)))


def openai_error_body(problem: Problem) -> dict[str, Any]:
    kind = _TYPES.get(problem.status, "invalid_request_error" if problem.status < 500 else "server_error")
    error = {"message": openai_message(problem), "type": kind, "param": problem.param, "code": problem.code}
    return {"error": error}


def openai_message(problem: Problem) -> str:
    """Harnesses compact when they read an overflow in exactly these words. Some ask again when any other error has
    the digits of a retryable status, so a final one goes without such numbers; `param` keeps the place."""
    if isinstance(problem, Overflow):
        return (
            f"This model's maximum context length is {problem.context_tokens} tokens. "
            f"However, your messages resulted in {problem.prompt_tokens} tokens."
        )
    return problem.message if problem.retry else _LOOKS_RETRYABLE.sub("N", problem.message)
