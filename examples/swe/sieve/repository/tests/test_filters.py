"""Filters over records."""

import pytest

from sieve import EvaluationProblem, SyntaxProblem, compile_filter

PEOPLE = [{"name": "Ada", "age": 36}, {"name": "Bob", "age": 17}, {"name": "Cy", "age": 70}]


def test_apply_keeps_the_order():
    assert [each["name"] for each in compile_filter("age >= 18").apply(PEOPLE)] == ["Ada", "Cy"]


def test_partition():
    adults, others = compile_filter("age >= 18").partition(PEOPLE)
    assert (len(adults), [each["name"] for each in others]) == (2, ["Bob"])


def test_matches():
    assert compile_filter("not (age > 20)").matches({"age": 20})


def test_strict_refuses_missing_fields():
    with pytest.raises(EvaluationProblem, match="'height'"):
        compile_filter("height > 1", strict=True).matches({})


def test_a_registered_function():
    even = compile_filter("even(age)")
    even.register("even", lambda number: number % 2 == 0)
    assert [each["name"] for each in even.apply(PEOPLE)] == ["Ada", "Cy"]


def test_strings_with_either_quote():
    assert compile_filter("name == \"Ada\" or name == 'Cy'").matches({"name": "Cy"})


def test_simple_escapes():
    assert compile_filter(r"text == 'a\tb\n'").matches({"text": "a\tb\n"})


def test_comments():
    assert compile_filter("age > 1 # years\nand age < 9").matches({"age": 5})


def test_a_syntax_error_has_a_place():
    with pytest.raises(SyntaxProblem) as problem:
        compile_filter("1 + * 2")
    assert (problem.value.line, problem.value.column) == (1, 5)


def test_a_string_without_an_end():
    with pytest.raises(SyntaxProblem, match="no end"):
        compile_filter("'abc")
