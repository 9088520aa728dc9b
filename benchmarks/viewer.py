"""How large the page of a long session is, and how smoothly it scrolls.

    python benchmarks/viewer.py [--tokens 100000] [--calls 50] [--steps 300] [--pixels 120]

Writes a made-up session to a file as `polar view --html` does, opens it in Chromium without a screen, and scrolls:
first on from the top by `--pixels` in each frame, as a hand does, then from top to bottom in as many leaps. A
frame is the time between two calls of requestAnimationFrame, here with all painting done by the processor. Needs
chromium and chromedriver, and selenium from the extra `dev`.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from chromium import started_chromium  # noqa: E402 - of the tests
from polar.dashboard.document import session_document  # noqa: E402
from polar.dashboard.material import material_of_run  # noqa: E402
from polar.dashboard.session_page import page_of  # noqa: E402
from polar.types import Call, Message, TokenIds, token_ids  # noqa: E402
from viewed_session import Conversation, store  # noqa: E402

WORDS = (
    "the file test error return value call model sampled path line import def class none true with open".split()
)
FRAMES = """
const [steps, pixels, done] = arguments;
const frames = [];
const leap = pixels || (document.documentElement.scrollHeight - innerHeight) / steps;
let step = 0, last = null;
function next(now) {
  if (last !== null) frames.push(now - last);
  last = now;
  if (step++ > steps) return done(frames);
  scrollBy(0, leap);
  requestAnimationFrame(next);
}
scrollTo(0, 0);
requestAnimationFrame(next);
"""


def spelled(ids: TokenIds) -> str:
    """Each id is a word, with a line's end now and then."""
    return "".join("\n" if each % 17 == 0 else f" {WORDS[each % len(WORDS)]}{each}" for each in ids)


def a_session(tokens: int, calls: int) -> Conversation:
    rng = random.Random(1)
    size = tokens // calls // 2
    talk, before = Conversation(), None

    def characters() -> str:
        return "".join(chr(rng.randrange(1, 30_000)) for _ in range(size))

    for number in range(calls):
        given, sampled = characters(), characters()
        asked = Message(role="user", content=spelled(token_ids(map(ord, given))))
        reply = Message(role="assistant", content=spelled(token_ids(map(ord, sampled))))
        parent: Call | None = before
        echo = (parent.response,) if parent else ()
        changes = {"new_messages": (*echo, asked), "response": reply, "policy_version": f"v{number // 10}"}
        before = talk.say(given, sampled, parent=parent, **changes)
    return talk


def frames_in_words(frames: list[float]) -> str:
    frames = sorted(frames)
    middle, high = frames[len(frames) // 2], frames[int(len(frames) * 0.99)]
    over = sum(frame > 50 for frame in frames)
    high_end = f"p99 {high:.1f} ms, longest {frames[-1]:.1f} ms, {over} of {len(frames)} over 50 ms"
    return f"median {middle:.1f} ms, {high_end}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--pixels", type=int, default=120)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, started_chromium() as browser:
        run = asyncio.run(store(Path(folder) / "runs", a_session(options.tokens, options.calls)))
        began = time.perf_counter()
        document = session_document(page_of(asyncio.run(material_of_run(run, "add-0")), spelled))
        made_s = time.perf_counter() - began
        page = Path(folder) / "page.html"
        page.write_text(document)
        began = time.perf_counter()
        browser.open(page)
        loaded_s = time.perf_counter() - began
        browser.driver.set_script_timeout(300)
        scrolled = browser.driver.execute_async_script(FRAMES, options.steps, options.pixels)
        leaps = browser.driver.execute_async_script(FRAMES, options.steps, 0)
        tokens = browser.ask("WORDS.length")
        drawn = browser.ask("document.querySelectorAll('.block .t').length")
    print(
        f"{tokens} tokens in {options.calls} calls: {len(document.encode()) / 1e6:.2f} MB, made in {made_s:.1f} s"
    )
    print(f"loaded in {loaded_s:.2f} s; {drawn} tokens in the document at the end")
    print(f"scrolling by {options.pixels} pixels: {frames_in_words(scrolled)}")
    print(f"leaping to the end: {frames_in_words(leaps)}")


if __name__ == "__main__":
    main()
