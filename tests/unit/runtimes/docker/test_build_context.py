"""The context of a build: same content, same digest; `.dockerignore` counts."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

from polar.errors import RuntimeFailure
from polar.runtimes.docker.build_context import IgnoreRules, digest_of, pack_context
from polar.runtimes.docker.options import DockerBuild


@pytest.fixture
def context(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    (tmp_path / "src" / "a.txt").write_text("a")
    return tmp_path


def packed(context: Path, **build: Any) -> io.BytesIO:
    tar = io.BytesIO()
    pack_context(DockerBuild(context=str(context), **build), tar)
    return tar


def names_in(context: Path) -> list[str]:
    with tarfile.open(fileobj=packed(context)) as tar:
        return sorted(tar.getnames())


def digest(context: Path, bases: dict[str, str] | None = None, **build: Any) -> str:
    return digest_of(packed(context, **build), DockerBuild(context=str(context), **build), bases or {})


def test_the_digest_depends_on_content_and_not_on_times(context: Path) -> None:
    first = digest(context)
    os.utime(context / "src" / "a.txt", (1, 1))
    assert digest(context) == first
    (context / "src" / "a.txt").write_text("b")
    assert digest(context) != first


@pytest.mark.parametrize("change", [{"target": "last"}, {"dockerfile": "src/a.txt"}])
def test_the_digest_depends_on_the_recipe(context: Path, change: dict[str, str]) -> None:
    assert digest(context, **change) != digest(context)


def test_the_digest_depends_on_the_images_below(context: Path) -> None:
    assert digest(context, {"base": "sha256:1"}) != digest(context, {"base": "sha256:2"})


def test_a_mode_is_content(context: Path) -> None:
    first = digest(context)
    (context / "src" / "a.txt").chmod(0o755)
    assert digest(context) != first


def test_ignored_files_are_left_out_and_the_dockerfile_is_not(context: Path) -> None:
    (context / ".dockerignore").write_text("# comment\n*\n!src/a.txt\n")
    (context / "src" / "b.txt").write_text("b")
    assert names_in(context) == [".dockerignore", "Dockerfile", "src/a.txt"]


@pytest.mark.parametrize(
    ("pattern", "path", "ignored"),
    [
        ("*.log", "a.log", True),
        ("*.log", "deep/a.log", False),
        ("**/*.log", "deep/down/a.log", True),
        ("**/*.log", "a.log", True),
        ("/node_modules/", "node_modules/x/y", True),
        ("a?c", "abc", True),
        ("a[bc]d", "acd", True),
        ("./tmp", "tmp/file", True),
        ("src", "srcs", False),
    ],
)
def test_patterns(pattern: str, path: str, ignored: bool) -> None:
    assert IgnoreRules([pattern]).leaves_out(path) is ignored


def test_links_are_not_followed(context: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    secret = tmp_path_factory.mktemp("outside") / "secret"
    secret.write_text("secret")
    (context / "link").symlink_to(secret)
    with tarfile.open(fileobj=packed(context)) as tar:
        assert tar.getmember("link").issym()
    assert b"secret\n" not in packed(context).getvalue()


def test_a_dockerfile_that_leads_out_of_the_context_is_refused(
    context: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside") / "Dockerfile"
    outside.write_text("FROM scratch\n")
    (context / "Dockerfile").unlink()
    (context / "Dockerfile").symlink_to(outside)
    with pytest.raises(RuntimeFailure, match="leads out of the context"):
        packed(context)


def test_a_missing_dockerfile_or_context_is_named(context: Path) -> None:
    with pytest.raises(RuntimeFailure, match=r"has no Other\.file"):
        packed(context, dockerfile="Other.file")
    with pytest.raises(RuntimeFailure, match="is not a folder of this node"):
        packed(context / "none")
