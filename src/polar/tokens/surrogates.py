"""Lone surrogates in JSON, such as `\\ud83d` alone, from harnesses that cut a text between UTF-16 units.

UTF-8 cannot encode them, so U+FFFD replaces each. Only an escape can spell one; a whole pair stays.
"""

from __future__ import annotations

import re

_ESCAPES = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<lone>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
"""Matches every escape, so that the second of two backslashes does not begin one."""


def without_lone_surrogates(text: bytes) -> tuple[bytes, int]:
    """The JSON text with U+FFFD for each lone surrogate, and their number."""
    replaced = 0

    def sound(escape: re.Match[bytes]) -> bytes:
        nonlocal replaced
        if escape["lone"] is None:
            return escape[0]
        replaced += 1
        return b"\\ufffd"

    return _ESCAPES.sub(sound, text), replaced
