"""The error that answers a request, in one canonical form. Each dialect writes it in its provider's format."""

from __future__ import annotations

import re

import msgspec

from polar.types import Failure

_LOOKS_RETRYABLE = re.compile(r"\d*(?:429|50[0234])\d*")


class Problem(Exception):
    """The error that answers a request. `code` is canonical; each dialect translates it for its provider."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry = retry
        self.retry_after_s = retry_after_s
        self.failure: Failure | None = None
        """The internal failure behind it, if the request was valid."""


class Overflow(Problem):
    """A prompt that leaves no room for a reply. Harnesses compact when they read their provider's text for it."""

    def __init__(self, prompt_tokens: int, context_tokens: int) -> None:
        message = f"the prompt has {prompt_tokens} tokens, the model's context has {context_tokens}"
        super().__init__(400, "context_length_exceeded", message)
        self.prompt_tokens = prompt_tokens
        self.context_tokens = context_tokens


class ErrorReply(msgspec.Struct, frozen=True):
    status: int
    headers: dict[str, str]
    body: bytes


def too_deep() -> Problem:
    return Problem(400, "invalid_request", "the body is nested too deeply")


def final_text(problem: Problem, text: str) -> str:
    """Text of an error. Some harnesses retry when it contains the digits of a retryable status, so a final error
    has such numbers replaced."""
    return text if problem.retry else _LOOKS_RETRYABLE.sub("N", text)


def retry_headers(problem: Problem) -> dict[str, str]:
    """The headers that the providers' SDKs obey before they retry."""
    headers = {"x-should-retry": "true" if problem.retry else "false"}
    if problem.retry_after_s is not None:
        headers["retry-after"] = str(max(1, round(problem.retry_after_s)))
    return headers
