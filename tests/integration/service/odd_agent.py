"""An agent that does what breaks traces: asks twice, rewrites its history, asks too long a question."""

import json
import os
import urllib.error
import urllib.request


def ask(messages: list) -> dict:
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": os.environ["POLAR_MODEL"], "messages": messages}).encode(),
        {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]


question = {"role": "user", "content": os.environ["POLAR_INSTRUCTION"]}
ask([question])
first = ask([question])  # the same again: the reply before it counts for nothing
ask([question, {**first, "content": "Something else."}, {"role": "user", "content": "Go on."}])
try:
    ask([{"role": "user", "content": "word " * 200_000}])
except urllib.error.HTTPError as error:
    assert error.code == 400
