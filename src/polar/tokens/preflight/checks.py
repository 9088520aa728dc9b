"""What a renderer does to a conversation, tried out before the first session relies on it.

A few probe conversations are rendered, bridged and read back, and compared with what the model's own template
makes of them; where there is no template, with the renderer's own rendering of the whole. Bridging counts as
proven only where the first prompts are the template's and the bridged tokens are those it writes after the end of
a turn. A renderer that fails is used all the same, but every turn is then rendered whole, on a branch of its own,
and the report says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, cast, get_args

import msgspec

from polar.tokens.base import Renderer, bounded
from polar.tokens.matching import message_key
from polar.tokens.preflight.parity import Templated, common, difference, parity
from polar.tokens.preflight.probes import (
    APPENDED,
    ASKED,
    BEGINNING,
    CALLED,
    CALLED_TWICE,
    FIRST_PROMPTS,
    HISTORIES,
    SAID,
    TOOL,
    ProbeConversation,
    thinking,
)
from polar.types import Message, Retention, TokenIds, token_ids

About = Literal["template", "prefix", "glue", "boundary", "bridge", "parser"]
State = Literal["ok", "noted", "failed"]
STATES = get_args(State)
Outcome = tuple[State, str]
OK: Outcome = ("ok", "")
NO_END: Outcome = ("failed", "the template ends a turn with no id that ends a reply")
NOTHING_PROVEN = "nothing is proven: no turn is continued in its own tokens, each is rendered whole on a branch"
FIRST = "first prompts as its own template writes them"
HISTORY = "histories as its own template writes them"


class Finding(msgspec.Struct, frozen=True):
    about: About
    """template: the layout is the model's own; prefix: what came before stays as it was; glue: so does the prompt
    for the next turn; boundary: what stands between turns; bridge: what is appended; parser: replies are read."""
    probe: str
    state: State
    """noted: it is as it is, and a user should know."""
    detail: str = ""

    @property
    def passed(self) -> bool:
        return self.state != "failed"


class Preflight(msgspec.Struct, frozen=True):
    findings: tuple[Finding, ...]

    @property
    def bridges(self) -> bool:
        """Whether a bridge is offered, and first prompts and every such bridge are what the template writes."""
        relied_on = [f for f in self.findings if f.about == "bridge" or f.probe == FIRST]
        return bool(self.offered) and all(finding.passed for finding in relied_on)

    @property
    def offered(self) -> list[str]:
        """The bridges that are proven."""
        return [f.probe for f in self.findings if f.about == "bridge" and f.state == "ok"]

    @property
    def problems(self) -> list[str]:
        failed = [f"{finding.probe}: {finding.detail}" for finding in self.findings if not finding.passed]
        return failed if self.offered else [*failed, NOTHING_PROVEN]


def preflight(renderer: Renderer) -> Preflight:
    """Needs a loaded renderer and takes some milliseconds."""
    return Preflight(tuple(Finding(about, probe, *_tried(check)) for about, probe, check in _checks(renderer)))


def _checks(renderer: Renderer) -> Iterator[tuple[About, str, Callable[[], Outcome]]]:
    stock = renderer.retaining("template")
    probe = partial(_Probe, renderer)
    yield "template", FIRST, partial(_as_template, stock, FIRST_PROMPTS)
    yield "template", HISTORY, partial(_as_template, stock, HISTORIES)
    for role, case in APPENDED.items():
        yield "prefix", f"stays when followed by {role}", partial(_staying, stock, *case)
    yield "glue", "same beginning", lambda: probe(SAID, [ASKED]).beginning()
    yield "boundary", "end of turn", lambda: probe(SAID, [ASKED]).boundary()
    for role, case in APPENDED.items():
        yield "bridge", f"bridge to {role}", lambda case=case: probe(*case).bridging()
    yield "bridge", "bridge from a cut reply", lambda: probe(SAID, [ASKED]).bridging_from_a_cut()
    yield "bridge", "bridge from other ends of turn", lambda: probe(SAID, [ASKED]).bridging_from_other_ends()
    for what, reply in {"text": SAID, "tool call": CALLED, "two tool calls": CALLED_TWICE}.items():
        yield "parser", f"reads its own {what}", lambda reply=reply: probe(reply, APPENDED["tool"][1]).reading()
    yield "parser", "reads its own thinking", lambda: probe(thinking(CALLED), ()).thinking()


def _tried(check: Callable[[], Outcome]) -> Outcome:
    try:
        return check()
    except Refused as refusal:
        return "noted", str(refusal)
    except Exception as error:  # a renderer is a plug-in, and may refuse a role
        return "failed", f"{type(error).__name__}: {error}"


class Refused(Exception):
    """The model's own template refuses the conversation, so no layout of it can be right or wrong."""


def _as_template(stock: Renderer, conversations: Sequence[ProbeConversation]) -> Outcome:
    if not isinstance(stock, Templated) or stock.by_template(BEGINNING, ()) is None:
        return "noted", "there is no template to compare with"
    differences = [f"{name}: {found}" for name, found in parity(stock, conversations).items() if found]
    if not differences:
        return OK
    return "failed", f"{len(differences)} of {len(conversations)} are not; {differences[0]}"


