"""A harness of one's own: asks the model once and writes its answer into the workspace.

    harness = { name = "my_harness:AskOnce", options = { answer_file = "answer.txt" } }

A harness runs nothing itself. It returns a `Launch`, and the runtime runs that. Run it with this folder on
Python's path: `PYTHONPATH=examples polar run TASKS`.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from polar.harnesses.base import HarnessContext, Launch, NpmPack
from polar.types import CallProfile, Strict

AGENT = """\
import json, os, pathlib, sys, urllib.request

body = {"model": os.environ["MODEL"], "messages": [{"role": "user", "content": sys.argv[1]}]}
headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["KEY"]}
request = urllib.request.Request(os.environ["URL"], json.dumps(body).encode(), headers)
with urllib.request.urlopen(request) as response:
    answer = json.load(response)["choices"][0]["message"]["content"]
pathlib.Path(sys.argv[2]).write_text(answer)
"""


class AskOnceOptions(Strict):
    answer_file: str = "answer.txt"
    """Relative to the workspace."""
    python: str = "python3"


class AskOnce:
    Options: type[BaseModel] = AskOnceOptions
    name = "ask_once"
    version = "1"

    def __init__(self, options: AskOnceOptions) -> None:
        self._options = options

    def requirements(self) -> tuple[NpmPack, ...]:
        return ()

    def program(self, installed: dict[str, Path]) -> tuple[str, ...]:
        """No program that could be asked for its version: all of it is the script above."""
        return ()

    def launch(self, context: HarnessContext) -> Launch:
        script = f"{context.home}/agent.py"
        return Launch(
            argv=(self._options.python, script, context.instruction, self._options.answer_file),
            env={
                "URL": f"{context.slot.base_url}/v1/chat/completions",
                "KEY": context.slot.key,
                "MODEL": context.slot.model,
            },
            home_files={"agent.py": AGENT},
        )

    def profile(self) -> CallProfile:
        return CallProfile()
