"""Names of hosts that a task may intercept."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

PROVIDERS = ("api.anthropic.com", "api.openai.com", "generativelanguage.googleapis.com")
"""Where the official SDKs find their models unless they are configured otherwise."""
LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
FULL_NAME = re.compile(rf"(?:{LABEL}\.)+[a-z](?:[a-z0-9-]{{0,61}}[a-z0-9])?")
"""The last label begins with a letter, so an address is none."""
LONGEST_NAME = 253
OWN_NAMES = (".localhost", ".local")
"""Names that a system resolves in its own way."""


def _is_full_name(name: str) -> str:
    name = name.lower().rstrip(".")
    if len(name) > LONGEST_NAME or not FULL_NAME.fullmatch(name) or name.endswith(OWN_NAMES):
        raise ValueError(f"{name[:100]!r} is not the full name of a host, such as api.example.com")
    return name


HostName = Annotated[str, AfterValidator(_is_full_name)]
