"""What builders cost in time and memory as sessions grow.

    python benchmarks/builders.py [--tokens 100000] [--calls 50 100 200] [--rounds 5] [--write]

Sessions made up of random ids, each as long as its number of calls, the longest with `--tokens` new tokens. Three
shapes: `chain` appends all the time, so these tokens are the context of its last call; `branches` has, after every
tenth call, four sub-agents that go on from the same point side by side; `comb` has a sub-agent after each call,
and twice the tokens, so that its last context is as long as that of `chain`.

Time is divided by the new tokens of all calls: linear means that the figure stays as it is down a column. Memory
is the peak during the build, counted by tracemalloc, divided by the bytes of the tokens themselves: those of all
calls' new tokens, 9 bytes each, for that is what a trace holds of one (id, mask, logprob). The file is what
`write_trajectory` makes of the result, by the same measure. The certificate is what every session gets in POSTRUN.
A second table shows what the rules for drift make of sessions whose prompts do (`builders_drift.py`).
Compare rows of one run, not runs.
`--write` puts the table into docs/performance.md.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from statistics import median

from builders_drift import HEAD as DRIFT_HEAD
from builders_drift import drift_rows
from page import origin, table, write_section

from polar import registry
from polar.audit.certificate import certify
from polar.builders.base import Builder
from polar.tokens.sequences import TokenDigest
from polar.types import Call, CallTimes, Message, Spec, TokenIds, Trajectory, logprobs, token_ids
from polar.types.packed import packed

BUILDERS = ("prefix_merging", "tree", "per_request")
SHAPES = ("chain", "branches", "comb")
BYTES_PER_TOKEN = 9
SAMPLED_SHARE = 0.3
"""Of new tokens; the rest is what harness and tools say."""
BRANCH_EVERY, SIBLINGS = 10, 4
PLAIN = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}


class Talk:
    """A session while it grows: calls as the gateway stores them."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.calls: list[Call] = []
        self._after: dict[str, tuple[TokenDigest, int]] = {}
        self._items: dict[str, int] = {}

    def add(self, new_tokens: int, after: Call | None, kind: str = "agent") -> Call:
        sampled = max(1, int(new_tokens * SAMPLED_SHARE))
        prompt, completion = self._ids(max(1, new_tokens - sampled)), self._ids(sampled)
        digest, tokens = self._after[after.call_id] if after else (TokenDigest(), 0)
        digest, tokens = digest.extended(prompt), tokens + len(prompt)
        number = len(self.calls)
        said = Message(role="user", content=f"message {number}")
        call = Call(
            call_id=f"c{number}",
            session_id="s",
            parent_id=after.call_id if after else None,
            continues=after is not None,
            new_prompt_ids=prompt,
            completion_ids=completion,
            logprobs=logprobs([-0.5] * sampled),
            prompt_digest=digest.value(),
            prompt_tokens=tokens,
            finish_reason="stop",
            new_messages=(after.response, said) if after else (said,),
            response=Message(role="assistant", content=f"reply {number}"),
            tools=None if after else (),
            new_items=tuple(f"{number} {part}".encode() for part in range(2)),
            shared_items=self._items[after.call_id] if after else 0,
            dialect="openai_chat",
            kind="agent" if kind == "agent" else "subagent",
            sampling=PLAIN,
            engine="none",
            logprob_mode="raw",
            times=CallTimes(0.0, 0.0, 0.0),
            received=True,
        )
        self.calls.append(call)
        self._after[call.call_id] = (digest.extended(completion), tokens + sampled)
        self._items[call.call_id] = call.shared_items + len(call.new_items)
        return call

    def _ids(self, count: int) -> TokenIds:
        return token_ids(self._chance.choices(range(150_000), k=count))


def session(shape: str, calls: int, tokens: int) -> list[Call]:
    talk = Talk(seed=calls)
    trunk: Call | None = None
    if shape == "comb":
        tokens *= 2
    while len(talk.calls) < calls:
        trunk = talk.add(max(2, tokens // calls), trunk)
        if shape == "comb" and len(talk.calls) < calls:
            talk.add(max(2, tokens // calls), trunk, "subagent")
        if shape == "branches" and len(talk.calls) % BRANCH_EVERY == 0:
            for _ in range(min(SIBLINGS, calls - len(talk.calls))):
                talk.add(max(2, tokens // calls), trunk, "subagent")
    return talk.calls


def new_tokens(calls: Sequence[Call]) -> int:
    return sum(len(call.new_prompt_ids) + len(call.completion_ids) for call in calls)


def microseconds(work: Callable[[], object], rounds: int) -> float:
    """Of processor time, a median: the machine may have other work."""
    taken: list[float] = []
    for _ in range(rounds):
        gc.collect()
        begun = time.process_time()
        work()
        taken.append(time.process_time() - begun)
    return median(taken) * 1e6


def peak_bytes(builder: Builder, calls: Sequence[Call]) -> tuple[Trajectory, int]:
    """What the build takes at its height, its result included, the calls not."""
    gc.collect()
    tracemalloc.start()
    try:
        trajectory = builder.build("s", calls)
        return trajectory, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def row(shape: str, name: str, calls: Sequence[Call], rounds: int) -> list[str]:
    builder: Builder = registry.make("builder", Spec(name=name))
    fresh = new_tokens(calls)
    trajectory, peak = peak_bytes(builder, calls)
    if not certify(calls, trajectory).exact:
        raise SystemExit(f"{name} is not exact on {len(calls)} calls")
    stated = sum(len(trace.prompt_ids) + len(trace.response_ids) for trace in trajectory.traces)
    return [
        f"{shape}, {name}",
        str(len(calls)),
        f"{fresh}",
        f"{stated / fresh:.2f}",
        f"{microseconds(lambda: builder.build('s', calls), rounds) / fresh:.2f}",
        f"{peak / (fresh * BYTES_PER_TOKEN):.2f}",
        f"{len(packed(trajectory)) / (fresh * BYTES_PER_TOKEN):.2f}",
        f"{microseconds(lambda: certify(calls, trajectory), rounds) / fresh:.2f}",
    ]


def rows(shapes: Sequence[str], counts: Sequence[int], tokens: int, rounds: int) -> Iterator[list[str]]:
    for shape in shapes:
        made = {count: session(shape, count, tokens * count // max(counts)) for count in counts}
        for name in BUILDERS:
            for count in counts:
                yield row(shape, name, made[count], rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--tokens", type=int, default=100_000, help="context of the longest session's last call")
    parser.add_argument("--calls", type=int, nargs="+", default=[50, 100, 200])
    parser.add_argument("--rounds", type=int, default=5, help="times are medians")
    parser.add_argument("--write", action="store_true", help="put the table into the docs")
    options = parser.parse_args()
    head = ["session, builder", "calls", "new tokens", "tokens in traces / new", "µs of CPU / new token"]
    head += ["peak memory / tokens", "file / tokens", "certificate, µs / new token"]
    found = table(head, list(rows(SHAPES, options.calls, options.tokens, options.rounds)))
    counts = " ".join(map(str, options.calls))
    command = f"python benchmarks/builders.py --tokens {options.tokens} --calls {counts} --rounds {options.rounds}"
    drift = table(DRIFT_HEAD, list(drift_rows(max(options.calls), options.tokens)))
    text = f"{found}\n\n{drift}\n\n{origin(f'{command} --write')}"
    print(text)
    if options.write:
        write_section("builders", text)


if __name__ == "__main__":
    main()
