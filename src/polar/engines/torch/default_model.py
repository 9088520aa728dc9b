"""The default model as a folder of safetensors, converted once from the GGUF file of the embedded engine.

As a program it converts: `python -m polar.engines.torch.default_model GGUF FOLDER`. It runs in a process of its
own, because the caller may be a node, which must not import PyTorch.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from polar.errors import EngineError
from polar.store.cache import cached_folder, run_filler
from polar.store.weights import GGUF_SHA256, default_weights

CACHE_FOLDER = f"weights/smollm2-135m-instruct-float32-{GGUF_SHA256[:16]}"


async def default_model() -> Path:
    """A folder with config, tokenizer and float32 weights; some seconds at the first call."""
    return await cached_folder(CACHE_FOLDER, _fill)


async def _fill(folder: Path) -> None:
    gguf = await default_weights()
    module = "polar.engines.torch.default_model"
    code, errors = await run_filler(
        *(sys.executable, "-m", module, str(gguf), str(folder)), env={"HF_HUB_OFFLINE": "1"}
    )
    if code != 0:
        tail = errors.strip()[-1000:]
        raise EngineError(f"cannot convert {gguf.name} into safetensors; the conversion ends with: {tail}")


def convert(gguf: Path, folder: Path) -> None:
    """Writes the weights of a GGUF file in float32, without the head if it is the embedding."""
    import safetensors.torch  # noqa: PLC0415 - an optional dependency
    import torch  # noqa: PLC0415 - an optional dependency
    import transformers  # noqa: PLC0415 - an optional dependency

    library: Any = transformers
    writer: Any = safetensors.torch
    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    # Versions with `GgufConfig` keep the quantised weights unless it says otherwise; older ones never do.
    config = library.GgufConfig(dequantize=True) if hasattr(library, "GgufConfig") else None
    more = {} if config is None else {"quantization_config": config}
    model = library.AutoModelForCausalLM.from_pretrained(dtype=torch.float32, **source, **more)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    writer.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    library.AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
