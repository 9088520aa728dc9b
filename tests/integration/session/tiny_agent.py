"""An agent in thirty lines, as a harness for tests: calls the model, runs its shell commands, until it is done."""

import json
import os
import subprocess
import sys
import urllib.request

TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command.",
        "parameters": {"type": "object", "required": ["command"], "properties": {"command": {"type": "string"}}},
    },
}


def ask(messages: list) -> dict:
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": os.environ["POLAR_MODEL"], "messages": messages, "tools": [TOOL]}).encode(),
        {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]


messages = [{"role": "user", "content": os.environ["POLAR_INSTRUCTION"]}]
while True:
    message = ask(messages)
    messages.append(message)
    for call in message.get("tool_calls") or []:
        command = json.loads(call["function"]["arguments"])["command"]
        done = subprocess.run(command, shell=True, capture_output=True, text=True)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": done.stdout + done.stderr})
    if not message.get("tool_calls"):
        sys.stdout.write(message.get("content") or "")
        break
