"""The engine that `polar train` pushes weights into."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from polar.toml.text import toml_table

if TYPE_CHECKING:
    from polar.config import Config


@asynccontextmanager
async def training_engine(config: Config, model: str) -> AsyncGenerator[Config]:
    """The config with an engine that trainer and nodes share, while the body runs. One that nodes would start for
    themselves is started here, once."""
    from polar import registry
    from polar.engines.base import Shareable

    engine = registry.make("engine", config.engine)
    if not isinstance(engine, Shareable):
        yield config
        return
    async with engine.shared(model) as options:
        yield config.model_copy(update={"engine": config.engine.model_copy(update={"options": options})})


def write_config(config: Config, path: Path) -> Path:
    """As a polar.toml, for child processes."""
    values = config.model_dump(mode="json", exclude_none=True)
    path.write_text(toml_table(values))
    return path
