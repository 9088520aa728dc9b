"""`polar show --call N`: one model call with what was new in its request, its reply and its tokens."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from polar.cli.output import console, number, seconds, visible
from polar.cli.show.additions import added_to
from polar.cli.show.conversation import reply_title
from polar.cli.show.messages import print_message
from polar.cli.show.shown_session import ShownSession, short_id
from polar.dashboard.spelling import spelling
from polar.types import Call, token_ids

if TYPE_CHECKING:
    from rich.console import Console


def print_call(session: ShownSession, call: Call, *, full: bool, with_tokens: bool) -> None:
    out = console()
    for line in _facts(session, call):
        out.print(visible(line), soft_wrap=not out.is_terminal)
    out.print()
    if added := added_to(session, call):
        out.print(f"[{added}]", style="magenta", soft_wrap=True)
    for message in call.new_turns:
        print_message(out, message, full=full)
    print_message(out, call.response, title=reply_title(call, session.session_id), full=full)
    if with_tokens:
        _print_tokens(out, session, call)


def _facts(session: ShownSession, call: Call) -> list[str]:
    times = call.times
    lines = [
        f"call {short_id(call.call_id, session.session_id)} of session {session.session_id}: "
        f"{call.kind}, {call.dialect}, engine {call.engine}",
        f"took {seconds(times.sampled - times.arrived)}: {seconds(times.rendered - times.arrived)} until its "
        f"prompt was rendered, {seconds(times.sampled - times.rendered)} for the reply",
        f"prompt {_prompt(call)}; {_sampled(call)}; finish reason {call.finish_reason}"
        + ("" if call.received else "; not received by the harness"),
        f"tools {_tools(call)}; sampling {', '.join(f'{name} {value}' for name, value in call.sampling.items())}",
    ]
    if call.policy_version:
        lines.append(f"policy version {call.policy_version}" + (", updated within" if call.updated_within else ""))
    return [*lines, _relation(session, call)]


def _prompt(call: Call) -> str:
    if call.usage is not None:
        cached = f", {call.usage.cached_tokens} of them cached" if call.usage.cached_tokens else ""
        return f"{number(call.usage.prompt_tokens)} tokens as the endpoint counts{cached}"
    evaluated = "" if call.evaluated_tokens is None else f", {call.evaluated_tokens} of them evaluated"
    return f"{call.prompt_tokens} tokens{evaluated}"


def _sampled(call: Call) -> str:
    if call.usage is not None:
        reasoning = f", {call.usage.reasoning_tokens} of them reasoning" if call.usage.reasoning_tokens else ""
        return f"{number(call.usage.completion_tokens)} tokens sampled{reasoning}, without ids"
    known = [value for value in call.logprobs if not math.isnan(value)]
    mean = f", mean logprob {sum(known) / len(known):.3f}" if known else ""
    unknown = len(call.logprobs) - len(known)
    return f"{len(call.completion_ids)} tokens sampled{mean}" + (f", {unknown} without one" if unknown else "")


def _tools(call: Call) -> str:
    if call.tools is None:
        return "as in the call before"
    return ", ".join(tool.name for tool in call.tools) or "none"


def _relation(session: ShownSession, call: Call) -> str:
    """Where it stands in the forest, and why."""
    if call.parent_id is None:
        relation = "the first of its chain"
    else:
        parent = short_id(call.parent_id, session.session_id)
        relation = (
            f"continues the tokens of call {parent}" if call.continues else f"follows call {parent}, rendered anew"
        )
    reasons = [call.break_reason and f"because of {call.break_reason}"]
    if call.tolerant:
        reasons.append(f"tolerated: {', '.join(call.tolerant)}")
    return "; ".join([relation, *filter(None, reasons)])


def _print_tokens(out: Console, session: ShownSession, call: Call) -> None:
    spell = asyncio.run(spelling(session.renderer))
    out.print("\n      id  logprob  token")
    for token, value in zip(call.completion_ids, call.logprobs, strict=True):
        text = visible(spell(token_ids([token])), newline="⏎")
        out.print(f"{token:8}  {'-' if math.isnan(value) else f'{value:7.3f}':>7}  {text}", soft_wrap=True)
