"""A harness that goes step by step: every sentence of its task is a request of its own, in one conversation.

It makes at least one model call for each sentence, which a coding agent of a small model does not. It needs only
the standard library; its model is where `shell` harnesses find it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from typing import Any
from urllib.request import Request, urlopen

TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}
MOST_CALLS = 2
"""For one sentence: the command, and a word at the end."""


def main() -> None:
    messages: list[dict[str, Any]] = []
    for sentence in re.split(r"(?<=\.) (?=[A-Z])", os.environ["POLAR_INSTRUCTION"]):
        messages.append({"role": "user", "content": sentence})
        for _ in range(MOST_CALLS):
            reply = ask(messages)
            messages.append(reply)
            if not reply.get("tool_calls"):
                break
            messages.extend(result_of(call) for call in reply["tool_calls"])


def ask(messages: list[dict[str, Any]]) -> dict[str, Any]:
    body = {"model": "polar", "messages": messages, "tools": [TOOL]}
    headers = {"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "content-type": "application/json"}
    url = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"
    with urlopen(Request(url, json.dumps(body).encode(), headers)) as answer:
        return json.load(answer)["choices"][0]["message"]


def result_of(call: dict[str, Any]) -> dict[str, Any]:
    try:
        command = json.loads(call["function"]["arguments"])["command"]
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=10, errors="replace")
        text = (done.stdout + done.stderr)[-500:] or "(no output)"
    except (ValueError, KeyError, TypeError, OSError, subprocess.TimeoutExpired) as error:
        text = f"{type(error).__name__}: {error}"[:500]
    return {"role": "tool", "tool_call_id": call["id"], "content": text}


if __name__ == "__main__":
    main()
