"""Looks at its providers from inside a session, with the standard library alone; prints what it saw as JSON."""

from __future__ import annotations

import json
import os
import socket
import ssl
import sys
import urllib.request

INTERCEPTED = ("api.openai.com", "api.anthropic.com", "generativelanguage.googleapis.com")
OTHERS = ("pypi.org", "openai.com", "beta.api.openai.com")
SYSTEM_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"


def resolved(name: str) -> list[str]:
    try:
        return sorted({each[4][0] for each in socket.getaddrinfo(name, 443, proto=socket.IPPROTO_TCP)})
    except OSError:
        return []


def verified(name: str, bundle: str) -> str:
    try:
        context = ssl.create_default_context(cafile=bundle)
        with socket.create_connection((name, 443)) as plain:
            with context.wrap_socket(plain, server_hostname=name) as tls:
                return dict(pair[0] for pair in tls.getpeercert()["issuer"])["commonName"]
    except OSError as error:
        return type(error).__name__


def asked(key: str) -> int:
    body = json.dumps({"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi"}]}).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    request = urllib.request.Request("https://api.openai.com/v1/chat/completions", body, headers)
    with urllib.request.urlopen(request) as response:
        return response.status


def can_listen_on(port: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", port))
            return True
        except OSError:
            return False


def private_keys() -> list[str]:
    folder = "/opt/polar/trust"
    return [name for name in os.listdir(folder) if "PRIVATE KEY" in open(f"{folder}/{name}").read()]


seen = {
    "resolved": {name: resolved(name) for name in (*INTERCEPTED, *OTHERS)},
    "by_variable": {name: verified(name, os.environ["SSL_CERT_FILE"]) for name in INTERCEPTED},
    "by_system": {name: verified(name, SYSTEM_BUNDLE) for name in INTERCEPTED},
    "status": asked("a-key-of-its-own"),
    "https_is_taken": not can_listen_on(443),
    "private_keys": private_keys(),
    "authority": open("/opt/polar/trust/authority.pem").read(),
}
json.dump(seen, sys.stdout)
