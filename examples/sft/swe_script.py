"""An engine for `polar.toml` that resolves tasks of the SWE set from a script, instead of a model.

    [engine]
    name = "swe_script:SweScript"
    options = { rows = "build/rows.jsonl" }

It reads the report in the prompt, applies the fix of that row with the harness's shell tool, and ends. At every
second task its first attempt does nothing, so that there is something to reject.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from polar.engines.base import EngineInfo
from polar.store.weights import default_weights
from polar.testing import Encoder, ScriptedEngine
from polar.tokens.renderers.gguf_vocabulary import load_vocabulary
from polar.types import Strict, TokenIds

CONTEXT_TOKENS = 131_072
DONE = "the-tool-has-run"
"""The tool prints it and the command does not contain it: a prompt that has it has seen the tool run."""


class SweScript(ScriptedEngine):
    class Options(Strict):
        rows: str

    def __init__(self, options: Options) -> None:
        info = EngineInfo("scripted", "swe-script", CONTEXT_TOKENS, "raw", parallel=8, constrains=True)
        super().__init__(_NoEncoder(), self._say, info=info)
        lines = Path(options.rows).read_text(encoding="utf-8").splitlines()
        self._rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
        self._tried = Counter[str]()

    async def start(self) -> EngineInfo:
        self.encoder = load_vocabulary(await default_weights())
        return await super().start()

    def _say(self, _: int, prompt_ids: TokenIds) -> str:
        prompt = self.encoder.decode(prompt_ids)
        if DONE in prompt:
            return "The issue is resolved."
        (number,) = (n for n, row in enumerate(self._rows) if _title(row) in prompt)
        row = self._rows[number]
        self._tried[row["instance_id"]] += 1
        idle = number % 2 == 1 and self._tried[row["instance_id"]] == 1
        command = "git status" if idle else f"git apply - <<'END_OF_FIX'\n{row['patch']}END_OF_FIX"
        arguments = {"command": f"{command}\necho the-tool-'has-run'"}
        return f"<tool_call>{json.dumps({'name': 'bash', 'arguments': arguments})}</tool_call>"


class _NoEncoder(Encoder):
    """Until the engine starts."""


def _title(row: dict[str, Any]) -> str:
    return str(row["problem_statement"]).partition("\n")[0]
