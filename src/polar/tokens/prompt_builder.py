"""A request as tokens, where the gateway lays prompts out.

The tokens of the call it attaches to stay as they were sampled and only what is new is rendered, so *prompt starts
with parent's prompt + completion* holds by construction. Where no call begins the request, or the family cannot
bridge, the whole request is rendered on a branch of its own, and the reason is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from polar.tokens.base import Renderer
from polar.tokens.digest import TokenDigest
from polar.tokens.forest import Attachment, CallForest
from polar.types import Drift, Message, TokenIds, Tool


class PreparedPrompt(msgspec.Struct, frozen=True):
    """A request as tokens, and how it hangs together with what came before."""

    parent_id: str | None
    continues: bool
    new_prompt_ids: TokenIds
    prompt_ids: TokenIds
    """All of it, as the engine gets it."""
    prompt_digest: bytes
    new_messages: tuple[Message, ...]
    break_reason: str = ""
    tolerant: tuple[str, ...] = ()
    drift: Drift | None = None


class Prompting:
    """For the requests of one session."""

    def __init__(self, forest: CallForest, renderer: Renderer) -> None:
        self._forest = forest
        self._renderer = renderer

    def prepare(self, messages: Sequence[Message], tools: tuple[Tool, ...]) -> PreparedPrompt:
        place = self._forest.find(messages, tools)
        return self.bridge(place) or self.render(place)

    def bridge(self, place: Attachment) -> PreparedPrompt | None:
        """The parent's exact tokens and what is new. None where there is no parent, or its family cannot go on
        from it exactly."""
        if place.parent is None:
            return None
        prompt_ids, completion_ids = self._forest.prompt_ids(place.parent), place.parent.call.completion_ids
        bridge = self._renderer.bridge(prompt_ids, completion_ids, place.new, place.tools)
        if bridge is None:
            return None
        prompt_ids.extend(completion_ids)  # in place: long prompts are not copied twice more
        prompt_ids.extend(bridge)
        return continued(place, prompt_ids, len(bridge))

    def render(self, place: Attachment) -> PreparedPrompt:
        """The whole request, on a branch of its own."""
        return branched(place, self._renderer.render(place.messages, place.tools))


def continued(place: Attachment, prompt_ids: TokenIds, new_tokens: int) -> PreparedPrompt:
    """A prompt that begins with the parent's prompt and completion; `new_tokens` come after them."""
    assert place.parent is not None
    new_prompt_ids = prompt_ids[len(prompt_ids) - new_tokens :]
    return PreparedPrompt(
        parent_id=place.parent.call.call_id,
        continues=True,
        new_prompt_ids=new_prompt_ids,
        prompt_ids=prompt_ids,
        prompt_digest=place.parent.digest.extended(new_prompt_ids).value(),
        new_messages=place.since_parent,
        break_reason=place.edited,
        tolerant=place.overlooked,
    )


def branched(place: Attachment, prompt_ids: TokenIds, drift: Drift | None = None) -> PreparedPrompt:
    """A prompt that goes on from no stored tokens."""
    parent = place.parent
    why = place.edited or (drift.kind if drift else "bridge_refused")
    return PreparedPrompt(
        parent_id=parent.call.call_id if parent else None,
        continues=False,
        new_prompt_ids=prompt_ids,
        prompt_ids=prompt_ids,
        prompt_digest=TokenDigest(prompt_ids).value(),
        new_messages=place.since_parent,
        break_reason=why if parent else place.why_new_root,
        tolerant=place.overlooked,
        drift=drift,
    )
