"""The engine that `polar train` pushes weights into. A `torch` engine without an address gets one sampler for the
trainer and all nodes."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import orjson

if TYPE_CHECKING:
    from polar.config import Config

KEY_VARIABLE = "POLAR_SAMPLER_KEY"


@asynccontextmanager
async def training_engine(config: Config, model: str) -> AsyncGenerator[Config]:
    """The config with an engine whose address is known, while the body runs."""
    from polar import registry
    from polar.engines.torch.engine import TorchEngine, TorchOptions, TorchProcess

    if config.engine.name != "torch" or "url" in config.engine.options:
        yield config
        return
    options = registry.options_of("engine", TorchEngine, config.engine.options | {"model": model})
    assert isinstance(options, TorchOptions)
    key = secrets.token_urlsafe(24)
    process = await TorchProcess.spawn()
    try:
        address = await process.ready(await options.settings(key))
        os.environ[KEY_VARIABLE] = key  # nodes and trainer find it there; it is in no file
        given = {"url": address, "api_key_env": KEY_VARIABLE}
        yield config.model_copy(update={"engine": config.engine.model_copy(update={"options": given})})
    finally:
        await process.stop()


def write_config(config: Config, path: Path) -> Path:
    """As a polar.toml, for child processes."""
    values = config.model_dump(mode="json", exclude_none=True)
    path.write_text("".join(f"{name} = {_toml(value)}\n" for name, value in values.items()))
    return path


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value).items()
        return "{" + ", ".join(f"{_toml(name)} = {_toml(each)}" for name, each in items) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(each) for each in cast("list[Any]", value)) + "]"
    return orjson.dumps(value).decode()  # numbers, texts, true and false are the same in both
