"""Requests in Google's dialect, and their parsed form."""

from __future__ import annotations

from typing import Any

import pytest

from polar.gateway.dialects.base import ChatRequest
from polar.gateway.dialects.google import Google
from polar.gateway.dialects.problems import Problem
from polar.gateway.dialects.raw_request import RawRequest
from polar.types import Message

HELLO: list[Any] = [{"role": "user", "parts": [{"text": "hello"}]}]
PIXEL = {"mimeType": "image/png", "data": "aGk="}


def parse(action: str = "generateContent", query: dict[str, str] | None = None, **body: Any) -> ChatRequest:
    return Google().parse(RawRequest({"contents": HELLO, **body}, action, query or {}))


def refusal(action: str = "generateContent", **body: Any) -> Problem:
    with pytest.raises(Problem) as caught:
        parse(action, **body)
    assert (caught.value.status, caught.value.retry) == (400, False)
    return caught.value


def messages(*contents: Any) -> list[Message]:
    """Parsed as a count, because a conversation to count may end with any role."""
    return list(parse("countTokens", contents=list(contents)).messages)


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "parts": list(parts)}


def model(*parts: Any) -> dict[str, Any]:
    return {"role": "model", "parts": list(parts)}


def called(name: str, call_id: str = "", **args: Any) -> dict[str, Any]:
    call = {"name": name, "args": args}
    return {"functionCall": {"id": call_id, **call} if call_id else call}


def answered(name: str, response: Any, call_id: str = "") -> dict[str, Any]:
    answer = {"name": name, "response": response}
    return {"functionResponse": {"id": call_id, **answer} if call_id else answer}
