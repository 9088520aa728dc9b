"""The conversation in Google's dialect: contents, parts, images, and answers of functions with their calls."""

from __future__ import annotations

from typing import Any

import pytest
from google_requests import HELLO, PIXEL, answered, called, messages, model, parse, refusal, user

from polar.types import Image, Message, ToolCall


class TestSystemInstruction:
    @pytest.mark.parametrize(
        "raw",
        [
            "be brief",
            {"text": "be brief"},
            {"role": "user", "parts": [{"text": "be brief"}]},
            {"parts": {"text": "be brief"}},
            {"parts": [{"text": "be "}, {"text": "brief"}]},
            [{"text": "be "}, "brief"],
        ],
        ids=["text", "part", "content", "one part", "parts", "list"],
    )
    def test_every_shape_is_one_system_message(self, raw: Any) -> None:
        for field in ("systemInstruction", "system_instruction"):
            first, second = parse(**{field: raw}).messages
            assert first == Message(role="system", content="be brief")
            assert second.role == "user"

    @pytest.mark.parametrize("raw", [None, "", {"parts": []}, {"parts": [{"text": ""}]}])
    def test_an_empty_one_is_none(self, raw: Any) -> None:
        assert [m.role for m in parse(systemInstruction=raw).messages] == ["user"]

    @pytest.mark.parametrize("raw", [3, {"parts": "x"}, {"parts": [{"inlineData": PIXEL}]}, {"parts": [3]}])
    def test_anything_but_text_is_refused(self, raw: Any) -> None:
        assert (refusal(systemInstruction=raw).param or "").startswith("systemInstruction")


class TestContents:
    def test_text_parts_of_one_content_are_one_text(self) -> None:
        assert messages(user({"text": "a"}, {"text": ""}, {"text": "b"})) == [Message(role="user", content="ab")]

    @pytest.mark.parametrize("role", [None, "", "user", "function", "tool"])
    def test_whoever_is_not_the_model_is_the_user(self, role: Any) -> None:
        assert messages({"role": role, "parts": [{"text": "a"}]}) == [Message(role="user", content="a")]
        assert messages({"parts": [{"text": "a"}]}) == [Message(role="user", content="a")]

    def test_one_content_and_one_part_need_no_list(self) -> None:
        assert parse(contents={"parts": {"text": "a"}}).messages == (Message(role="user", content="a"),)

    def test_a_content_without_parts_is_an_empty_message(self) -> None:
        assert messages(user(), {"role": "model"}) == [Message(role="user"), Message(role="assistant")]

    def test_users_contents_in_a_row_stay_apart(self) -> None:
        assert [m.content for m in messages(user({"text": "a"}), user({"text": "b"}))] == ["a", "b"]

    def test_the_models_contents_in_a_row_are_one_turn(self) -> None:
        """As an SDK keeps a streamed reply: chunk by chunk, heartbeats and all."""
        turn = [
            model({"text": ""}),
            model({"text": "hm", "thought": True, "thoughtSignature": "eA=="}),
            model({"text": "", "thought": True}),
            model({"text": "Let "}),
            model({"text": "me."}),
            model(called("bash", "c1", command="ls")),
            model({"text": ""}),
        ]
        (message,) = messages(*turn)
        call = ToolCall(name="bash", arguments='{"command":"ls"}', call_id="c1")
        assert message == Message(role="assistant", content="Let me.", reasoning="hm", tool_calls=(call,))

    def test_thinking_then_a_call_without_text(self) -> None:
        (message,) = messages(model({"text": "hm", "thought": True}, called("f", "c")))
        assert (message.content, message.reasoning, len(message.tool_calls)) == ("", "hm", 1)

    def test_text_after_a_call_belongs_to_the_turn(self) -> None:
        (message,) = messages(model({"text": "a"}, called("f", "c"), {"text": "b"}))
        assert message.content == "ab"

    @pytest.mark.parametrize("signature", ["skip_thought_signature_validator", "Zm9v", None])
    def test_any_signature_comes_back(self, signature: Any) -> None:
        part = {**called("f", "c"), "thoughtSignature": signature}
        assert messages(model(part))[0].tool_calls[0].name == "f"
        assert messages(model({"thoughtSignature": signature})) == [Message(role="assistant")]

    def test_arguments_that_are_missing_are_none(self) -> None:
        (message,) = messages(
            model({"functionCall": {"name": "f"}}, {"functionCall": {"name": "g", "args": None}})
        )
        assert [call.arguments for call in message.tool_calls] == ["{}", "{}"]

    def test_arguments_keep_their_characters_and_their_order(self) -> None:
        (message,) = messages(model(called("f", "c", z="日本 ñ", a=[1.5, None])))
        assert message.tool_calls[0].arguments == '{"z":"日本 ñ","a":[1.5,null]}'

    def test_control_tokens_in_a_text_are_text(self) -> None:
        text = "<|im_end|> <tool_call>{}</tool_call>"
        assert messages(user({"text": text}))[0].content == text

    @pytest.mark.parametrize(
        ("content", "param"),
        [
            ({"role": "system", "parts": []}, "contents[0].role"),
            ({"role": 3, "parts": []}, "contents[0].role"),
            (user({"text": 3}), "contents[0].parts[0].text"),
            (user(called("f")), "contents[0].parts[0]"),
            (user({"text": "a", "inlineData": PIXEL}), "contents[0].parts[0]"),
            (model(answered("f", {})), "contents[0].parts[0]"),
            (model({"inlineData": PIXEL}), "contents[0].parts[0]"),
            (model({"functionCall": {"args": {}}}), "contents[0].parts[0].functionCall.name"),
            (model({"functionCall": {"name": "f", "args": "x"}}), "contents[0].parts[0].functionCall.args"),
            (user(answered("f", "x")), "contents[0].parts[0].functionResponse.response"),
            (user({"fileData": {"fileUri": "gs://x"}}), "contents[0].parts[0].fileData"),
            (user({"file_data": {"file_uri": "gs://x"}}), "contents[0].parts[0].fileData"),
            (model({"executableCode": {"code": "1"}}), "contents[0].parts[0].executableCode"),
            (user({"codeExecutionResult": {}}), "contents[0].parts[0].codeExecutionResult"),
            (model({"toolCall": {"toolType": "GOOGLE_SEARCH"}}), "contents[0].parts[0].toolCall"),
            (user({"hologram": {}}), "contents[0].parts[0]"),
            ("hello", "contents[0]"),
            (user("hello"), "contents[0].parts[0]"),
        ],
    )  # fmt: skip
    def test_what_cannot_be_read_is_refused_with_its_place(self, content: Any, param: str) -> None:
        assert refusal("countTokens", contents=[content]).param == param

    @pytest.mark.parametrize("contents", [None, [], "hello", 3])
    def test_a_conversation_is_needed(self, contents: Any) -> None:
        assert refusal(contents=contents).param == "contents"


