"""What a Dockerfile would make the Docker Engine download."""

from __future__ import annotations

import pytest

from polar.errors import RuntimeFailure
from polar.runtimes.docker.dockerfile import downloads_of

STAGES = """
# syntax comes first
ARG VERSION=3.12
ARG BASE
FROM python:${VERSION}-slim AS builder
ARG VERSION=ignored
RUN echo FROM nothing
FROM --platform=linux/amd64 $BASE
COPY --from=builder /a /b
COPY --from=0 /a /b
COPY --from=registry.example/tool:1 /x /y
from Builder as again
FROM scratch
"""


def test_images_are_those_of_from_and_copy_but_not_its_own_stages() -> None:
    found = downloads_of(STAGES, {"BASE": "debian:12"})
    assert found.images == ("python:3.12-slim", "debian:12", "registry.example/tool:1")
    assert found.addresses == ()


def test_a_value_of_the_task_replaces_the_default_of_an_argument() -> None:
    assert downloads_of(STAGES, {"BASE": "b", "VERSION": "3.13"}).images[0] == "python:3.13-slim"


def test_a_default_in_the_variable_counts() -> None:
    assert downloads_of("FROM ${BASE:-debian:12}\n", {}).images == ("debian:12",)


def test_an_image_that_cannot_be_known_is_refused() -> None:
    with pytest.raises(RuntimeFailure, match=r"'\$BASE' of the Dockerfile has no value"):
        downloads_of(STAGES, {})


@pytest.mark.parametrize(
    ("line", "address"),
    [
        ("ADD https://host/a.tgz /a", "https://host/a.tgz"),
        ("ADD --chown=1 \\\n  http://host/a /a", "http://host/a"),
        ('ADD ["http://host/a", "/a"]', "http://host/a"),
        ("ADD git@host:x.git /a", "git@host:x.git"),
        ("ADD $SOURCE /a", "$SOURCE"),
        ("ONBUILD ADD ftp://host/a /a", "ftp://host/a"),
    ],
)
def test_what_add_may_fetch_is_found(line: str, address: str) -> None:
    assert downloads_of(f"FROM scratch\n{line}\n", {}).addresses == (address,)


def test_files_that_add_takes_from_the_context_are_no_addresses() -> None:
    assert downloads_of("FROM scratch\nADD a.tgz b /a\n", {}).addresses == ()


def test_another_escape_character_continues_lines() -> None:
    text = "# escape=`\nFROM scratch\nADD `\n http://host/a /a\n"
    assert downloads_of(text, {}).addresses == ("http://host/a",)
