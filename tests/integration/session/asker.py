"""A harness for tests: sends the requests that its arguments name, and exits with 1 if the last one fails."""

import base64
import json
import os
import struct
import sys
import urllib.error
import urllib.request
import zlib


def picture() -> str:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    png = b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0\0")) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(png).decode()


def content(name: str) -> object:
    if name == "image":
        return [{"type": "image_url", "image_url": {"url": picture()}}]
    return "word " * 50_000 if name == "long" else name


def ask(name: str) -> bool:
    body = {"model": os.environ["POLAR_MODEL"], "messages": [{"role": "user", "content": content(name)}]}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    try:
        with urllib.request.urlopen(request) as response:
            json.load(response)
    except urllib.error.HTTPError as error:
        sys.stderr.write(error.read().decode())
        return False
    return True


sys.exit(0 if [ask(name) for name in sys.argv[1:]][-1] else 1)
