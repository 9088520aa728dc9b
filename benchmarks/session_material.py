"""Sessions of real size for benchmarks of the server: calls as a gateway stores them, over real text.

The text is this package's own source, cut into pieces as a tokenizer would (about four characters each), and a
piece's id is its rank by frequency. So ids, messages and repetitions compress as those of an agent that reads
code; logprobs are drawn from a distribution, and compress as badly as real ones.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from polar.tokens.sequences import TokenDigest
from polar.types import Call, CallTimes, Message, ToolCall, logprobs, token_ids

SOURCES = Path(__file__).parent.parent / "src" / "polar"
SAMPLED_SHARE = 0.2
"""Of new tokens; the rest is what harness and tools say."""
PLAIN = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
_PIECE = re.compile(r"\s?\w{1,5}|\s+|[^\w\s]{1,3}")


@cache
def _pieces() -> tuple[list[str], dict[str, int]]:
    """Every piece of the text in order, and the id of each."""
    text = "\n".join(path.read_text() for path in sorted(SOURCES.rglob("*.py")))
    pieces = _PIECE.findall(text)
    return pieces, {piece: 100 + rank for rank, (piece, _) in enumerate(Counter(pieces).most_common())}


class SessionMaterial:
    """Calls of one session, each with new tokens after the one before, or after an earlier one."""

    def __init__(self, session_id: str, seed: int) -> None:
        self.calls: list[Call] = []
        self._session_id = session_id
        self._chance = random.Random(seed)
        self._after: dict[str, tuple[TokenDigest, int]] = {}

    def add(self, new_tokens: int, after: Call | None, *, subagent: bool = False) -> Call:
        prompt = self._passage(int(new_tokens * (1 - SAMPLED_SHARE)))
        reply = self._passage(int(new_tokens * SAMPLED_SHARE))
        ids = _pieces()[1]
        prompt_ids, reply_ids = token_ids(map(ids.__getitem__, prompt)), token_ids(map(ids.__getitem__, reply))
        digest, tokens = self._after[after.call_id] if after else (TokenDigest(), 0)
        digest, tokens = digest.extended(prompt_ids), tokens + len(prompt_ids)
        number = len(self.calls)
        said = Message(role="tool" if after else "user", content="".join(prompt), tool_call_id=f"t{number}")
        asked = ToolCall("bash", "".join(reply[len(reply) // 2 :]), f"t{number + 1}")
        call = Call(
            call_id=f"{self._session_id}.1.{number}",
            session_id=self._session_id,
            parent_id=after.call_id if after else None,
            continues=after is not None,
            new_prompt_ids=prompt_ids,
            completion_ids=reply_ids,
            logprobs=logprobs(-self._chance.expovariate(3) for _ in reply_ids),
            prompt_digest=digest.value(),
            prompt_tokens=tokens,
            finish_reason="tool_calls",
            new_messages=(after.response, said) if after else (said,),
            response=Message(role="assistant", content="".join(reply[: len(reply) // 2]), tool_calls=(asked,)),
            tools=None if after else (),
            new_items=tuple(self._chance.randbytes(16) for _ in range(2)),
            shared_items=2 * number,
            dialect="openai_chat",
            kind="subagent" if subagent else "agent",
            sampling=PLAIN,
            engine="replayed",
            logprob_mode="raw",
            times=CallTimes(1.0 + number, 1.1 + number, 1.9 + number),
            received=True,
        )
        self.calls.append(call)
        self._after[call.call_id] = (digest.extended(reply_ids), tokens + len(reply_ids))
        return call

    def _passage(self, tokens: int) -> Sequence[str]:
        pieces = _pieces()[0]
        start = self._chance.randrange(len(pieces) - tokens)
        return pieces[start : start + tokens]


def a_session(session_id: str, calls: int, tokens: int, *, seed: int, branch_every: int = 0) -> list[Call]:
    """`tokens`: in the context of the last call. `branch_every`: after each so many calls a sub-agent asks
    once."""
    material = SessionMaterial(session_id, seed)
    last: Call | None = None
    for number in range(calls):
        last = material.add(max(10, tokens // calls), last)
        if branch_every and number % branch_every == branch_every - 1:
            material.add(max(10, tokens // calls), last, subagent=True)
    return material.calls
