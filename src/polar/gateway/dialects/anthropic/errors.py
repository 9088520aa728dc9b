"""A `Problem` in Anthropic's format."""

from __future__ import annotations

import re
import secrets
import string
from typing import Any

from polar.gateway.dialects.problems import Overflow, Problem, final_text

THREAD_REFUSED = "thread_unsupported_request"
"""The provider's SDK continues without a thread when it reads this code."""
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def error_body(problem: Problem) -> dict[str, Any]:
    other = "invalid_request_error" if problem.status < 500 else "api_error"
    error: dict[str, Any] = {"type": _TYPES.get(problem.status, other), "message": _message(problem)}
    if problem.code == THREAD_REFUSED:
        error["details"] = {"error_code": problem.code}
    # Letters only: harnesses search the whole body for the digits of a retryable status.
    request_id = "req_" + "".join(secrets.choice(string.ascii_lowercase) for _ in range(24))
    return {"type": "error", "error": error, "request_id": request_id}


def _message(problem: Problem) -> str:
    if isinstance(problem, Overflow):
        # A prompt as long as the context is one token too long: it leaves no room for a reply.
        maximum = min(problem.context_tokens, problem.prompt_tokens - 1)
        return f"prompt is too long: {problem.prompt_tokens} tokens > {maximum} maximum"
    message = final_text(problem, problem.message)
    if not problem.param or problem.param in problem.message:
        return message
    field = re.sub(r"\d", "", problem.param)
    return f"{field}: {message}"
