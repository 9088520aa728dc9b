"""A whole reply as a Responses object, and errors before there is one."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from openai.types.responses import Response
from responses_api import AGENTS, APPLY_PATCH, BASH, HEAD, TOOL_SEARCH, messages, parse, written

from polar.gateway.dialects.openai_chat.errors import openai_error_body
from polar.gateway.dialects.openai_responses import OpenAIResponses
from polar.gateway.dialects.problems import Overflow, Problem
from polar.types import Delta, ToolCall

LS = ToolCall("bash", '{"command": "ls"}', "call_1")


def call(name: str, arguments: str, call_id: str = "call_1") -> Delta:
    return Delta(tool_call=ToolCall(name, arguments, call_id))


def test_a_text() -> None:
    response = written(parse(), Delta(content="Hel"), Delta(content="lo"))
    assert (response["id"], response["object"], response["status"]) == ("resp_s1.0.7", "response", "completed")
    assert (response["created_at"], response["model"]) == (HEAD.created, "polar")
    assert response["error"] is None and response["incomplete_details"] is None
    assert response["output"] == [
        {
            "id": "msg_s1.0.7_0",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}],
        }
    ]


def test_usage_is_what_was_really_used() -> None:
    assert written(parse(), Delta(content="x"))["usage"] == {
        "input_tokens": 30,
        "input_tokens_details": {"cached_tokens": 20, "cache_write_tokens": 0},
        "output_tokens": 12,
        "output_tokens_details": {"reasoning_tokens": 5},
        "total_tokens": 42,
    }


def test_the_sdk_finds_every_field_it_requires() -> None:
    schema = {"type": "object"}
    request = parse(
        tools=[BASH, APPLY_PATCH, AGENTS, TOOL_SEARCH],
        temperature=0.5,
        reasoning={"effort": "low"},
        text={"format": {"type": "json_schema", "name": "n", "schema": schema}},
        max_output_tokens=9,
    )
    response = written(
        request,
        Delta(reasoning="Hm."),
        Delta(content="Now."),
        Delta(tool_call=LS),
        call("apply_patch", '{"input":"*** Begin"}', "call_2"),
        call("multi_agent_v1__spawn", "{}", "call_3"),
        call("tool_search", '{"query":"mail"}', "call_4"),
    )
    read = Response.model_validate(response)
    assert [item.type for item in read.output] == [
        *("reasoning", "message", "function_call", "custom_tool_call", "function_call", "tool_search_call")
    ]
    assert read.output_text == "Now." and read.temperature == 0.5 and read.max_output_tokens == 9
    assert read.reasoning and read.reasoning.effort == "low"
    assert response["text"]["format"]["schema"] == schema


def test_items_stand_in_the_order_they_were_said() -> None:
    response = written(
        parse(tools=[BASH]),
        Delta(reasoning="a"),
        Delta(content="b"),
        Delta(tool_call=LS),
        Delta(content="c"),
        Delta(reasoning="d"),
        Delta(content="e"),
    )
    assert [item["type"] for item in response["output"]] == [
        *("reasoning", "message", "function_call", "message", "reasoning", "message")
    ]
    assert [item["id"].rsplit("_", 1)[1] for item in response["output"]] == list("012345")


def test_reasoning_is_summary_and_content_and_names_its_reply() -> None:
    (item, _) = written(parse(), Delta(reasoning="Think "), Delta(reasoning="twice."), Delta(content="Yes."))[
        "output"
    ]
    assert item["summary"] == [{"type": "summary_text", "text": "Think twice."}]
    assert item["content"] == [{"type": "reasoning_text", "text": "Think twice."}]
    assert item["encrypted_content"] == HEAD.reply_id and item["id"] == "rs_s1.0.7_0"


@pytest.mark.parametrize("deltas", [(), (Delta(),), (Delta(reasoning="only this"),)])
def test_a_reply_without_text_or_call_has_one_empty_message(deltas: tuple[Delta, ...]) -> None:
    last = written(parse(), *deltas)["output"][-1]
    assert (last["type"], last["content"][0]["text"]) == ("message", "")


def test_a_reply_that_was_cut_off_is_completed_all_the_same() -> None:
    response = written(parse(), Delta(content="and so"), finish_reason="length")
    assert response["status"] == response["output"][0]["status"] == "completed"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}


def test_a_call_is_handed_over_to_the_letter() -> None:
    spelled = '{ "command":"echo ü \\u00fc",  "n":1.0}'
    (item,) = written(parse(tools=[BASH]), call("bash", spelled))["output"]
    assert item == {
        "id": "fc_s1.0.7_0",
        "type": "function_call",
        "status": "completed",
        "call_id": "call_1",
        "name": "bash",
        "arguments": spelled,
    }


def test_a_call_of_an_unknown_tool_is_sent_too() -> None:
    (item,) = written(parse(tools=[AGENTS]), call("multi_agent_v1__sing", "{}"))["output"]
    assert (item["type"], item["name"]) == ("function_call", "multi_agent_v1__sing") and "namespace" not in item


def test_a_namespaced_call_has_both_names() -> None:
    (item,) = written(parse(tools=[AGENTS]), call("multi_agent_v1__spawn", "{}"))["output"]
    assert (item["namespace"], item["name"]) == ("multi_agent_v1", "spawn")


def test_a_freeform_call_is_its_text() -> None:
    (item,) = written(parse(tools=[APPLY_PATCH]), call("apply_patch", '{"input":"*** \\"B\\"\\n+ü"}'))["output"]
    assert (item["id"], item["type"], item["name"]) == ("ctc_s1.0.7_0", "custom_tool_call", "apply_patch")
    assert item["input"] == '*** "B"\n+ü' and "arguments" not in item


def test_a_freeform_call_in_a_namespace() -> None:
    edit = {"type": "namespace", "name": "edit", "tools": [APPLY_PATCH]}
    (item,) = written(parse(tools=[edit]), call("edit__apply_patch", '{"input":"x"}'))["output"]
    assert (item["type"], item["namespace"], item["name"]) == ("custom_tool_call", "edit", "apply_patch")


@pytest.mark.parametrize("arguments", ['{"patch":"x"}', '{"input":7}', "not JSON", "", '["x"]'])
def test_a_freeform_call_in_another_shape_comes_back_as_it_was_sampled(arguments: str) -> None:
    (item,) = written(parse(tools=[APPLY_PATCH]), call("apply_patch", arguments))["output"]
    assert item["input"] == arguments
    assert messages(item)[0].tool_calls[0].arguments == arguments
    # A harness that makes up its own ids loses the mark, and with it nothing but the match.
    echo = messages({**item, "id": "ctc_1"})[0].tool_calls[0].arguments
    assert orjson.loads(echo) == {"input": arguments}


def test_a_search_for_tools_is_left_to_the_harness() -> None:
    (item,) = written(parse(tools=[TOOL_SEARCH]), call("tool_search", '{"query":"mail"}'))["output"]
    assert (item["type"], item["execution"], item["arguments"]) == (
        "tool_search_call",
        "client",
        {"query": "mail"},
    )
    assert messages(item)[0].tool_calls == (ToolCall("tool_search", '{"query":"mail"}', "call_1"),)


def test_the_count_of_a_requests_tokens() -> None:
    assert orjson.loads(OpenAIResponses().count(7)) == {"object": "response.input_tokens", "input_tokens": 7}


class TestErrors:
    @pytest.mark.parametrize(
        ("status", "code", "kind"),
        [
            (400, "invalid_request", "invalid_request_error"),
            (401, "invalid_api_key", "authentication_error"),
            (403, "forbidden", "permission_error"),
            (404, "unknown_path", "not_found_error"),
            (413, "request_too_large", "invalid_request_error"),
            (429, "too_many", "rate_limit_error"),
            (500, "gateway_error", "server_error"),
            (502, "engine_error", "server_error"),
        ],
    )
    def test_the_body(self, status: int, code: str, kind: str) -> None:
        error = OpenAIResponses().error(Problem(status, code, "why", param="input"))
        assert error.status == status and error.headers == {"x-should-retry": "false"}
        assert orjson.loads(error.body) == {
            "error": {"message": "why", "type": kind, "param": "input", "code": code}
        }

    def test_whether_to_ask_again(self) -> None:
        error = OpenAIResponses().error(Problem(502, "engine_error", "why", retry=True, retry_after_s=2.4))
        assert error.headers == {"x-should-retry": "true", "retry-after": "2"}

    def test_overflow_in_the_words_harnesses_look_for(self) -> None:
        error: Any = orjson.loads(OpenAIResponses().error(Overflow(9000, 8192)).body)["error"]
        assert error["message"] == (
            "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens."
        )
        assert (error["code"], error["type"]) == ("context_length_exceeded", "invalid_request_error")

    @pytest.mark.parametrize("number", ["429", "500", "502", "503", "504", "50000", "14290"])
    def test_a_final_error_has_no_number_that_looks_like_a_retryable_status(self, number: str) -> None:
        problem = Problem(400, "invalid_request", f"input[{number}].role is wrong", param=f"input[{number}].role")
        error = openai_error_body(problem)["error"]
        assert error["message"] == "input[N].role is wrong" and error["param"] == f"input[{number}].role"
        asked_again = Problem(502, "engine_error", f"the engine returned {number}", retry=True)
        assert number in openai_error_body(asked_again)["error"]["message"]

    def test_other_numbers_stay(self) -> None:
        assert openai_error_body(Problem(400, "c", "at most 16, not 5001"))["error"]["message"].endswith("not N")
        assert openai_error_body(Problem(400, "c", "at most 16"))["error"]["message"] == "at most 16"
