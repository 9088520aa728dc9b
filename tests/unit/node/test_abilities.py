"""What a node finds on its machine, and that the server hears of a change."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from polar import registry
from polar.config import Config, PermitConfig
from polar.engines.base import EngineInfo
from polar.node import abilities
from polar.node.abilities import MachineSurvey
from polar.types import PROTOCOL
from polar.types.service.abilities import MAX_IMAGES

ENGINE = EngineInfo(name="scripted", model="tiny", context_tokens=100, logprob_mode="raw", parallel=1)


class FakeRuntime:
    """A runtime as the survey sees it."""

    lacks = ""
    found: tuple[str, ...] | None = None
    asked = 0

    @classmethod
    async def lacking(cls) -> str:
        cls.asked += 1
        return cls.lacks

    @classmethod
    async def images(cls, permits: PermitConfig) -> tuple[str, ...] | None:
        return cls.found


@pytest.fixture
def runtimes(monkeypatch: pytest.MonkeyPatch) -> dict[str, type[FakeRuntime]]:
    """`good` and `bad`, in place of those of Polar."""
    made = {name: type(name, (FakeRuntime,), {}) for name in ("good", "bad")}
    made["bad"].lacks = "it is not installed"
    monkeypatch.setitem(registry.BUILT_IN, "runtime", dict.fromkeys(made, "x:Y"))
    known = registry.find

    def find(kind: str, name: str) -> type[Any]:
        return made[name] if kind == "runtime" else known(kind, name)

    monkeypatch.setattr(registry, "find", find)
    return made


def survey(permits: dict[str, Any] | None = None, **node: Any) -> MachineSurvey:
    return MachineSurvey(Config.model_validate({"node": node, "permits": permits or {}}), ENGINE)


async def test_a_node_lists_the_runtimes_that_work(runtimes: dict[str, type[FakeRuntime]]) -> None:
    found = await survey(labels=["gpu"], allowed_modules=["mine"]).look()
    assert (found.runtimes, found.engine, found.model) == (("good",), "scripted", "tiny")
    assert (found.labels, found.modules, found.protocol) == (("gpu",), ("mine",), PROTOCOL)
    assert found.images == {} and "shell" in found.harnesses


async def test_what_is_installed_later_is_found_and_what_works_is_not_tried_again(
    runtimes: dict[str, type[FakeRuntime]],
) -> None:
    machine = survey()
    await machine.look()
    runtimes["bad"].lacks = ""
    runtimes["good"].found = ("new",)
    again = await machine.look()
    assert (again.runtimes, again.images) == (("bad", "good"), {"good": ("new",)})
    assert (runtimes["good"].asked, runtimes["bad"].asked) == (1, 2)


async def test_the_operator_chooses_among_them(runtimes: dict[str, type[FakeRuntime]]) -> None:
    assert (await survey(runtimes=["bad"]).look()).runtimes == ()
    assert runtimes["good"].asked == 0


async def test_a_runtime_that_fails_or_hangs_is_left_out(
    runtimes: dict[str, type[FakeRuntime]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> str:
        raise OSError("no such daemon")

    async def hang() -> str:
        await asyncio.Event().wait()
        return ""

    monkeypatch.setattr(abilities, "PROBE_S", 0.05)
    monkeypatch.setattr(runtimes["good"], "lacking", fail)
    monkeypatch.setattr(runtimes["bad"], "lacking", hang)
    assert (await survey().look()).runtimes == ()


@pytest.mark.usefixtures("runtimes")
async def test_what_its_operator_permits_is_listed() -> None:
    assert (await survey().look()).permits == ()
    assert (await survey({"mounts": ["/data"], "build": True}).look()).permits == ("build", "mounts")


async def test_too_many_images_are_not_listed(runtimes: dict[str, type[FakeRuntime]]) -> None:
    runtimes["good"].found = tuple(f"image-{number}" for number in range(MAX_IMAGES + 1))
    assert (await survey().look()).images == {}


async def test_without_npm_only_what_is_cached_can_run(
    runtimes: dict[str, type[FakeRuntime]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(abilities.shutil, "which", lambda _: None)
    monkeypatch.setattr(abilities, "cached", lambda _: None)
    assert (await survey().look()).harnesses == ("shell",)
