"""Whether a renderer lays conversations out as the model's own chat template does, token for token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from polar.tokens.preflight.probes import ProbeConversation
from polar.types import Message, TokenIds, Tool


@runtime_checkable
class Templated(Protocol):
    """A renderer of a model that comes with a template."""

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> TokenIds: ...

    def by_template(self, messages: Sequence[Message], tools: Sequence[Tool]) -> TokenIds | None:
        """What the model's own template makes of the conversation; None where it has none."""
        ...

    def decode(self, ids: TokenIds) -> str: ...


@runtime_checkable
class OwnLayout(Protocol):
    """A renderer with a layout of its own, which asks the template only where a task wants that."""

    def own_layout(self, messages: Sequence[Message], tools: Sequence[Tool]) -> TokenIds: ...


def parity(renderer: Templated, conversations: Sequence[ProbeConversation]) -> dict[str, str]:
    """For each conversation by its name how the two layouts differ; empty where they do not. What both refuse is
    no difference."""
    return {conversation.name: _difference(renderer, conversation) for conversation in conversations}


def _difference(renderer: Templated, conversation: ProbeConversation) -> str:
    lay_out = renderer.own_layout if isinstance(renderer, OwnLayout) else renderer.render
    found, wanted = _tried(lay_out, conversation), _tried(renderer.by_template, conversation)
    if found is None or wanted is None or (isinstance(found, str) and isinstance(wanted, str)):
        return ""
    if isinstance(found, str) or isinstance(wanted, str):
        refused = f"the template refuses: {wanted}" if isinstance(wanted, str) else f"refused: {found}"
        return f"{refused}, which the other one does not"
    return "" if found == wanted else difference(renderer.decode, found, wanted)


def _tried(
    lay_out: Callable[[Sequence[Message], Sequence[Tool]], TokenIds | None], conversation: ProbeConversation
) -> TokenIds | str | None:
    """The tokens, or why there are none."""
    try:
        return lay_out(conversation.messages, conversation.tools)
    except Exception as error:  # a template raises what it likes
        return str(error) or type(error).__name__


def difference(decode: Callable[[TokenIds], str], found: TokenIds, wanted: TokenIds) -> str:
    at = common(found, wanted)
    texts = [decode(ids[at : at + 8]) for ids in (found, wanted)]
    return f"differs at token {at}: {texts[0]!r} where the template writes {texts[1]!r}"


def common(one: TokenIds, other: TokenIds) -> int:
    """How many tokens both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))
