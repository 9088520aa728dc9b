"""How large an upload is, and what its compression costs, by builder.

    python benchmarks/uploads.py [--calls 30] [--tokens 20000 60000] [--write]

One session (`session_material.py`) with a sub-agent after every fifth call. `plain` is msgpack with every trace
whole; `shared` has the prefixes that traces share once; `compressed` is that as it travels and rests. Milliseconds
are processor time, a median of five. `--write` puts the table into docs/performance.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

from page import origin, table, write_section
from session_material import a_session

from polar import registry
from polar.builders.base import Builder
from polar.types import SessionResult, SessionUpload, Spec, Stage
from polar.types.codec import encode
from polar.types.packed import decompressed, pack_upload, unpack_upload

BUILDERS = ("per_request", "prefix_merging", "tree")
BRANCH_EVERY = 5
ROUNDS = 5
HEAD = (
    "tokens",
    "builder",
    "traces",
    "plain KB",
    "shared KB",
    "compressed KB",
    "of plain",
    "pack ms",
    "unpack ms",
)


def milliseconds(work: Callable[[], object]) -> float:
    taken: list[float] = []
    for _ in range(ROUNDS):
        begun = time.process_time()
        work()
        taken.append(time.process_time() - begun)
    return 1000 * median(taken)


def row(name: str, calls: int, tokens: int) -> list[str]:
    builder: Builder = registry.make("builder", Spec(name=name))
    made = a_session("s", calls, tokens, seed=1, branch_every=BRANCH_EVERY)
    trajectory = builder.build("s", made)
    result = SessionResult(session_id="s", task_id="t", index=0, attempt=1, stage=Stage.COMPLETED)
    upload = SessionUpload(result.model_dump_json().encode(), trajectory, tuple(made))
    plain, packed = len(encode(upload)), pack_upload(upload)
    sizes = [plain, len(decompressed(packed)), len(packed)]
    return [
        f"{tokens:,}",
        f"`{name}`",
        str(len(trajectory.traces)),
        *(f"{size / 1000:,.0f}" for size in sizes),
        f"{100 * len(packed) / plain:.0f} %",
        f"{milliseconds(lambda: pack_upload(upload)):.1f}",
        f"{milliseconds(lambda: unpack_upload(packed)):.1f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=30)
    parser.add_argument("--tokens", type=int, nargs="+", default=[20_000, 60_000])
    parser.add_argument("--write", action="store_true", help="into docs/performance.md")
    given = parser.parse_args()
    made = table(HEAD, [row(name, given.calls, tokens) for tokens in given.tokens for name in BUILDERS])
    print(made)
    if given.write:
        sizes = " ".join(map(str, given.tokens))
        write_section("uploads", f"{made}\n\n{origin(f'python benchmarks/uploads.py --tokens {sizes}')}")


if __name__ == "__main__":
    main()
