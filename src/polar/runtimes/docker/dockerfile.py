"""What the Docker Engine itself would download while it builds a Dockerfile: images and addresses.

A build without network still lets the engine pull the images of `FROM` and fetch the addresses of `ADD`, so these
are read from the file and checked before it is built.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import msgspec

from polar.errors import RuntimeFailure

VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))")
ADDRESS = re.compile(r"^(\w+://|git@)")


class Downloads(msgspec.Struct, frozen=True):
    images: tuple[str, ...]
    """Without `scratch` and the file's own stages."""
    addresses: tuple[str, ...]
    """Sources of `ADD` that are addresses, or could be: a variable may hold one."""


def downloads_of(text: str, args: Mapping[str, str]) -> Downloads:
    known, stages = dict[str, str](), {"scratch"}
    images, addresses = dict[str, None](), dict[str, None]()
    for instruction, words in instructions(text):
        plain = [word for word in words if not word.startswith("--")]
        if instruction == "ARG" and len(stages) == 1:  # only those before the first stage count for FROM
            known |= _defaults(plain, args)
        elif instruction == "FROM" and plain:
            image = _expanded(plain[0], known)
            if image.lower() not in stages:
                images[image] = None
            stages.add(plain[2].lower() if len(plain) > 2 else f"{len(stages)}th stage")
        elif instruction in ("ADD", "COPY"):
            other = next((word.removeprefix("--from=") for word in words if word.startswith("--from=")), "")
            if other and not other.isdigit() and other.lower() not in stages:
                images[_expanded(other, known)] = None
            if instruction == "ADD":
                sources = (word.strip("[\",'") for word in plain[:-1])
                addresses |= dict.fromkeys(word for word in sources if ADDRESS.match(word) or "$" in word)
    return Downloads(tuple(images), tuple(addresses))


def instructions(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each with its words; the triggers of ONBUILD count as instructions."""
    directive = re.match(r"(?:#[^\n]*\n)*?#\s*escape\s*=\s*(\S)", text, re.IGNORECASE)
    escape = re.escape(directive[1] if directive else "\\")
    plain = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in re.sub(rf"{escape}[ \t]*\n", " ", plain).splitlines():
        name, *words = line.split() or [""]
        if name.upper() == "ONBUILD" and words:
            name, *words = words
        yield name.upper(), words


def _defaults(words: list[str], args: Mapping[str, str]) -> dict[str, str]:
    pairs = (word.partition("=") for word in words)
    return {name: args.get(name, value.strip("\"'")) for name, _, value in pairs}


def _expanded(text: str, known: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        return known.get(match[1] or match[3]) or match[2] or ""

    found = VARIABLE.sub(value, text)
    if not found or "$" in found:
        raise RuntimeFailure(f"the image {text!r} of the Dockerfile has no value: give its ARG one in args")
    return found