class TestImages:
    def test_an_image_stands_where_it_stood(self) -> None:
        (message,) = messages(user({"text": "see "}, {"inlineData": PIXEL}, {"text": "this"}))
        image = Image(url="data:image/png;base64,aGk=", at=4)
        assert message == Message(role="user", content="see this", images=(image,))

    @pytest.mark.parametrize(("sent", "standard"), [("-_-_", "+/+/"), ("aGk", "aGk="), ("aGk=", "aGk=")])
    def test_both_alphabets_of_base64_are_one(self, sent: str, standard: str) -> None:
        (message,) = messages(user({"inline_data": {"mime_type": "image/png", "data": sent}}))
        assert message.images[0].url == f"data:image/png;base64,{standard}"

    def test_a_function_answers_with_an_image(self) -> None:
        answer = {"name": "look", "response": {"output": "one image"}, "parts": [{"inlineData": PIXEL}]}
        (message,) = messages(user({"functionResponse": answer}))
        assert (message.role, message.content) == ("tool", "one image")
        assert message.images == (Image(url="data:image/png;base64,aGk=", at=9),)

    def test_an_image_beside_an_answer_is_the_users(self) -> None:
        contents = user(answered("a", {"output": "1"}), {"inlineData": PIXEL}, answered("b", {"output": "2"}))
        assert [m.role for m in messages(contents)] == ["tool", "tool", "user"]

    @pytest.mark.parametrize(
        ("blob", "param"),
        [
            ({"mimeType": "application/pdf", "data": "aGk="}, "mimeType"),
            ({"mimeType": "audio/wav", "data": "aGk="}, "mimeType"),
            ({"data": "aGk="}, "mimeType"),
            ({"mimeType": "image/png"}, "data"),
        ],
    )
    def test_what_is_no_image_is_refused(self, blob: Any, param: str) -> None:
        assert refusal(contents=[user({"inlineData": blob})]).param == f"contents[0].parts[0].inlineData.{param}"
        answer = {"name": "f", "response": {}, "parts": [{"fileData": {"fileUri": "x"}}]}
        place = "contents[0].parts[0].functionResponse.parts[0].fileData"
        assert refusal(contents=[user({"functionResponse": answer})]).param == place


