"""Half a surrogate pair in JSON, such as `\\ud83d` alone: sent by a harness that cut a text between UTF-16 units.

No character and no UTF-8 stands for it, so U+FFFD takes its place. Only an escape can spell one; a whole pair is
left as it is.
"""

from __future__ import annotations

import re

_ESCAPES = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<lone>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
"""Every escape of a JSON text, so that the second of two backslashes begins none."""


def without_lone_surrogates(text: bytes) -> tuple[bytes, int]:
    """The JSON text with U+FFFD for each half of a pair, and how many there were."""
    replaced = 0

    def sound(escape: re.Match[bytes]) -> bytes:
        nonlocal replaced
        if escape["lone"] is None:
            return escape[0]
        replaced += 1
        return b"\\ufffd"

    return _ESCAPES.sub(sound, text), replaced
