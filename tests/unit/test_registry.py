"""Plug-ins by name: ours, users' own, and names that lead nowhere."""

from __future__ import annotations

import sys
import tomllib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from polar import registry
from polar.errors import ConfigError, UnknownPlugin
from polar.types import Spec, Strict, TaskRequest

if TYPE_CHECKING:
    from polar.evaluators.base import Evidence


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


def test_a_plug_in_of_ours_without_its_packages_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("gguf", "polar.tokens.renderers.smollm2", "polar.tokens.renderers.gguf_vocabulary"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UnknownPlugin, match=r"pip install 'polar-rollout\[embedded\]'"):
        registry.find("renderer", "smollm2")


def test_every_extra_that_an_error_names_exists() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert {*registry.EXTRA_OF.values()} <= project["optional-dependencies"].keys()


def test_wrong_options_name_the_field() -> None:
    with pytest.raises(ConfigError, match=r"builder\.options\.size: input should be a valid integer"):
        registry.make("builder", Spec(name=f"{__name__}:Mine", options={"size": "many"}))
    with pytest.raises(ConfigError, match=r"builder\.options\.colour: unknown option"):
        registry.make("builder", Spec(name=f"{__name__}:Mine", options={"colour": "red"}))


def length(evidence: Evidence, words: tuple[str, ...], *, at_least: int = 2, json: bool = False) -> float:
    return float(len(words) >= at_least) + json


def anything(evidence: object, **options: int) -> float:
    return float(sum(options.values()))


async def soon(evidence: object) -> float:
    return 0.5


def no_evidence() -> float:
    return 1.0


def only_by_name(*, evidence: object) -> float:
    return 1.0


def unreadable(evidence: object, path: NoSuchType) -> float:  # pyright: ignore # noqa: F821
    return 1.0


halved = partial(anything, half=1)


def function(name: str, **options: object) -> Spec:
    return Spec(name=f"{__name__}:{name}", options=options)


@pytest.mark.parametrize(
    ("spec", "reward"),
    [
        (function("length", words=["red", "blue"]), 1.0),
        (function("length", words=["red"], at_least="1", json=True), 2.0),
        (function("anything", a=1, b=2), 3.0),
        (function("halved", a=1), 2.0),
    ],
)
def test_a_plain_function_is_an_evaluator_and_its_parameters_are_options(spec: Spec, reward: float) -> None:
    assert registry.make("evaluator", spec).evaluate(None) == reward


async def test_a_coroutine_function_too() -> None:
    assert await registry.make("evaluator", function("soon")).evaluate(None) == 0.5


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (function("length"), "words: missing"),
        (function("length", words=["red"], at_leats=1), "at_leats: unknown option; did you mean 'at_least'"),
        (function("length", words=["red"], at_least="few"), "at_least: input should be a valid integer"),
        (function("soon", fast=True), "fast: unknown option"),
        (function("no_evidence"), "must take the evidence as its first argument"),
        (function("only_by_name"), "must take the evidence as its first positional argument"),
        (function("unreadable"), "its annotations cannot be read: name 'NoSuchType' is not defined"),
        (function("Mine"), "has no method `evaluate`"),
        (Spec(name="polar.types:ID_PATTERN"), "a class with an `Options` model, or a function of the evidence"),
    ],
)
def test_a_wrong_evaluator_is_found_before_a_run(spec: Spec, problem: str) -> None:
    (found,) = registry.plugin_problems(TaskRequest(instruction="x", evaluator=spec))
    assert found.field[0] == "evaluator" and problem in found


def test_other_plug_ins_are_classes() -> None:
    with pytest.raises(UnknownPlugin, match="needs to be a class with an `Options` model"):
        registry.find("builder", f"{__name__}:length")
