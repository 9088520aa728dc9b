"""Checks of a renderer before the first session relies on it.

A few probe conversations are rendered, bridged and read back, and compared with what the model's own template
writes, or, without a template, with the renderer's own rendering of the whole. Bridging counts as proven only if
first prompts equal the template's, and bridged tokens equal those it writes after the end of a turn. A renderer
that fails is still used, but then every turn is rendered whole on a new branch, and the report says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, cast, get_args

import msgspec

from polar.tokens.base import Renderer, bounded
from polar.tokens.matching import message_key
from polar.tokens.preflight.parity import TemplatedRenderer, difference, parity
from polar.tokens.preflight.probes import (
    APPENDED,
    BEGINNING,
    CALL,
    FIRST_PROMPTS,
    HISTORIES,
    NEXT_QUESTION,
    REPLY,
    TOOL,
    TWO_CALLS,
    ProbeConversation,
    thinking,
)
from polar.tokens.sequences import first_difference
from polar.types import Message, Retention, TokenIds, token_ids

About = Literal["template", "prefix", "glue", "boundary", "bridge", "parser"]
State = Literal["ok", "noted", "failed"]
STATES = get_args(State)
Outcome = tuple[State, str]
OK: Outcome = ("ok", "")
NO_END: Outcome = ("failed", "the template does not end a turn with a stop id")
NOTHING_PROVEN = "no bridge is proven: every turn is rendered whole, on a new branch"
FIRST = "first prompts as its own template writes them"
HISTORY = "histories as its own template writes them"


class PreflightFinding(msgspec.Struct, frozen=True):
    about: About
    """template: renders like the model's own template; prefix: the template does not rewrite earlier turns; glue:
    nor the prompt for the next turn; boundary: what stands between turns; bridge: what is appended; parser:
    replies can be read."""
    probe: str
    state: State
    """noted: no failure, but users should know."""
    detail: str = ""

    @property
    def passed(self) -> bool:
        return self.state != "failed"


class Preflight(msgspec.Struct, frozen=True):
    findings: tuple[PreflightFinding, ...]

    @property
    def bridges(self) -> bool:
        """Whether the renderer bridges, and first prompts and all bridges equal what the template writes."""
        relied_on = [f for f in self.findings if f.about == "bridge" or f.probe == FIRST]
        return bool(self.offered) and all(finding.passed for finding in relied_on)

    @property
    def offered(self) -> list[str]:
        """Proven bridges."""
        return [f.probe for f in self.findings if f.about == "bridge" and f.state == "ok"]

    @property
    def problems(self) -> list[str]:
        failed = [f"{finding.probe}: {finding.detail}" for finding in self.findings if not finding.passed]
        return failed if self.offered else [*failed, NOTHING_PROVEN]


def preflight(renderer: Renderer) -> Preflight:
    """Needs a loaded renderer and takes some milliseconds."""
    return Preflight(
        tuple(PreflightFinding(about, probe, *_outcome(check)) for about, probe, check in _checks(renderer))
    )


def _checks(renderer: Renderer) -> Iterator[tuple[About, str, Callable[[], Outcome]]]:
    stock = renderer.retaining("template")
    probe = partial(_Probe, renderer)
    yield "template", FIRST, partial(_compare, stock, FIRST_PROMPTS)
    yield "template", HISTORY, partial(_compare, stock, HISTORIES)
    for role, case in APPENDED.items():
        yield "prefix", f"stays when followed by {role}", partial(_check_rewriting, stock, *case)
    yield "glue", "same beginning", lambda: probe(REPLY, [NEXT_QUESTION]).check_beginning()
    yield "boundary", "end of turn", lambda: probe(REPLY, [NEXT_QUESTION]).check_boundary()
    for role, case in APPENDED.items():
        yield "bridge", f"bridge to {role}", lambda case=case: probe(*case).check_bridge()
    yield "bridge", "bridge from a cut reply", lambda: probe(REPLY, [NEXT_QUESTION]).check_bridge_from_a_cut()
    yield (
        "bridge",
        "bridge from other ends of turn",
        lambda: probe(REPLY, [NEXT_QUESTION]).check_bridge_from_other_ends(),
    )
    for what, reply in {"text": REPLY, "tool call": CALL, "two tool calls": TWO_CALLS}.items():
        yield (
            "parser",
            f"reads its own {what}",
            lambda reply=reply: probe(reply, APPENDED["tool"][1]).check_reading(),
        )
    yield "parser", "reads its own thinking", lambda: probe(thinking(CALL), ()).check_thinking()


def _outcome(check: Callable[[], Outcome]) -> Outcome:
    try:
        return check()
    except PreflightRefused as refusal:
        return "noted", str(refusal)
    except Exception as error:  # a renderer is a plug-in and may refuse a role
        return "failed", f"{type(error).__name__}: {error}"


class PreflightRefused(Exception):
    """The model's own template refuses the conversation, so there is nothing to compare with."""


def _compare(stock: Renderer, conversations: Sequence[ProbeConversation]) -> Outcome:
    if not isinstance(stock, TemplatedRenderer) or stock.by_template(BEGINNING, ()) is None:
        return "noted", "there is no template to compare with"
    differences = [f"{name}: {found}" for name, found in parity(stock, conversations).items() if found]
    if not differences:
        return OK
    return "failed", f"{len(differences)} of {len(conversations)} differ; {differences[0]}"


