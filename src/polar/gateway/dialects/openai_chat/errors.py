"""OpenAI's error body, shared by Chat Completions, Completions and Responses."""

from __future__ import annotations

from typing import Any

import orjson

from polar.gateway.dialects.problems import ErrorReply, Overflow, Problem, final_text, retry_headers

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


def openai_error(problem: Problem) -> ErrorReply:
    return ErrorReply(problem.status, retry_headers(problem), orjson.dumps(openai_error_body(problem)))


def openai_error_body(problem: Problem) -> dict[str, Any]:
    kind = _TYPES.get(problem.status, "invalid_request_error" if problem.status < 500 else "server_error")
    error = {"message": openai_message(problem), "type": kind, "param": problem.param, "code": problem.code}
    return {"error": error}


def openai_message(problem: Problem) -> str:
    """Harnesses compact when they read exactly this text for an overflow."""
    if isinstance(problem, Overflow):
        return (
            f"This model's maximum context length is {problem.context_tokens} tokens. "
            f"However, your messages resulted in {problem.prompt_tokens} tokens."
        )
    return final_text(problem, problem.message)
