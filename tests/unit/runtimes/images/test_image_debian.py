"""Where the packages of a Debian image come from: the machine's own sources, and nothing besides."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from polar.errors import RuntimeFailure
from polar.runtimes.images.catalog import Recipe
from polar.runtimes.images.debian import (
    DEFAULT_PACKAGES,
    Source,
    debian_recipe,
    mirrored,
    mmdebstrap,
    read_sources,
    versions_in,
)

PARAGRAPHS = """
Types: deb deb-src
URIs: http://mirror.test/debian
# a comment in the middle
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: /usr/share/keyrings/debian.gpg

Types: deb
URIs: http://mirror.test/vendor
Suites: nodistro
Components: main

Types: deb
Enabled: no
URIs: http://mirror.test/off
Suites: bookworm
Components: main

Types: deb-src
URIs: http://mirror.test/sources
Suites: bookworm
Components: main
"""
KEY = "\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n mQINBF\n -----END PGP PUBLIC KEY BLOCK-----"


def test_both_ways_to_write_sources_are_read(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(
        "# deb http://mirror.test/old bookworm main\n"
        "deb http://mirror.test/a bookworm main contrib # ours\n"
        "deb [arch=amd64 signed-by=/k.gpg,/l.gpg] http://mirror.test/b bookworm-security main\n"
        "deb-src http://mirror.test/a bookworm main\n"
    )
    (tmp_path / "sources.list.d/debian.sources").write_text(PARAGRAPHS)
    (tmp_path / "sources.list.d/ignored.txt").write_text("deb http://mirror.test/no bookworm main\n")
    assert read_sources(tmp_path) == [
        Source("http://mirror.test/a", ("bookworm",), "main contrib"),
        Source("http://mirror.test/b", ("bookworm-security",), "main", "/k.gpg /l.gpg"),
        Source(
            "http://mirror.test/debian",
            ("bookworm", "bookworm-updates"),
            "main contrib",
            "/usr/share/keyrings/debian.gpg",
        ),
        Source("http://mirror.test/vendor", ("nodistro",), "main"),
    ]


def test_only_the_distribution_itself_is_asked() -> None:
    sources = [
        Source("u:/debian", ("bookworm", "bookworm-updates", "bookworm-backports"), "main"),
        Source("u:/security", ("bookworm-security",), "main", "/k.gpg"),
        Source("u:/vendor", ("nodistro",), "main"),
    ]
    assert mirrored(sources, "bookworm", "bookworm") == [
        Source("u:/debian", ("bookworm", "bookworm-updates"), "main"),
        Source("u:/security", ("bookworm-security",), "main", "/k.gpg"),
    ]


def test_another_release_comes_from_the_same_places() -> None:
    sources = [Source("u:/debian", ("bookworm", "bookworm-updates"), "main")]
    assert mirrored(sources, "bookworm", "trixie") == [Source("u:/debian", ("trixie", "trixie-updates"), "main")]


def test_a_machine_may_call_its_release_stable() -> None:
    sources = [Source("u:/debian", ("stable",), "main")]
    assert mirrored(sources, "bookworm", "bookworm") == [Source("u:/debian", ("bookworm",), "main")]


def test_a_machine_without_such_a_source_is_refused() -> None:
    with pytest.raises(RuntimeFailure, match="no source of bookworm packages from which to get trixie"):
        mirrored([Source("u:/security", ("bookworm-security",), "main")], "bookworm", "trixie")


def test_a_key_that_stands_in_the_sources_stays_whole(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    text = f"Types: deb\nURIs: u:/debian\nSuites: bookworm\nComponents: main\nSigned-By:{KEY}\n"
    (tmp_path / "sources.list.d/debian.sources").write_text(text)
    (source,) = read_sources(tmp_path)
    assert source.signed_by == KEY
    again = source.paragraph()
    (tmp_path / "sources.list.d/debian.sources").write_text(again)
    assert read_sources(tmp_path) == [source]


def test_the_machines_way_to_its_mirror_is_carried_over_and_nothing_else() -> None:
    configured = (
        'Acquire::http::Proxy "http://proxy.test:3128";\n'
        'Acquire::http::Proxy::direct.test "DIRECT";\n'
        'Acquire::Check-Valid-Until "false";\n'
        'Acquire::Retries "";\n'
        'Acquire::IndexTargets::deb::Packages::MetaKey "x";\n'
    )
    chosen = Recipe(kind="debian", packages=("git", "procps"), suite="bookworm")
    argv = mmdebstrap(chosen, Path("polar.sources"), Path("root.tar"), configured)
    assert [word for word in argv if word.startswith("--aptopt")] == [
        '--aptopt=Acquire::http::Proxy "http://proxy.test:3128"',
        '--aptopt=Acquire::http::Proxy::direct.test "DIRECT"',
        '--aptopt=Acquire::Check-Valid-Until "false"',
    ]
    assert "--include=git,procps" in argv
    assert argv[-3:] == ("bookworm", "root.tar", "polar.sources")


def test_a_recipe_is_in_order_whatever_the_order_of_words() -> None:
    assert debian_recipe(["procps", "git", "git"], "bookworm") == debian_recipe(["git", "procps"], "bookworm")
    assert debian_recipe(None, "bookworm").packages == tuple(sorted(DEFAULT_PACKAGES))
    assert debian_recipe([], "bookworm").packages == ()


@pytest.mark.parametrize(("packages", "suite"), [(["git;rm"], "bookworm"), (["-x"], "bookworm"), (["git"], "a b")])
def test_words_that_are_no_names_go_no_further(packages: list[str], suite: str) -> None:
    with pytest.raises(RuntimeFailure, match="is not a Debian"):
        debian_recipe(packages, suite)


def test_versions_are_those_of_what_is_installed(tmp_path: Path) -> None:
    status = (
        b"Package: git\nStatus: install ok installed\nVersion: 1:2.39.5-0\nDescription: fast\n .\n more\n\n"
        b"Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n"
    )
    with tarfile.open(tmp_path / "root.tar", "w") as tar:
        entry = tarfile.TarInfo("./var/lib/dpkg/status")
        entry.size = len(status)
        tar.addfile(entry, io.BytesIO(status))
    assert versions_in(tmp_path / "root.tar") == {"git": "1:2.39.5-0"}
