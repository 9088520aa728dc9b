"""Whether a renderer renders conversations like the model's own chat template, token for token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from polar.tokens.preflight.probes import ProbeConversation
from polar.tokens.sequences import first_difference
from polar.types import Message, TokenIds, Tool


@runtime_checkable
class TemplatedRenderer(Protocol):
    """A renderer of a model with a chat template."""

    def own_layout(self, messages: Sequence[Message], tools: Sequence[Tool]) -> TokenIds:
        """The renderer's own rendering, even if it uses the template on request of a task."""
        ...

    def by_template(self, messages: Sequence[Message], tools: Sequence[Tool]) -> TokenIds | None:
        """The rendering of the model's own template; None if it has none."""
        ...

    def decode(self, ids: TokenIds) -> str: ...


def parity(renderer: TemplatedRenderer, conversations: Sequence[ProbeConversation]) -> dict[str, str]:
    """How the two renderings of each conversation differ, by its name; empty if they do not. It is no difference
    if both refuse."""
    return {conversation.name: _difference(renderer, conversation) for conversation in conversations}


def _difference(renderer: TemplatedRenderer, conversation: ProbeConversation) -> str:
    found, wanted = _try(renderer.own_layout, conversation), _try(renderer.by_template, conversation)
    if found is None or wanted is None or (isinstance(found, str) and isinstance(wanted, str)):
        return ""
    if isinstance(found, str) or isinstance(wanted, str):
        refused = f"the template refuses: {wanted}" if isinstance(wanted, str) else f"refused: {found}"
        return f"{refused}, and the other does not"
    return "" if found == wanted else difference(renderer.decode, found, wanted)


def _try(
    render: Callable[[Sequence[Message], Sequence[Tool]], TokenIds | None], conversation: ProbeConversation
) -> TokenIds | str | None:
    """The ids, or the reason to refuse."""
    try:
        return render(conversation.messages, conversation.tools)
    except Exception as error:  # a template may raise anything
        return str(error) or type(error).__name__


def difference(decode: Callable[[TokenIds], str], found: TokenIds, wanted: TokenIds) -> str:
    at = first_difference(found, wanted)
    texts = [decode(ids[at : at + 8]) for ids in (found, wanted)]
    return f"differs at token {at}: {texts[0]!r} where the template writes {texts[1]!r}"
