"""What this node can run: asked of its machine at the start, and again while it serves, because an operator may
install a runtime or build an image meanwhile."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Sequence
from typing import Any

from polar import __version__, registry
from polar.config import Config, PermitConfig
from polar.engines.base import EngineInfo
from polar.errors import PolarError
from polar.harnesses.programs.install import cached
from polar.types import PROTOCOL, NodeAbilities, Spec
from polar.types.service.abilities import MAX_IMAGES

LOOK_AGAIN_S = 60.0
PROBE_S = 60.0
"""Time limit for one runtime, which may hang with its daemon."""

log = logging.getLogger("polar.node")


class MachineSurvey:
    """A runtime that worked once is not tried again: the node's health checks notice when it fails."""

    def __init__(self, config: Config, engine: EngineInfo) -> None:
        self._config = config
        self._engine = engine
        self._working: set[str] = set()

    async def look(self) -> NodeAbilities:
        offered = self._offered()
        unproven = [name for name in offered if name not in self._working]
        works = await asyncio.gather(*(_works(name) for name in unproven))
        self._working |= {name for name, well in zip(unproven, works, strict=True) if well}
        runtimes = [name for name in offered if name in self._working]
        images = await asyncio.gather(*(_images(name, self._config) for name in runtimes))
        return NodeAbilities(
            polar=__version__,
            protocol=PROTOCOL,
            runtimes=tuple(runtimes),
            harnesses=tuple(await asyncio.to_thread(_harnesses)),
            modules=self._config.node.allowed_modules,
            images={name: found for name, found in zip(runtimes, images, strict=True) if found is not None},
            engine=self._engine.name[:200],
            model=self._engine.model[:1000],
            permits=tuple(sorted(_permitted(self._config.permits))),
            labels=self._config.node.labels,
        )

    def _offered(self) -> Sequence[str]:
        chosen = self._config.node.runtimes
        return sorted(registry.BUILT_IN["runtime"] if chosen is None else chosen)


def _permitted(permits: PermitConfig) -> list[str]:
    """What tasks may ask of the machine. Which folders they may mount is the node's own check: only it can resolve
    their links."""
    asked = {"build": permits.build, "mounts": permits.mounts, "prepare_network": permits.prepare_network}
    return [name for name, given in asked.items() if given]


async def _works(name: str) -> bool:
    try:
        async with asyncio.timeout(PROBE_S):
            return not await registry.find("runtime", name).lacking()
    except Exception as error:  # a probe that fails in any way says that the runtime does not work
        log.warning("cannot tell whether the runtime %s works: %s", name, str(error) or type(error).__name__)
        return False


async def _images(name: str, config: Config) -> tuple[str, ...] | None:
    """None: any image, or more than the server has to know."""
    try:
        async with asyncio.timeout(PROBE_S):
            found: tuple[str, ...] | None = await registry.find("runtime", name).images(config.permits)
    except Exception as error:  # as above; the sessions find out
        log.warning("cannot list the images of the runtime %s: %s", name, str(error) or type(error).__name__)
        return None
    return None if found is None or len(found) > MAX_IMAGES else found


def _harnesses() -> list[str]:
    """Those whose packages are here, or can be fetched."""
    can_fetch = shutil.which("npm") is not None
    return [name for name in sorted(registry.BUILT_IN["harness"]) if can_fetch or _is_here(name)]


def _is_here(name: str) -> bool:
    try:
        harness: Any = registry.make("harness", Spec(name=name))
    except PolarError:  # such as one with an option that has no default: it installs nothing
        return True
    return all(cached(pack) is not None for pack in harness.requirements())