def _check_rewriting(stock: Renderer, reply: Message, after: Sequence[Message]) -> Outcome:
    """Whether a reply with reasoning stays the same when the conversation continues."""
    last, later = (_Probe(stock, thinking(reply), messages) for messages in ((), after))
    at = first_difference(last.whole_ids, later.whole_ids)
    if at >= last.end:
        return OK
    now, before = (stock.decode(ids[at : at + 8]) for ids in (later.whole_ids, last.whole_ids[: last.end]))
    return "noted", f"rewritten from token {at} on: {now!r} where {before!r} stood"


class _Probe:
    """A conversation as the template writes it, in parts: prompt, reply with the end of its turn, the rest."""

    def __init__(self, renderer: Renderer, reply: Message, after: Sequence[Message]) -> None:
        self._renderer = renderer
        self._reply = reply
        self._after = after
        self.prompt_ids = renderer.render(BEGINNING, [TOOL])
        self.whole_ids = _by_template(renderer, [*BEGINNING, reply, *after])
        self.shared = first_difference(self.prompt_ids, self.whole_ids)
        stops = set(renderer.stop_ids)
        positions = range(self.shared, len(self.whole_ids))
        self.end = next((position + 1 for position in positions if self.whole_ids[position] in stops), 0)
        """Position after the id that ends the reply's turn; 0: the template writes no stop id."""

    @property
    def reply_ids(self) -> TokenIds:
        return self.whole_ids[self.shared : self.end]

    @property
    def written(self) -> TokenIds:
        """What the template writes after the end of the turn."""
        return self.whole_ids[self.end :]

    def check_boundary(self) -> Outcome:
        if not self.end:
            return NO_END
        ended = self.whole_ids[self.end - 1]
        others = [self._named(stop) for stop in self._renderer.stop_ids if stop != ended]
        opening = self._renderer.decode(self.written).partition(NEXT_QUESTION.content)[0]
        also = f"; a reply also stops at {', '.join(others)}" if others else ""
        return "ok", f"a turn ends with {self._named(ended)}, the template continues with {opening[:80]!r}{also}"

    def check_bridge(self) -> Outcome:
        return self._bridged(self.reply_ids, [self.written]) if self.end else NO_END

    def check_bridge_from_a_cut(self) -> Outcome:
        """A reply cut short gets its end of turn as context."""
        return self._bridged(self.reply_ids[:-1], [self.reply_ids[-1:] + self.written]) if self.end else NO_END

    def check_bridge_from_other_ends(self) -> Outcome:
        """After a reply that stopped at another id, the template's end of turn may follow or not."""
        if not self.end:
            return NO_END
        text, ended = self.reply_ids[:-1], self.reply_ids[-1:]
        others = [text + token_ids([stop]) for stop in self._renderer.stop_ids if stop != ended[0]]
        outcomes = [self._bridged(reply_ids, [self.written, ended + self.written]) for reply_ids in others]
        return max(outcomes, key=lambda outcome: STATES.index(outcome[0]), default=("noted", "there are none"))

    def _bridged(self, reply_ids: TokenIds, wanted: Sequence[TokenIds]) -> Outcome:
        bridged = self._renderer.bridge(self.prompt_ids, reply_ids, self._after, [TOOL])
        if bridged is None:
            return "noted", "not offered: such a turn is rendered whole, on a new branch"
        return OK if bridged in wanted else ("failed", difference(self._renderer.decode, bridged, wanted[0]))

    def check_reading(self) -> Outcome:
        read = self._renderer.parse(self.prompt_ids, self.reply_ids)
        if message_key(read) == message_key(self._reply):
            return OK
        return "failed", f"what the template writes is read back as {read.content[:80]!r} and {read.tool_calls}"

    def check_thinking(self) -> Outcome:
        if self.shared < len(self.prompt_ids):
            return "noted", "the prompt for the next turn leaves no room for reasoning"
        written = self._renderer.decode(self.whole_ids[self.shared :])
        if self._reply.reasoning not in written:
            return "noted", "the template shows no reasoning"
        read = self._renderer.parse(self.prompt_ids, self.reply_ids)
        if read.reasoning.strip() == self._reply.reasoning:
            return OK
        return "failed", f"what the template writes is read back as {read.reasoning[:80]!r}"

    def check_beginning(self) -> Outcome:
        """Whether the longer conversation begins with the prompt. If not, the template does not continue its own
        prompts; bridged turns keep the prompt as it was sent."""
        if self.shared == len(self.prompt_ids):
            return OK
        glue = self._renderer.decode(self.prompt_ids[self.shared :])
        return "failed", f"the prompt for the next turn ends with {glue[-80:]!r}, which is missing in the history"

    def _named(self, token_id: int) -> str:
        return f"{self._renderer.decode(token_ids([token_id]))!r} ({token_id})"


def _by_template(renderer: Renderer, messages: Sequence[Message]) -> TokenIds:
    """By the model's own template, if it has one; else by the renderer."""
    if isinstance(renderer, TemplatedRenderer):
        try:
            written = renderer.by_template(messages, [TOOL])
        except Exception as error:  # a template may raise anything
            raise PreflightRefused(f"its own template refuses: {error}") from error
        if written is not None:
            return written
    return renderer.render(messages, [TOOL])


def without_bridges(renderer: Renderer) -> Renderer:
    return cast("Renderer", _WithoutBridges(renderer))


class _WithoutBridges:
    """A renderer whose bridges are not used, because they differ from what its template writes."""

    def __init__(self, inner: Renderer) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def retaining(self, retention: Retention) -> Renderer:
        return without_bridges(self._inner.retaining(retention))

    def bounded(self, context_tokens: int) -> Renderer:
        return without_bridges(bounded(self._inner, context_tokens))

    def bridge(self, *_: object) -> None:
        return None
