"""Writes calls as the gateway stores them, with one letter for each token.

A puzzle reads `talk.call("Su", "ab")` for a prompt of the tokens S and u that got the reply a b; a call `after`
another continues it with what is new. Lower in the tests, `shape(trace)` gives prompt, response and mask back.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import Any

import msgspec

from polar.tokens.sequences import digest_of
from polar.types import Call, CallTimes, Message, Trace, Trajectory, logprobs, token_ids

PLAIN_SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}


def ids(letters: str) -> array[int]:
    return token_ids(map(ord, letters))


def letters(token_ids: Sequence[int]) -> str:
    return "".join(map(chr, token_ids))


class Conversation:
    """The calls of one session, in the order in which they are written down."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._prompts: dict[str, str] = {}

    def call(
        self,
        new: str,
        reply: str,
        after: Call | None = None,
        *,
        continues: bool | None = None,
        echo: Message | None = None,
        **changes: Any,
    ) -> Call:
        """`changes` are fields of the call as they shall be stored, whatever they would be by themselves."""
        continues = after is not None if continues is None else continues
        prompt = (self._context(after) if continues else "") + new
        said = Message(role="user", content=new)
        call = Call(
            call_id=f"c{len(self.calls) + 1}",
            session_id="s1",
            parent_id=after.call_id if after else None,
            continues=continues,
            new_prompt_ids=ids(new),
            completion_ids=ids(reply),
            logprobs=logprobs([-0.5] * len(reply)),
            prompt_digest=digest_of(ids(prompt)),
            prompt_tokens=len(prompt),
            finish_reason="stop",
            new_messages=(echo or after.response, said) if after else (said,),
            response=Message(role="assistant", content=reply),
            tools=(),
            new_items=self._request(after, new),
            dialect="openai_chat",
            kind="agent",
            sampling=PLAIN_SAMPLING,
            engine="embedded",
            logprob_mode="raw",
            times=CallTimes(arrived=0.0, rendered=0.0, sampled=0.0),
            received=True,
            request_key=hashlib.blake2b(b"/".join(self._request(after, new)), digest_size=16).digest(),
        )
        call = msgspec.structs.replace(call, **changes)
        self.calls.append(call)
        self._prompts[call.call_id] = prompt
        return call

    def full_prompt(self, call: Call) -> str:
        return self._prompts[call.call_id]

    def _context(self, after: Call | None) -> str:
        assert after is not None
        return self._prompts[after.call_id] + letters(after.completion_ids)

    def _request(self, after: Call | None, new: str) -> tuple[bytes, ...]:
        if after is None:
            return (b"tools", new.encode())
        return (*after.new_items, f"reply of {after.call_id}".encode(), new.encode())


def shape(trace: Trace) -> tuple[str, str, str]:
    """Prompt, response, and under each token of the response whether it is trained on."""
    return (
        letters(trace.prompt_ids),
        letters(trace.response_ids),
        "".join("^" if bit else "." for bit in trace.loss_mask),
    )


def shapes(trajectory: Trajectory) -> list[tuple[str, str, str]]:
    return [shape(trace) for trace in trajectory.traces]


def drops(trajectory: Trajectory) -> list[tuple[str, int, int, str]]:
    return [(drop.call_id, drop.start, drop.length, drop.reason) for drop in trajectory.dropped]


def breaks(trajectory: Trajectory) -> list[tuple[str, str | None, str]]:
    return [(broken.call_id, broken.parent_id, broken.reason) for broken in trajectory.breaks]
