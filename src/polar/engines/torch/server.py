"""The sampler as a program: `python -m polar.engines.torch.server --model FOLDER --port 8000`.

A `torch` engine starts it with `--child`: then it reads its settings as one line from stdin, writes its address to
stdout when it is ready, and exits when stdin closes. So it never outlives its parent, even one that is killed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import msgspec

from polar.engines.torch.batch import Batch
from polar.engines.torch.default_model import default_model
from polar.engines.torch.model import SamplerModel
from polar.engines.torch.prefixes import PrefixCache
from polar.engines.torch.routes import SamplerRoutes, Streams
from polar.engines.torch.settings import SamplerSettings
from polar.errors import PolarError
from polar.uvicorn_server import UvicornServer, address_of, listen


def main() -> None:
    if sys.argv[1:] == ["--child"]:
        settings = msgspec.json.decode(sys.stdin.buffer.readline(), type=SamplerSettings)
        Thread(target=_exit_with_parent, daemon=True).start()
    else:
        settings = settings_of(sys.argv[1:])
    replies = os.dup(1)
    os.dup2(2, 1)  # libraries print to stdout, too, which must carry only our one line
    try:
        asyncio.run(serve(settings, lambda address: os.write(replies, f"{address}\n".encode())))
    except PolarError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


def settings_of(arguments: list[str]) -> SamplerSettings:
    parser = argparse.ArgumentParser(prog="python -m polar.engines.torch.server", description=__doc__)
    parser.add_argument("--model", default="", help="folder of safetensors or Hugging Face id; none: SmolLM2-135M")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0: any free one; the address is printed")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16", "float16"))
    parser.add_argument("--context-tokens", type=int, default=8192)
    parser.add_argument("--parallel", type=int, default=4, help="sequences sampled at once")
    parser.add_argument("--threads", type=int, default=None, help="of PyTorch on a CPU")
    parser.add_argument("--prefix-cache-mib", type=int, default=2048)
    parser.add_argument("--api-key-env", default="", help="environment variable with a key that clients must send")
    chosen = vars(parser.parse_args(arguments))
    variable = chosen.pop("api_key_env")
    if variable and not os.environ.get(variable):
        parser.error(f"the environment has no {variable}")
    return SamplerSettings(**chosen, api_key=os.environ.get(variable, "") if variable else "")


async def serve(settings: SamplerSettings, ready: Callable[[str], object]) -> None:
    """Runs until the process ends. `ready` gets the address when requests are answered."""
    if not settings.model:
        settings = msgspec.structs.replace(settings, model=str(await default_model()))
    model = await asyncio.to_thread(SamplerModel.load, settings)
    streams = Streams()
    batch = Batch(model, PrefixCache(settings.prefix_cache_mib * 2**20), streams.deliver)
    Thread(target=_run, args=(batch,), daemon=True).start()
    app = SamplerRoutes(model, batch, streams, Path(settings.model).name).app(settings.api_key)
    server, listening = UvicornServer(app), listen(settings.host, settings.port)
    serving = asyncio.create_task(server.serve([listening]))
    await server.until_started(serving)
    ready(address_of(listening))
    await serving


def _run(batch: Batch) -> None:
    try:
        batch.run()
    except BaseException:  # after a failed step nothing is known about the rows
        traceback.print_exc()
        os._exit(1)


def _exit_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
