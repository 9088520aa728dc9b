"""`/docs`: every operation is explained, and the page needs no other host."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser

import pytest

from polar.server.api_page import api_page
from polar.server.api_reference import ApiField, by_tag, operations_of, schemas_of
from polar.server.app import openapi_document


@pytest.fixture(scope="module")
def document() -> dict[str, object]:
    return openapi_document()


def test_every_operation_has_a_summary_and_a_description(document: dict[str, object]) -> None:
    operations = operations_of(document)
    assert {"GET /v1/tasks", "PUT /v1/policy"} <= {f"{each.method} {each.path}" for each in operations}
    unexplained = [f"{each.method} {each.path}" for each in operations if not each.summary or not each.description]
    assert unexplained == []


def test_summaries_are_written_by_hand(document: dict[str, object]) -> None:
    """FastAPI makes one of the function's name, such as `One`."""
    summaries = [each.summary for each in operations_of(document)]
    assert len({*summaries}) == len(summaries)
    assert [each for each in summaries if " " not in each and each != "Leave"] == []


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.targets: set[str] = set()
        self.ids: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name in ("href", "src"):
                self.targets.add(value or "")
            elif name == "id":
                self.ids.add(value or "")


def test_the_page_loads_nothing_and_links_only_to_itself(document: dict[str, object]) -> None:
    page = Links()
    text = api_page(document)
    page.feed(text)
    assert page.tags.isdisjoint({"script", "link", "img", "iframe"}) and "url(" not in text
    assert {target for target in page.targets if not target.startswith("#")} == {"openapi.json"}
    assert {target[1:] for target in page.targets if target.startswith("#")} <= page.ids


def test_the_page_shows_every_operation_and_type(document: dict[str, object]) -> None:
    text = api_page(document)
    for operation in operations_of(document):
        head = f"{operation.method}</span> {operation.path}</code>{html.escape(operation.summary)}"
        assert head in text
    for schema in schemas_of(document):
        assert f'id="type-{schema.name}"' in text
    assert len(re.findall("<h2", text)) == len(list(by_tag(operations_of(document)))) + 1


def test_what_a_document_says_cannot_become_markup() -> None:
    operation = {"summary": "<b>x</b>", "responses": {"200": {"content": {"text/<i>": {}}}}}
    text = api_page({"info": {"title": "<t>", "version": "1"}, "paths": {"/<p>": {"get": operation}}})
    assert "<b>" not in text and "<i>" not in text and "<t>" not in text
    assert "&lt;b&gt;x&lt;/b&gt;" in text and "/&lt;p&gt;" in text


def test_types_are_read_in_words() -> None:
    parameter = {"name": "ids", "in": "query", "schema": {"type": "array", "items": {"$ref": "#/x/Id"}}}
    one = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    body = {
        "requestBody": {"content": {"application/msgpack": {"schema": {"type": "string", "format": "binary"}}}}
    }
    paths = {"/x": {"post": {"parameters": [parameter, {"name": "n", "in": "path", "schema": one}], **body}}}
    (operation,) = operations_of({"paths": paths})
    assert operation.parameters == (
        ApiField("ids", "list of Id", False, "in the query"),
        ApiField("n", "string or null", False, "in the path"),
    )
    assert operation.body == "binary (application/msgpack)"
