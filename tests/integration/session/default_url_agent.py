"""An agent that asks its model through the official SDKs, each as its own documentation does: no base URL, no
certificate, no key in the code. Prints one JSON object: the text of each reply, and which variables name base
URLs."""

from __future__ import annotations

import json
import os
import sys

import anthropic
import openai
from google import genai

ASK = "Say hello."
MESSAGES = [{"role": "user", "content": ASK}]


def main() -> None:
    named = sorted(name for name in os.environ if name.endswith("_BASE_URL") and not name.startswith("POLAR_"))
    said: dict[str, object] = {"base URLs": named}
    with openai.OpenAI() as client:
        whole = client.chat.completions.create(model="gpt-4o", messages=MESSAGES)
        said["openai chat"] = whole.choices[0].message.content
        parts = client.chat.completions.create(model="gpt-4o", messages=MESSAGES, stream=True)
        said["openai chat streamed"] = "".join(
            each.choices[0].delta.content or "" for each in parts if each.choices
        )
        said["openai responses"] = client.responses.create(model="gpt-4o", input=ASK).output_text
        with client.responses.stream(model="gpt-4o", input=ASK) as stream:
            stream.until_done()
            said["openai responses streamed"] = stream.get_final_response().output_text
    with anthropic.Anthropic() as client:
        whole = client.messages.create(model="claude-sonnet-4-5", max_tokens=50, messages=MESSAGES)
        said["anthropic"] = whole.content[0].text
        with client.messages.stream(model="claude-sonnet-4-5", max_tokens=50, messages=MESSAGES) as stream:
            said["anthropic streamed"] = stream.get_final_text()
    client = genai.Client()
    said["google"] = client.models.generate_content(model="gemini-2.5-pro", contents=ASK).text
    parts = client.models.generate_content_stream(model="gemini-2.5-pro", contents=ASK)
    said["google streamed"] = "".join(each.text or "" for each in parts)
    client.close()
    json.dump(said, sys.stdout)


main()
