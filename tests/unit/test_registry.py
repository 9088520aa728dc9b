"""Plug-ins by name: ours, users' own, and names that lead nowhere."""

from __future__ import annotations

import pytest

from polar import registry
from polar.errors import ConfigError, UnknownPlugin
from polar.types import Spec, Strict


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k, names in registry.BUILT_IN.items() for n in names])
def test_every_name_we_ship_loads_and_has_options(kind: str, name: str) -> None:
    assert hasattr(registry.find(kind, name), "Options")


class Mine:
    class Options(Strict):
        size: int = 1

    def __init__(self, options: Options) -> None:
        self.options = options


def test_a_class_of_ones_own() -> None:
    made = registry.make("builder", Spec(name=f"{__name__}:Mine", options={"size": 3}))
    assert made.options.size == 3


@pytest.mark.parametrize("name", ["pii", "", ":", "module:", ":Class"])
def test_an_unknown_name_lists_the_known_ones(name: str) -> None:
    with pytest.raises(
        UnknownPlugin,
        match=r"known: claude_code, codex, gemini_cli, opencode, pi, .*shell, or your own as 'module:Class'",
    ):
        registry.find("harness", name)


@pytest.mark.parametrize(
    "name", ["no.such.module:X", "polar.types:NoSuchClass", ".relative:X", "polar.types:ID_PATTERN"]
)
def test_what_cannot_be_a_plug_in_says_why(name: str) -> None:
    with pytest.raises(UnknownPlugin, match=r"cannot be loaded|not a plug-in"):
        registry.find("harness", name)


def test_wrong_options_name_the_field() -> None:
    with pytest.raises(ConfigError, match="builder Mine: size: Input should be a valid integer"):
        registry.make("builder", Spec(name=f"{__name__}:Mine", options={"size": "many"}))
    with pytest.raises(ConfigError, match="builder Mine: colour: Extra inputs"):
        registry.make("builder", Spec(name=f"{__name__}:Mine", options={"colour": "red"}))
