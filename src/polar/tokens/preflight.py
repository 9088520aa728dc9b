"""What a renderer does to a conversation, tried out before the first session relies on it.

A few probe conversations are rendered, bridged and read back. Bridging counts as proven only where the bridged
tokens are those the template itself writes after the end of a turn. A renderer that fails is used all the same,
but every turn is then rendered whole, on a branch of its own, and the report says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import msgspec

from polar.tokens.base import Renderer
from polar.tokens.match import message_key
from polar.types import Message, Retention, TokenIds, Tool, ToolCall, token_ids

TOOL = Tool(
    name="look",
    description="Looks at a place.",
    parameters={"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
)
BEGINNING = (Message(role="system", content="You are brief."), Message(role="user", content="What is there?"))
SAID = Message(role="assistant", content="A red house.")
CALLED = Message(
    role="assistant", tool_calls=(ToolCall(name="look", arguments='{"place": "Zürich"}', call_id="c1"),)
)
APPENDED: dict[str, tuple[Message, tuple[Message, ...]]] = {
    "user": (SAID, (Message(role="user", content="And behind it?"),)),
    "tool": (CALLED, (Message(role="tool", content="Nothing.", tool_call_id="c1"),)),
    "tool and user": (
        CALLED,
        (Message(role="tool", content="Nothing.", tool_call_id="c1"), Message(role="user", content="Go on.")),
    ),
    "system": (SAID, (Message(role="system", content="Be kind."), Message(role="user", content="And behind it?"))),
}
"""What may follow a reply: the reply, and what comes after it."""


BRIDGE = "bridge to "


class Finding(msgspec.Struct, frozen=True):
    probe: str
    passed: bool
    detail: str = ""


class Preflight(msgspec.Struct, frozen=True):
    findings: tuple[Finding, ...]

    @property
    def bridges(self) -> bool:
        """Whether every bridge that is offered is what the template writes."""
        return all(finding.passed for finding in self.findings if finding.probe.startswith(BRIDGE))

    @property
    def problems(self) -> list[str]:
        return [f"{finding.probe}: {finding.detail}" for finding in self.findings if not finding.passed]


def preflight(renderer: Renderer) -> Preflight:
    """Needs a loaded renderer and takes some milliseconds."""
    asked = APPENDED["user"][1]
    checks: dict[str, Callable[[], tuple[bool, str]]] = {
        **{f"{BRIDGE}{role}": partial(_bridging, renderer, *case) for role, case in APPENDED.items()},
        "reads its own text": lambda: _Probe(renderer, SAID, asked).reading(),
        "reads its own tool call": lambda: _Probe(renderer, CALLED, asked).reading(),
        "same beginning": lambda: _Probe(renderer, SAID, asked).beginning(),
    }
    return Preflight(tuple(Finding(name, *_tried(check)) for name, check in checks.items()))


def _bridging(renderer: Renderer, reply: Message, after: Sequence[Message]) -> tuple[bool, str]:
    return _Probe(renderer, reply, after).bridging()


def _tried(check: Callable[[], tuple[bool, str]]) -> tuple[bool, str]:
    try:
        return check()
    except Exception as error:  # a renderer is a plug-in, and a template may refuse a role
        return False, f"{type(error).__name__}: {error}"


class _Probe:
    """A conversation as the template writes it, taken apart: prompt, reply with the end of its turn, the rest."""

    def __init__(self, renderer: Renderer, reply: Message, after: Sequence[Message]) -> None:
        self._renderer = renderer
        self._reply = reply
        self._after = after
        self.prompt_ids = renderer.render(BEGINNING, [TOOL])
        self.whole_ids = renderer.render([*BEGINNING, reply, *after], [TOOL])
        self.shared = _common(self.prompt_ids, self.whole_ids)
        stops = set(renderer.stop_ids)
        places = range(self.shared, len(self.whole_ids))
        self.end = next((place + 1 for place in places if self.whole_ids[place] in stops), 0)
        """Behind the id that ends the reply's turn; 0: the template writes none that the engine could stop at."""

    @property
    def reply_ids(self) -> TokenIds:
        return self.whole_ids[self.shared : self.end]

    def bridging(self) -> tuple[bool, str]:
        if not self.end:
            return False, "the template ends a turn with no id that ends a reply"
        bridged = self._renderer.bridge(self.prompt_ids, self.reply_ids, self._after, [TOOL])
        if bridged is None:
            return True, "not offered: such a turn is rendered whole, on a branch of its own"
        written = self.whole_ids[self.end :]
        if bridged == written:
            return True, ""
        return False, self._difference(bridged, written)

    def reading(self) -> tuple[bool, str]:
        read = self._renderer.parse(self.prompt_ids, self.reply_ids)
        if message_key(read) == message_key(self._reply):
            return True, ""
        return False, f"what the template writes is read back as {read.content[:80]!r} and {read.tool_calls}"

    def beginning(self) -> tuple[bool, str]:
        """Whether the prompt is how the conversation goes on to begin. Where it is not, no template could continue
        its own prompts; bridged turns keep the prompt as it was sent."""
        if self.shared == len(self.prompt_ids):
            return True, ""
        return False, self._difference(self.whole_ids[: len(self.prompt_ids)], self.prompt_ids)

    def _difference(self, found: TokenIds, wanted: TokenIds) -> str:
        at = _common(found, wanted)
        texts = [self._renderer.decode(token_ids(ids[at : at + 8])) for ids in (found, wanted)]
        return f"differs at token {at}: {texts[0]!r} where the template writes {texts[1]!r}"


def _common(one: TokenIds, other: TokenIds) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))


def forking(renderer: Renderer) -> Renderer:
    """A renderer whose bridges are not what its template writes, without them."""
    return cast("Renderer", _Forking(renderer))


class _Forking:
    """Everything of another renderer but its bridges."""

    def __init__(self, inner: Renderer) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def retaining(self, retention: Retention) -> Renderer:
        return forking(self._inner.retaining(retention))

    def bridge(self, *_: object) -> None:
        return None
