"""A `Problem` in Google's format: status names, and details with the field and the time of a retry."""

from __future__ import annotations

from typing import Any

from polar.gateway.dialects.problems import Overflow, Problem, final_text

_STATUS_NAMES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    409: "ABORTED",
    413: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_SENT_AS = {502: 503}
"""The provider has no 502. Clients retry after 503."""

_TYPES = "type.googleapis.com/google.rpc"


def http_status(problem: Problem) -> int:
    return _SENT_AS.get(problem.status, problem.status)


def error_body(problem: Problem) -> dict[str, Any]:
    status = http_status(problem)
    fallback = "INVALID_ARGUMENT" if status < 500 else "INTERNAL"
    error = {
        "code": status,
        "message": _message(problem),
        "status": _STATUS_NAMES.get(status, fallback),
        "details": list(_details(problem)),
    }
    return {"error": error}


def _message(problem: Problem) -> str:
    """Harnesses compact when they read the provider's text for an overflow."""
    if isinstance(problem, Overflow):
        return (
            f"The input token count ({problem.prompt_tokens}) exceeds the maximum number of tokens allowed "
            f"({problem.context_tokens})."
        )
    return final_text(problem, problem.message)


def _details(problem: Problem) -> list[dict[str, Any]]:
    details: list[dict[str, Any]] = [
        {"@type": f"{_TYPES}.ErrorInfo", "reason": problem.code.upper(), "domain": "polar"}
    ]
    if problem.param is not None:
        # Clients use the whole body as the text of the error.
        violation = {
            "field": final_text(problem, problem.param),
            "description": final_text(problem, problem.message),
        }
        details.append({"@type": f"{_TYPES}.BadRequest", "fieldViolations": [violation]})
    if problem.retry_after_s is not None:
        details.append({"@type": f"{_TYPES}.RetryInfo", "retryDelay": f"{problem.retry_after_s:g}s"})
    return details
