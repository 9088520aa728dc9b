"""The embedded engine's child process, from the parent's side."""

from __future__ import annotations

import msgspec

from polar.engines.child_process import ChildProcess


class ServerSettings(msgspec.Struct, frozen=True):
    gguf: str
    parallel: int
    context_tokens: int
    threads: int
    api_key: str
    state_folder: str = ""
    """Where the server saves states of sequences; empty: it saves none."""


class EmbeddedProcess(ChildProcess):
    product = "the embedded engine"
    command = ("-m", "polar.engines.embedded.server")
