"""Where a server is and what opens it, as people write it down."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from polar.engines.llamacpp.engine import LlamaCppEngine, LlamaCppOptions
from polar.errors import ConfigError
from polar.registry import make
from polar.types import Spec


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("localhost:8080", "write it as http://host:port"),
        ("ftp://host", "write it as http://host:port"),
        ("http://me:secret@host", "name an environment variable in `api_key_env`"),
        ("http://host/?key=1", "leave out what follows `?`"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_with_the_fix(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        make("engine", Spec(name="llamacpp", options={"url": url}))


def test_an_address_may_end_as_people_paste_it() -> None:
    assert LlamaCppOptions(url="https://host:8080/base/v1/").url == "https://host:8080/base"


def test_the_engine_is_known_by_its_name() -> None:
    assert isinstance(make("engine", Spec(name="llamacpp", options={"url": "http://host:1"})), LlamaCppEngine)


def test_a_key_comes_from_the_environment_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_KEY", " from-the-environment ")
    assert LlamaCppOptions(url="http://host", api_key_env="LLAMA_KEY").api_key() == "from-the-environment"
    (tmp_path / "key").write_text("from-a-file\n")
    assert LlamaCppOptions(url="http://host", api_key_file=tmp_path / "key").api_key() == "from-a-file"
    assert LlamaCppOptions(url="http://host").api_key() == ""


def test_a_missing_key_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="environment has no POLAR_NO_SUCH_KEY"):
        LlamaCppOptions(url="http://host", api_key_env="POLAR_NO_SUCH_KEY").api_key()
    with pytest.raises(ConfigError, match="cannot read the key file"):
        LlamaCppOptions(url="http://host", api_key_file=tmp_path / "missing").api_key()


def test_a_key_in_clear_is_no_option() -> None:
    with pytest.raises(ConfigError, match="api_key"):
        make("engine", Spec(name="llamacpp", options={"url": "http://host:1", "api_key": "secret"}))
