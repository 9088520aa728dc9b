"""A user's project: an agent, and a config with an engine of their own that always gives the same reply."""

from __future__ import annotations

from pathlib import Path

AGENT = """
import json, os, urllib.request
body = {"model": "m", "messages": [{"role": "user", "content": os.environ["POLAR_INSTRUCTION"]}]}
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps(body).encode(),
    {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
)
print(json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"])
"""
ENGINE = """
import asyncio
from polar.store.weights import default_weights
from polar.testing import ScriptedEngine
from polar.tokens.renderers.gguf_vocabulary import load_vocabulary
from polar.types import Strict

class Engine(ScriptedEngine):
    class Options(Strict):
        pass

    def __init__(self, options):
        super().__init__(None, lambda turn, prompt: "Hello.")

    async def start(self):
        self.encoder = load_vocabulary(await default_weights())
        return await super().start()
"""


def write_project(folder: Path) -> None:
    """`folder` must be on Python's path."""
    (folder / "agent.py").write_text(AGENT)
    (folder / "my_engine.py").write_text(ENGINE)
    (folder / "polar.toml").write_text('[engine]\nname = "my_engine:Engine"\n')
