"""Values, conditions and loops."""

import pytest

from plume import Environment, TemplateError


def render(source, **names):
    return Environment().from_string(source).render(**names)


def test_text_and_values():
    assert render("Hello {{ name }}!", name="Ada") == "Hello Ada!"


def test_fields_and_elements():
    assert render("{{ order.items.0.name }}", order={"items": [{"name": "pen"}]}) == "pen"


def test_what_is_missing_prints_nothing():
    assert render("[{{ a.b.c }}]") == "[]"


def test_private_attributes_are_not_visible():
    assert render("[{{ text.__class__ }}]", text="a") == "[]"


def test_signs_of_html_are_escaped():
    assert render("{{ text }}", text="<b>") == "&lt;b&gt;"


def test_safe_text_is_not():
    assert render("{{ text | safe }}", text="<b>") == "<b>"


def test_filters_follow_each_other():
    assert render('{{ name | trim | upper | replace:"A","E" }}', name=" ada ") == "EDE"


def test_a_default():
    assert render('{{ name | default:"nobody" }}') == "nobody"


def test_join():
    assert render('{{ names | join:"-" }}', names=["a", "b"]) == "a-b"


def test_truncate_leaves_short_texts_alone():
    assert render("{{ text | truncate:5 }}", text="abc") == "abc"


def test_if():
    source = "{% if a %}A{% else %}C{% endif %}"
    assert (render(source, a=1), render(source)) == ("A", "C")


def test_not():
    assert render("{% if not a %}no{% endif %}", a=0) == "no"


def test_loop():
    source = "{% for x in xs %}{{ loop.index }}{{ x }}{% if not loop.last %},{% endif %}{% endfor %}"
    assert render(source, xs=["a", "b", "c"]) == "1a,2b,3c"


def test_an_empty_loop():
    assert render("{% for x in xs %}x{% else %}none{% endfor %}", xs=[]) == "none"


def test_loops_in_loops():
    source = "{% for row in rows %}{% for x in row %}{{ x }}{% endfor %};{% endfor %}"
    assert render(source, rows=[[1, 2], [3]]) == "12;3;"


def test_set():
    assert render('{% set name = "Ada" %}{{ name }}') == "Ada"


def test_comments_print_nothing():
    assert render("a{# no #}b") == "ab"


def test_white_space_is_removed():
    assert render("a {%- if x -%} b {%- endif -%} c", x=1) == "abc"


def test_an_unknown_filter():
    with pytest.raises(TemplateError, match="no filter 'loud'"):
        render("{{ a | loud }}")


def test_a_loop_without_an_end():
    with pytest.raises(TemplateError, match=r"line 1: .*has no end"):
        render("{% for x in xs %}")


def test_a_wrong_end():
    with pytest.raises(TemplateError, match="unexpected"):
        render("{% if a %}{% endfor %}")
