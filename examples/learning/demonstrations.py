"""An engine for `polar.toml` that solves the tasks of families.py from a script, instead of a model. Its sessions
are the data of a warm start.

    python examples/learning/families.py demonstrated 240 > tasks.jsonl
    polar generate tasks.jsonl --out data --to tokens --config examples/learning/demonstrations.toml

It reads the request in the prompt, answers with the command of its next sentence, and ends with "Done.".
"""

from __future__ import annotations

import json
import re

from polar.engines.base import EngineInfo
from polar.store.weights import default_weights
from polar.testing import Encoder, ScriptedEngine
from polar.tokens.renderers.gguf_vocabulary import load_vocabulary
from polar.types import Strict, TokenIds

CONTEXT_TOKENS = 8192
STEPS = (
    (r"Write the (?:word|number) (\S+) into the file (\S+)", r"echo \1 > \2"),
    (r"Make a folder named (\S+)", r"mkdir \1"),
    (r"Copy the file (\S+) to (\S+)", r"cp \1 \2"),
    (r"Replace (\S+) by (\S+) in the file (\S+)", r"sed -i s/\1/\2/ \3"),
    (r"Run sh (\S+)", r"sh \1"),
    (r"Move the file (\S+) into the folder (\S+)", r"mv \1 \2/\1"),
    (r"Rename the file (\S+) to (\S+)", r"mv \1 \2"),
    (r"Save the word (\S+) in (\S+)", r"echo \1 > \2"),
    (r"Create a directory called (\S+)", r"mkdir \1"),
    (r"Make a copy of (\S+) called (\S+)", r"cp \1 \2"),
    (r"Append the word (\S+) to the file (\S+)", r"echo \1 >> \2"),
    (r"Make an empty file named (\S+)", r"touch \1"),
    (r"Show the file (\S+)", r"cat \1"),
    (r"Write its word into the file (\S+)", r"echo {shown} > \1"),
    (r"Write both words in one line into the file (\S+)", r"echo {shown} > \1"),
)
"""A sentence of an instruction, and its command. `{shown}`: what earlier commands printed."""
TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", re.DOTALL)


def commands(instruction: str) -> list[str]:
    """One for each sentence, or part of one that begins with "then"."""
    found: list[str] = []
    for part in re.split(r"\. (?=[A-Z])|, then ", instruction.strip().removesuffix(".")):
        sentence = part[0].upper() + part[1:]
        [command] = [re.sub(pattern, to, sentence) for pattern, to in STEPS if re.fullmatch(pattern, sentence)]
        found.append(command)
    return found


def reply(prompt: str) -> str:
    """To the last request of a prompt, after the commands that have run since."""
    turns = TURN.findall(prompt)
    asked = max(place for place, (role, _) in enumerate(turns) if role == "user")
    outputs = [text.strip() for role, text in turns[asked:] if role == "tool"]
    steps = commands(turns[asked][1])
    if len(outputs) >= len(steps):
        return "Done."
    shown = [text for step, text in zip(steps, outputs, strict=False) if step.startswith("cat ")]
    call = {"name": "bash", "arguments": {"command": steps[len(outputs)].format(shown=" ".join(shown))}}
    return f"<tool_call>{json.dumps(call)}</tool_call>"


class Demonstrations(ScriptedEngine):
    class Options(Strict):
        pass

    def __init__(self, options: Options) -> None:
        info = EngineInfo("scripted", "demonstrations", CONTEXT_TOKENS, "raw", parallel=64, constrains=True)
        super().__init__(_NoEncoder(), self._say, info=info)

    async def start(self) -> EngineInfo:
        self.encoder = load_vocabulary(await default_weights())
        return await super().start()

    def _say(self, _: int, prompt_ids: TokenIds) -> str:
        return reply(self.encoder.decode(prompt_ids))


class _NoEncoder(Encoder):
    """Until the engine starts."""
