"""The child process of the embedded engine: llama.cpp's own server, from the xllamacpp wheel.

It reads one line of settings from stdin, writes one line with its address to stdout when it is ready, and exits
when stdin closes. So it never outlives its parent, even one that is killed.
"""

from __future__ import annotations

import os
import shutil
import sys
from threading import Thread
from typing import Any

import msgspec
import xllamacpp as _untyped

from polar.engines.embedded.process import ServerSettings

xllamacpp: Any = _untyped

PROMPT_CACHE_MIB = 2048
"""Memory for the prompts of sessions whose sequence another session took; they come back without evaluation."""
WARNINGS = 2
"""llama.cpp's log level; one more logs every request."""


def main() -> None:
    settings = msgspec.json.decode(sys.stdin.buffer.readline(), type=ServerSettings)
    watcher = Thread(target=_exit_with_parent, args=(settings.state_folder,), daemon=True)
    watcher.start()
    replies = os.dup(1)
    os.dup2(2, 1)  # llama.cpp logs to stdout, too, which must carry only our one line
    server = xllamacpp.Server(server_parameters(settings))
    os.write(replies, f"{server.listening_address}\n".encode())
    os.close(replies)
    watcher.join()


def _exit_with_parent(state_folder: str) -> None:
    while os.read(0, 4096):
        pass
    if state_folder:  # a killed parent cannot remove it
        shutil.rmtree(state_folder, ignore_errors=True)
    os._exit(0)


def server_parameters(settings: ServerSettings) -> Any:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = settings.gguf
    parameters.n_parallel = settings.parallel
    # llama.cpp divides its context among the sequences; each of them gets the whole context this way.
    parameters.n_ctx = settings.context_tokens * settings.parallel
    parameters.kv_unified = False
    parameters.ctx_shift = False
    parameters.cache_prompt = True
    parameters.cache_ram_mib = PROMPT_CACHE_MIB
    if settings.state_folder:
        parameters.slot_save_path = f"{settings.state_folder}/"
    parameters.verbosity = WARNINGS
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.api_keys = [settings.api_key]
    parameters.cpuparams.n_threads = settings.threads
    parameters.cpuparams_batch.n_threads = settings.threads
    parameters.endpoint_slots = True
    parameters.warmup = False
    return parameters


if __name__ == "__main__":
    main()