def _staying(stock: Renderer, reply: Message, after: Sequence[Message]) -> Outcome:
    """Whether a reply that thought stands as it stood once the conversation has gone on."""
    last, later = (_Probe(stock, thinking(reply), messages) for messages in ((), after))
    at = common(last.whole_ids, later.whole_ids)
    if at >= last.end:
        return OK
    now, before = (stock.decode(ids[at : at + 8]) for ids in (later.whole_ids, last.whole_ids[: last.end]))
    return "noted", f"rewritten from token {at} on: {now!r} where {before!r} stood"


class _Probe:
    """A conversation as the template writes it, taken apart: prompt, reply with the end of its turn, the rest."""

    def __init__(self, renderer: Renderer, reply: Message, after: Sequence[Message]) -> None:
        self._renderer = renderer
        self._reply = reply
        self._after = after
        self.prompt_ids = renderer.render(BEGINNING, [TOOL])
        self.whole_ids = _by_template(renderer, [*BEGINNING, reply, *after])
        self.shared = common(self.prompt_ids, self.whole_ids)
        stops = set(renderer.stop_ids)
        places = range(self.shared, len(self.whole_ids))
        self.end = next((place + 1 for place in places if self.whole_ids[place] in stops), 0)
        """Behind the id that ends the reply's turn; 0: the template writes none that the engine could stop at."""

    @property
    def reply_ids(self) -> TokenIds:
        return self.whole_ids[self.shared : self.end]

    @property
    def written(self) -> TokenIds:
        """What the template writes after the end of the turn."""
        return self.whole_ids[self.end :]

    def boundary(self) -> Outcome:
        if not self.end:
            return NO_END
        ended = self.whole_ids[self.end - 1]
        others = [self._named(stop) for stop in self._renderer.stop_ids if stop != ended]
        opening = self._renderer.decode(self.written).partition(ASKED.content)[0]
        also = f"; a reply also stops at {', '.join(others)}" if others else ""
        return "ok", f"a turn ends with {self._named(ended)}, the template goes on with {opening[:80]!r}{also}"

    def bridging(self) -> Outcome:
        return self._bridged(self.reply_ids, [self.written]) if self.end else NO_END

    def bridging_from_a_cut(self) -> Outcome:
        """The end that was not sampled is put there as context."""
        return self._bridged(self.reply_ids[:-1], [self.reply_ids[-1:] + self.written]) if self.end else NO_END

    def bridging_from_other_ends(self) -> Outcome:
        """A reply that stopped at another id than the template's goes on with the template's or without."""
        if not self.end:
            return NO_END
        said, ended = self.reply_ids[:-1], self.reply_ids[-1:]
        others = [said + token_ids([stop]) for stop in self._renderer.stop_ids if stop != ended[0]]
        outcomes = [self._bridged(reply_ids, [self.written, ended + self.written]) for reply_ids in others]
        return max(outcomes, key=lambda outcome: STATES.index(outcome[0]), default=("noted", "there are none"))

    def _bridged(self, reply_ids: TokenIds, wanted: Sequence[TokenIds]) -> Outcome:
        bridged = self._renderer.bridge(self.prompt_ids, reply_ids, self._after, [TOOL])
        if bridged is None:
            return "noted", "not offered: such a turn is rendered whole, on a branch of its own"
        return OK if bridged in wanted else ("failed", difference(self._renderer.decode, bridged, wanted[0]))

    def reading(self) -> Outcome:
        read = self._renderer.parse(self.prompt_ids, self.reply_ids)
        if message_key(read) == message_key(self._reply):
            return OK
        return "failed", f"what the template writes is read back as {read.content[:80]!r} and {read.tool_calls}"

    def thinking(self) -> Outcome:
        if self.shared < len(self.prompt_ids):
            return "noted", "the prompt for the next turn leaves no room for it"
        written = self._renderer.decode(self.whole_ids[self.shared :])
        if self._reply.reasoning not in written:
            return "noted", "the template shows no thinking"
        read = self._renderer.parse(self.prompt_ids, self.reply_ids)
        if read.reasoning.strip() == self._reply.reasoning:
            return OK
        return "failed", f"what the template writes is read back as {read.reasoning[:80]!r}"

    def beginning(self) -> Outcome:
        """Whether the prompt is how the conversation goes on to begin. Where it is not, no template could continue
        its own prompts; bridged turns keep the prompt as it was sent."""
        if self.shared == len(self.prompt_ids):
            return OK
        glue = self._renderer.decode(self.prompt_ids[self.shared :])
        return "failed", f"the prompt for the next turn ends with {glue[-80:]!r}, which the history does not have"

    def _named(self, token_id: int) -> str:
        return f"{self._renderer.decode(token_ids([token_id]))!r} ({token_id})"


def _by_template(renderer: Renderer, messages: Sequence[Message]) -> TokenIds:
    """As the model's own template writes it, where it has one."""
    if isinstance(renderer, Templated):
        try:
            written = renderer.by_template(messages, [TOOL])
        except Exception as error:  # a template raises what it likes
            raise Refused(f"its own template refuses: {error}") from error
        if written is not None:
            return written
    return renderer.render(messages, [TOOL])


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

    def bounded(self, context_tokens: int) -> Renderer:
        return forking(bounded(self._inner, context_tokens))

    def bridge(self, *_: object) -> None:
        return None
