"""Anthropic's shapes beside the reply: errors, token counts, models."""

from __future__ import annotations

import re

import orjson
import pytest

from polar.gateway.dialects.anthropic import Anthropic
from polar.gateway.dialects.problems import Overflow, Problem

DIALECT = Anthropic()


def test_an_error_has_the_providers_shape() -> None:
    answer = DIALECT.error(Problem(400, "invalid_request", "max_tokens is required", param="max_tokens"))
    body = orjson.loads(answer.body)
    request_id = body.pop("request_id")
    assert body == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "max_tokens is required"},
    }
    assert answer.status == 400
    assert answer.headers == {"request-id": request_id, "x-should-retry": "false"}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (413, "request_too_large"),
        (415, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
        (529, "overloaded_error"),
    ],
)
def test_each_status_has_a_type(status: int, kind: str) -> None:
    answer = DIALECT.error(Problem(status, "any", "why"))
    assert answer.status == status
    assert orjson.loads(answer.body)["error"] == {"type": kind, "message": "why"}


def test_headers_tell_the_sdk_whether_and_when_to_retry() -> None:
    answer = DIALECT.error(Problem(429, "engine_busy", "later", retry=True, retry_after_s=2.4))
    assert answer.headers["x-should-retry"] == "true" and answer.headers["retry-after"] == "2"


def test_the_field_is_named_where_the_message_does_not_name_it() -> None:
    answer = DIALECT.error(Problem(400, "invalid_request", "must be text", param="system"))
    assert orjson.loads(answer.body)["error"]["message"] == "system: must be text"


def test_an_index_is_left_out_whose_digits_a_harness_takes_for_a_status() -> None:
    answer = DIALECT.error(Problem(400, "images_not_supported", "text only", param="messages[503]"))
    assert orjson.loads(answer.body)["error"]["message"] == "messages[]: text only"


@pytest.mark.parametrize(
    ("prompt", "context", "wording"),
    [
        (9000, 8192, "prompt is too long: 9000 tokens > 8192 maximum"),
        (8192, 8192, "prompt is too long: 8192 tokens > 8191 maximum"),
    ],
)
def test_an_overflow_is_worded_so_that_harnesses_compact(prompt: int, context: int, wording: str) -> None:
    answer = DIALECT.error(Overflow(prompt, context))
    error = orjson.loads(answer.body)["error"]
    assert (answer.status, error["type"]) == (400, "invalid_request_error")
    assert error["message"] == wording
    assert answer.headers["x-should-retry"] == "false"


def test_no_request_id_holds_digits_that_a_harness_takes_for_a_status() -> None:
    ids = {DIALECT.error(Problem(400, "any", "why")).headers["request-id"] for _ in range(50)}
    assert len(ids) == 50
    assert all(re.fullmatch(r"req_[a-z]{24}", one) for one in ids)


def test_a_count() -> None:
    assert orjson.loads(DIALECT.count(123)) == {"input_tokens": 123}


def test_models_as_a_list_and_one_by_one() -> None:
    listing = orjson.loads(DIALECT.models("polar", 8192, one=False))
    single = orjson.loads(DIALECT.models("polar", 8192, one=True))
    assert listing == {"data": [single], "has_more": False, "first_id": "polar", "last_id": "polar"}
    assert (single["type"], single["id"], single["display_name"]) == ("model", "polar", "polar")
    assert single["max_input_tokens"] == 8192
