"""A replica of an engine as a process: vLLM's routes, and a model that writes a file with a tool and is done then.

python tests/fleet/replica_main.py PORT
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "integration" / "engines"))

from aiohttp import web
from fake_vllm import FakeVllm
from toy_model import END_ID, Asked, ToyModel

from polar.store.weights import default_weights
from polar.tokens.renderers.gguf_vocabulary import load_vocabulary

CONTEXT_TOKENS = 8192
WRITE = '<tool_call>{"name": "bash", "arguments": {"command": "echo hello > answer.txt"}}</tool_call>'


class ScriptedVllm(FakeVllm):
    """Chosen by the content of the prompt, not by the number of requests: a session may run again."""

    def _asked(self, prompt: list[int], knobs: dict[str, Any]) -> Asked:
        asked = super()._asked(prompt, knobs)
        seen = self.vocabulary.decode(prompt)
        if "Write hello." in seen:
            said = "Done." if "echo hello" in seen else WRITE
            asked.scripted = [*self.vocabulary.encode(said), END_ID]
        return asked


class ForgetfulModel(ToyModel):
    """Has no prefix cache, which would grow with every call."""

    def cached_tokens(self, prompt: Any) -> int:
        self.held.clear()
        return 0


def main(port: int) -> None:
    vocabulary = load_vocabulary(asyncio.run(default_weights()))
    served = {"id": "toy", "root": "/weights/toy", "parent": None, "max_model_len": CONTEXT_TOKENS}
    fake = ScriptedVllm(vocabulary, model=ForgetfulModel(), models=[served], step_s=0.005)
    web.run_app(fake.app(), host="127.0.0.1", port=port, print=None, handle_signals=False)


if __name__ == "__main__":
    main(int(sys.argv[1]))
