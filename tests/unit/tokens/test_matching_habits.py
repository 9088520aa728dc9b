"""What a harness does to its history that does not make it another history, rule by rule, and what just misses."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.tokens.matching import Matcher
from polar.types import ArgumentRewrite, Image, Matching, Message, Tool, ToolCall, VolatileLine

EDIT = Tool(
    "edit",
    parameters={
        "properties": {
            "path": {"type": "string"},
            "all": {"type": "boolean", "default": False},
            "count": {"type": ["integer", "null"], "default": 0},
            "changes": {"type": "array"},
            "note": {"type": ["string", "number"]},
            "strange": "no schema",
        }
    },
)
STRICT = Matcher()
DEFAULTS = Matcher(Matching(adds_defaults=True))
COERCING = Matcher(Matching(coerces_arguments=True))
LOWERING = Matcher(Matching(lowers_tool_names=True))
REWRITING = Matcher(Matching(argument_rewrites=(ArgumentRewrite("edit", "path", r"\A(?:\./)+"),)))
DATED = Matcher(Matching(volatile_lines=(VolatileLine("system", r"Today is \w+\."),)))


def call(arguments: dict[str, Any], name: str = "edit") -> Message:
    spelled = orjson.dumps(arguments).decode()
    return Message("assistant", tool_calls=(ToolCall(name, spelled, "call_1"),))


def same(matcher: Matcher, a: Message, b: Message, tools: tuple[Tool, ...] = (EDIT,)) -> bool:
    declared = matcher.declarations(tools)
    return matcher.key(a, declared) == matcher.key(b, declared)


class TestDefaults:
    def test_an_argument_that_says_what_the_schema_says_is_as_good_as_none(self) -> None:
        stored, again = call({"path": "a"}), call({"all": False, "path": "a", "count": 0.0})
        assert same(DEFAULTS, stored, again) and not same(STRICT, stored, again)
        assert DEFAULTS.tolerances(stored, again) == ("default_arguments",)

    @pytest.mark.parametrize(
        "again",
        [
            {"path": "a", "all": True},
            {"path": "a", "all": 0},
            {"path": "a", "all": None},
            {"path": "a", "count": False},
            {"path": "a", "other": False},
            {"path": "a", "strange": False},
            {"all": False},
        ],
        ids=["another", "0 is not false", "null is not false", "false is not 0", "unknown", "no schema", "less"],
    )
    def test_anything_else_is_another_call(self, again: dict[str, Any]) -> None:
        assert not same(DEFAULTS, call({"path": "a"}), call(again))

    def test_what_another_tool_takes_as_its_default_does_not_count(self) -> None:
        assert not same(DEFAULTS, call({}, "other"), call({"all": False}, "other"))
        assert not same(DEFAULTS, call({}), call({"all": False}), tools=())


class TestCoercion:
    def test_a_text_that_spells_what_the_schema_wants_is_that_value(self) -> None:
        stored = call({"all": "true", "count": "5.0", "changes": '[ {"a": 1.0} ]'})
        again = call({"all": True, "count": 5, "changes": [{"a": 1}]})
        assert same(COERCING, stored, again) and not same(STRICT, stored, again)
        assert COERCING.tolerances(stored, again) == ("arguments_coerced",)

    @pytest.mark.parametrize(
        ("stored", "again"),
        [
            ({"path": "5"}, {"path": 5}),
            ({"note": "5"}, {"note": 5}),
            ({"all": "1"}, {"all": 1}),
            ({"all": "True"}, {"all": True}),
            ({"count": "five"}, {"count": 5}),
            ({"count": "5"}, {"count": 6}),
            ({"count": ""}, {"count": 0}),
            ({"changes": '{"a": 1}'}, {"changes": {"a": 1}}),
            ({"unknown": "5"}, {"unknown": 5}),
        ],
    )
    def test_a_text_where_a_text_is_wanted_stays_one(self, stored: dict[str, Any], again: dict[str, Any]) -> None:
        assert not same(COERCING, call(stored), call(again))

    def test_a_default_may_be_spelled_as_a_text(self) -> None:
        both = Matcher(Matching(adds_defaults=True, coerces_arguments=True))
        assert same(both, call({"path": "a", "all": "false"}), call({"path": "a"}))


class TestRewrites:
    def test_what_the_harness_takes_away_is_taken_away_on_both_sides(self) -> None:
        stored, again = call({"path": "././a"}), call({"path": "./a"})
        assert same(REWRITING, stored, again) and not same(STRICT, stored, again)
        assert REWRITING.tolerances(stored, again) == ("argument_rewritten",)

    def test_only_in_the_argument_and_the_tool_that_are_named(self) -> None:
        assert not same(REWRITING, call({"path": "a/./b"}), call({"path": "a/b"}))
        assert not same(REWRITING, call({"note": "./a"}), call({"note": "a"}))
        assert not same(REWRITING, call({"path": "./a"}, "other"), call({"path": "a"}, "other"))
        assert not same(REWRITING, call({"path": ["./a"]}), call({"path": ["a"]}))


class TestToolNames:
    def test_a_name_in_capitals_is_the_tool_that_is_offered(self) -> None:
        stored, again = call({"path": "a"}, "EDIT"), call({"path": "a"}, "edit")
        assert same(LOWERING, stored, again) and not same(STRICT, stored, again)
        assert LOWERING.tolerances(stored, again) == ("name_lowered",)

    def test_where_both_are_offered_they_are_two(self) -> None:
        stored, again = call({}, "EDIT"), call({}, "edit")
        assert not same(LOWERING, stored, again, tools=(EDIT, Tool("EDIT")))
        assert not same(LOWERING, stored, again, tools=())

    def test_another_tool_in_its_place_is_another_call(self) -> None:
        """A harness that writes a call it cannot run as one of a tool for such calls has written another call."""
        tools = (EDIT, Tool("invalid"))
        stored = call({"path": 1}, "no_such_tool")
        assert not same(LOWERING, stored, call({"tool": "no_such_tool", "error": "unknown"}, "invalid"), tools)


class TestVolatileLines:
    def test_another_day_is_the_same_message(self) -> None:
        before, now = (
            Message("system", "Be kind.\nToday is Monday.\nEnd"),
            Message("system", "Be kind.\nToday is Tuesday.\nEnd"),
        )
        assert same(DATED, before, now) and not same(STRICT, before, now)
        assert DATED.tolerances(before, now) == ("volatile_line",)

    @pytest.mark.parametrize(
        "other",
        [
            "Be kind.\nEnd",
            "Be kind.\n\nEnd",
            "Be kind.\nToday is Monday. Be rude.\nEnd",
            "Be kind. Today is Monday.\nEnd",
            "Be kind.\nToday is Monday.\nToday is Monday.\nEnd",
            "Be rude.\nToday is Monday.\nEnd",
            "Be kind.\nEnd\nToday is Monday.",
        ],
    )
    def test_it_hides_no_other_difference(self, other: str) -> None:
        assert not same(DATED, Message("system", "Be kind.\nToday is Monday.\nEnd"), Message("system", other))

    @pytest.mark.parametrize("role", ["user", "tool", "assistant"])
    def test_lines_of_other_roles_are_not_volatile(self, role: Any) -> None:
        assert not same(DATED, Message(role, "Today is Monday."), Message(role, "Today is Tuesday."))


class TestNumbers:
    """For every harness: JavaScript has no other numbers than doubles."""

    @pytest.mark.parametrize(
        ("stored", "again"),
        [
            ("12345678901234567890", "12345678901234567000"),
            ("123456789012345680000000", "1.2345678901234569e+23"),
            ("1E-7", "1e-7"),
            ("-0.0", "0"),
            ("0.10000000000000000001", "0.1"),
        ],
    )
    def test_a_number_is_what_a_double_holds(self, stored: str, again: str) -> None:
        before, now = (Message("assistant", tool_calls=(ToolCall("f", f'{{"n": {n}}}'),)) for n in (stored, again))
        assert same(STRICT, before, now)
        assert STRICT.tolerances(before, now) == ("arguments_reformatted",)

    def test_up_to_there_each_is_its_own(self) -> None:
        assert not same(STRICT, call({"n": 2**53 - 1}), call({"n": 2**53 - 2}))
        assert not same(STRICT, call({"n": 1}), call({"n": True}))


def test_another_picture_is_another_message() -> None:
    shown = [Message("user", "Look.", images=(Image(f"data:image/png;base64,{data}", 0),)) for data in "ab"]
    assert not same(STRICT, *shown) and not same(STRICT, shown[0], Message("user", "Look."))


def test_several_differences_are_all_named() -> None:
    matcher = Matcher(Matching(adds_defaults=True, coerces_arguments=True, lowers_tool_names=True))
    stored, again = call({"count": "5"}, "EDIT"), call({"count": 5, "all": False})
    assert same(matcher, stored, again)
    assert matcher.tolerances(stored, again) == ("name_lowered", "arguments_coerced", "default_arguments")


arguments = st.dictionaries(
    st.sampled_from(["path", "all", "count", "changes", "note"]),
    st.sampled_from(["", "a", "./a", "true", "false", "5", "[]", True, False, None, 0, 5, 1.0, []]),
)


@given(arguments, arguments)
def test_a_rule_that_is_off_changes_nothing_and_one_that_is_on_only_adds(
    a: dict[str, Any], b: dict[str, Any]
) -> None:
    every = Matcher(
        Matching(
            adds_defaults=True,
            coerces_arguments=True,
            lowers_tool_names=True,
            argument_rewrites=(ArgumentRewrite("edit", "path", r"\A(?:\./)+"),),
        )
    )
    stored, again = call(a), call(b)
    if same(STRICT, stored, again):
        assert same(every, stored, again)
    if same(every, stored, again):
        assert (every.tolerances(stored, again) == ()) == (stored == again)
