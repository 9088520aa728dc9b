"""What the sampler is started with, by its parent or by a command line."""

from __future__ import annotations

from typing import Literal

import msgspec

DtypeName = Literal["auto", "float32", "bfloat16", "float16"]


class SamplerSettings(msgspec.Struct, frozen=True):
    model: str
    """A folder with safetensors, or the id of a model on the Hugging Face hub."""
    device: str = "auto"
    """auto: the GPU if there is one."""
    dtype: DtypeName = "auto"
    """auto: float32 on a CPU, bfloat16 on a GPU."""
    context_tokens: int = 8192
    parallel: int = 4
    threads: int | None = None
    """Of PyTorch on a CPU; None: its own choice."""
    prefix_cache_mib: int = 2048
    """Memory for the keys and values of ended sequences, whose tokens a later prompt may begin with."""
    host: str = "127.0.0.1"
    port: int = 0
    """0: any free one."""
    api_key: str = ""
