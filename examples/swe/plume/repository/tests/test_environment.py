"""Templates in a folder."""

import pytest

from plume import Environment, TemplateError, TemplateNotFound


@pytest.fixture
def folder(tmp_path):
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "head.html").write_text("<h1>{{ title }}</h1>")
    (pages / "page.html").write_text('{% include "head.html" %}{{ text }}')
    return pages


def test_a_template_of_the_folder(folder):
    assert Environment(folder).render("head.html", title="A") == "<h1>A</h1>"


def test_an_included_template_sees_the_names(folder):
    assert Environment(folder).render("page.html", title="A", text="B") == "<h1>A</h1>B"


def test_a_template_is_kept(folder):
    pages = Environment(folder)
    assert pages.get("head.html") is pages.get("head.html")


def test_a_missing_template(folder):
    with pytest.raises(TemplateNotFound, match="nothing"):
        Environment(folder).render("nothing.html")


def test_a_template_outside_the_folder(folder):
    (folder.parent / "secret.html").write_text("secret")
    with pytest.raises(TemplateNotFound):
        Environment(folder).render("../secret.html")


def test_templates_that_include_each_other(folder):
    (folder / "a.html").write_text('{% include "a.html" %}')
    with pytest.raises(TemplateError, match="too deeply"):
        Environment(folder).render("a.html")
