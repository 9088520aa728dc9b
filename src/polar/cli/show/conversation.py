"""`polar show --messages`: what was said in a session, chain by chain.

Calls form a forest: a sub-agent, a compaction or a retry begins a chain of its own. Each call stands in one chain,
so no message is printed twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polar.cli.output import console, number, visible
from polar.cli.show.additions import added_to
from polar.cli.show.messages import print_message
from polar.cli.show.shown_session import ShownSession, short_id
from polar.tokens.chains import Chain, chains_of
from polar.types import Call

if TYPE_CHECKING:
    from rich.console import Console


def print_conversation(session: ShownSession, *, full: bool) -> None:
    out = console()
    if not session.calls:
        out.print(f"session {session.session_id} has no calls yet: {session.lease.session.stage}")
        return
    for index, chain in enumerate(chains_of(session.calls)):
        out.print("\n" if index else "", end="")
        _print_chain(out, session, chain, full=full)


def _print_chain(out: Console, session: ShownSession, chain: Chain, *, full: bool) -> None:
    first, count = chain.calls[0], len(chain.calls)
    title = f"{first.kind}, {count} {'call' if count == 1 else 'calls'}"
    if chain.parent is not None:
        title += f", after call {short_id(chain.parent.call_id, session.session_id)} of another chain"
    if first.break_reason:
        title += f", because of {first.break_reason}"
    out.print(visible(f"=== {title}"), style="bold", soft_wrap=True)
    for call in chain.calls:
        if added := added_to(session, call):
            out.print(f"[{added}]", style="magenta", soft_wrap=True)
        for message in call.new_turns:
            print_message(out, message, full=full)
        print_message(out, call.response, title=reply_title(call, session.session_id), full=full)


def reply_title(call: Call, session_id: str) -> str:
    """The call that a reply belongs to, and how it ended."""
    sampled = str(len(call.completion_ids)) if call.usage is None else number(call.usage.completion_tokens)
    parts = [f"call {short_id(call.call_id, session_id)}", f"{sampled} tokens sampled", call.finish_reason]
    return visible(", ".join([*parts, *([] if call.received else ["not received by the harness"])]))