class TestAnswers:
    """Answers of functions, and the calls that they belong to."""

    def ids(self, *contents: Any) -> list[str]:
        return [m.tool_call_id for m in messages(*contents) if m.role == "tool"]

    @pytest.mark.parametrize(
        ("response", "words", "is_error"),
        [
            ({"output": "a.txt"}, "a.txt", False),
            ({"result": "a.txt"}, "a.txt", False),
            ({"error": "no such file"}, "no such file", True),
            ({"error": {"code": 2}}, '{"error":{"code":2}}', True),
            ({"result": 3}, '{"result":3}', False),
            ({"output": "a", "error": "b"}, '{"output":"a","error":"b"}', False),
            ({"output": "a", "exit": 0}, '{"output":"a","exit":0}', False),
            ({"other": "ñ"}, '{"other":"ñ"}', False),
            ({}, "", False),
            (None, "", False),
        ],
    )
    def test_what_the_model_reads_of_a_response(self, response: Any, words: str, is_error: bool) -> None:
        (message,) = messages(user(answered("f", response, "c")))
        expected = Message(role="tool", content=words, tool_call_id="c", is_error=is_error)
        assert message == expected

    def test_answers_come_before_what_the_user_says_beside_them(self) -> None:
        found = messages(
            model(called("f", "1"), called("g", "2")),
            user({"text": "by the way"}, answered("f", {"output": "F"}), answered("g", {"output": "G"})),
        )
        assert [(m.role, m.content) for m in found[1:]] == [("tool", "F"), ("tool", "G"), ("user", "by the way")]

    def test_by_id_in_any_order(self) -> None:
        calls = model(called("f", "1"), called("f", "2"))
        assert self.ids(calls, user(answered("f", {}, "2"), answered("f", {}, "1"))) == ["2", "1"]

    def test_by_name_and_order_where_there_are_no_ids(self) -> None:
        calls = model(called("f"), called("g"), called("f"))
        made_up = [call.call_id for call in messages(calls)[0].tool_calls]
        assert len(set(made_up)) == 3
        answers = user(answered("g", {}), answered("f", {}), answered("f", {}))
        assert self.ids(calls, answers) == [made_up[1], made_up[0], made_up[2]]

    def test_by_an_id_with_the_name_in_front(self) -> None:
        calls = model(called("f", "1"), called("f", "2"))
        assert self.ids(calls, user(answered("f", {}, "f__2"), answered("f", {}, "f__1"))) == ["2", "1"]
        renamed = model(called("f", "f__1"), called("f", "f__2"))
        assert self.ids(renamed, user(answered("f", {}, "2"), answered("f", {}, "1"))) == ["f__2", "f__1"]

    def test_by_name_where_the_ids_are_invented(self) -> None:
        calls = model(called("f", "1"), called("g", "2"))
        assert self.ids(calls, user(answered("f", {}, "x"), answered("g", {}, "y"))) == ["1", "2"]

    def test_in_several_contents(self) -> None:
        calls = model(called("f"), called("f"))
        first, second = self.ids(
            calls, user(answered("f", {})), {"role": "function", "parts": [answered("f", {})]}
        )
        assert first != second

    def test_only_the_last_turns_calls_wait(self) -> None:
        found = self.ids(
            model(called("f", "1")), user({"text": "stop"}), model(called("f", "2")), user(answered("f", {}))
        )
        assert found == ["2"]

    def test_an_answer_to_nothing_keeps_its_id(self) -> None:
        assert self.ids(user(answered("f", {}, "gone")), user(answered("f", {}))) == ["gone", ""]

    def test_ids_are_the_same_in_every_longer_history(self) -> None:
        history = [*HELLO, model(called("f")), user(answered("f", {"output": "1"}))]
        longer = [*history, model(called("f")), user(answered("f", {"output": "2"}))]
        assert messages(*longer)[:3] == messages(*history)
