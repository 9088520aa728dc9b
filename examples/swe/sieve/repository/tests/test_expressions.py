"""Values of expressions."""

import pytest

from sieve import EvaluationProblem, compile_filter


def value(text, **record):
    return compile_filter(text).value(record)


def test_arithmetic_prefers_products_to_sums():
    assert value("2 + 3 * 4") == 14
    assert value("(2 + 3) * 4") == 20


def test_powers_group_from_the_right():
    assert value("2 ** 3 ** 2") == 512


def test_minus_binds_less_than_a_power():
    assert value("-2 ** 2") == -4


def test_numbers():
    assert value("1_000") == 1000
    assert value("2.5") == 2.5
    assert value("1e3") == 1000.0


def test_fields_of_fields_and_elements():
    assert value("user.tags[1]", user={"tags": ["a", "b"]}) == "b"


def test_a_missing_field_is_null():
    assert value("nothing == null") is True


def test_a_default_for_a_missing_field():
    assert value("name ?? 'nobody'") == "nobody"
    assert value("name ?? 'nobody'", name="Ada") == "Ada"


def test_comparisons_can_be_chained():
    assert value("1 < x <= 5", x=5) is True
    assert value("1 < x <= 5", x=1) is False


def test_and_does_not_evaluate_its_right_side_without_need():
    assert value("x != null and x.size > 2") is False


def test_or_gives_the_first_true_value():
    assert value("a or b", a="", b="second") == "second"


def test_membership():
    assert value("'b' in tags", tags=["a", "b"]) is True
    assert value("'c' not in tags", tags=["a", "b"]) is True


def test_functions():
    assert value("upper(trim(name))", name=" ada ") == "ADA"
    assert value("len(tags) + max(1, 2)", tags=[1]) == 3


def test_an_unknown_function_has_no_value():
    with pytest.raises(EvaluationProblem, match="no function 'sum'"):
        value("sum(x)")


def test_a_sum_of_a_number_and_a_text_has_no_value():
    with pytest.raises(EvaluationProblem, match="cannot be applied"):
        value("1 + 'a'")
