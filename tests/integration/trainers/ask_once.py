"""A harness of one call."""

from __future__ import annotations

import json
import os
from urllib.request import Request, urlopen

BODY = {"model": "polar", "messages": [{"role": "user", "content": os.environ["POLAR_INSTRUCTION"]}]}

if __name__ == "__main__":
    headers = {"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "content-type": "application/json"}
    url = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"
    urlopen(Request(url, json.dumps(BODY).encode(), headers)).read()
