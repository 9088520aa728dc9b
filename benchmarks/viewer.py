"""How large the page of a long session is, and how smoothly it scrolls.

    python benchmarks/viewer.py [--tokens 100000] [--calls 50 1000] [--steps 300] [--pixels 120]

Writes a made-up session to a file as `polar view --html` does, opens it in Chromium without a screen, and moves
through it in four ways: on from the top by `--pixels` in each frame, as a hand does; from top to bottom in as many
leaps, one a frame; by the keys End and Home; by clicks on far calls of the map. An empty page of the same height
goes through the first three before, as the baseline of this machine at this time.

A frame is the time between two calls of requestAnimationFrame, here with all painting done by the processor. "Long
frames" are what Chromium itself reports as taking more than 50 ms. "Unfilled" counts frames in which the window
showed a place whose content was not drawn yet. Needs chromium and chromedriver, and selenium from the extra `dev`.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from chromium import Chromium, started_chromium  # noqa: E402 - of the tests
from polar.dashboard.document import session_document  # noqa: E402
from polar.dashboard.material import material_of_run  # noqa: E402
from polar.dashboard.session_page import page_of  # noqa: E402
from polar.types import Call, Message, TokenIds, token_ids  # noqa: E402
from viewed_session import Conversation, store  # noqa: E402

WORDS = (
    "the file test error return value call model sampled path line import def class none true with open".split()
)
REPEATS = 5
SETTLED_S = 0.5
"""After a key or a click, before the next."""
RECORDER = """
window.seen = {frames: [], long: [], unfilled: 0};
new PerformanceObserver((list) => list.getEntries().forEach((each) => seen.long.push(each.duration)))
  .observe({type: 'long-animation-frame'});
const isUnfilled = (each) => {
  const {top, bottom} = each.getBoundingClientRect();
  return each.fill && !each.isFull && bottom > 60 && top < innerHeight;
};
window.record = () => {
  let last = null;
  const each = (now) => {
    if (last !== null) {
      seen.frames.push(now - last);
      seen.unfilled += [...document.querySelectorAll('.call, .block')].some(isUnfilled);
    }
    last = now;
    window.recording = requestAnimationFrame(each);
  };
  seen.frames = []; seen.long = []; seen.unfilled = 0;
  window.recording = requestAnimationFrame(each);
};
window.recorded = () => { cancelAnimationFrame(window.recording); return seen; };
"""
SCROLL = """
const [steps, pixels, done] = arguments;
const leap = pixels || (document.documentElement.scrollHeight - innerHeight) / steps;
let step = 0;
const next = () => {
  if (step++ > steps) return done();
  scrollBy(0, leap);
  requestAnimationFrame(next);
};
scrollTo(0, 0);
requestAnimationFrame(next);
"""
MAP_CLICK = """
const nav = document.querySelector('nav');
const number = arguments[0];
nav.scrollTop = (number - 5) * 24;
setTimeout(() => document.querySelector(`[data-map="${number}"]`).dispatchEvent(
  new MouseEvent('click', {bubbles: true, cancelable: true})), 100);
"""
EMPTY = "<!doctype html><title>empty</title><div style='height:{}px'></div>"


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


def in_words(seen: dict[str, Any]) -> str:
    frames = sorted(seen["frames"])
    middle, high = frames[len(frames) // 2], frames[int(len(frames) * 0.99)]
    over = f"{sum(frame > 50 for frame in frames)} of {len(frames)} over 50 ms"
    longest_long = f", the longest {max(seen['long']):.0f} ms" if seen["long"] else ""
    return (
        f"median {middle:.1f} ms, p99 {high:.1f} ms, longest {frames[-1]:.1f} ms, {over}; "
        f"{len(seen['long'])} long frames{longest_long}; {seen['unfilled']} unfilled"
    )


class Moves:
    """The ways through one page."""

    def __init__(self, browser: Chromium, options: argparse.Namespace) -> None:
        self._driver = browser.driver
        self._browser = browser
        self._options = options
        self._driver.set_script_timeout(300)
        self._driver.execute_script(RECORDER)

    def scrolled(self, pixels: int) -> dict[str, Any]:
        """`pixels` 0: in leaps through the whole page."""
        self._driver.execute_script("record()")
        self._driver.execute_async_script(SCROLL, self._options.steps, pixels)
        return self._driver.execute_script("return recorded()")

    def by_keys(self) -> dict[str, Any]:
        self._driver.execute_script("scrollTo(0, 0); record()")
        for _ in range(REPEATS):
            for key in ("\ue010", "\ue011"):  # End, Home
                self._browser.press(key)
                time.sleep(SETTLED_S)
        return self._driver.execute_script("return recorded()")

    def by_map(self, calls: int) -> dict[str, Any]:
        rng = random.Random(2)
        self._driver.execute_script("record()")
        for _ in range(2 * REPEATS):
            self._driver.execute_script(MAP_CLICK, rng.randrange(6, calls))
            time.sleep(SETTLED_S)
        return self._driver.execute_script("return recorded()")


def measure(browser: Chromium, folder: Path, calls: int, options: argparse.Namespace) -> None:
    run = asyncio.run(store(folder / f"runs-{calls}", a_session(options.tokens, calls)))
    began = time.perf_counter()
    document = session_document(page_of(asyncio.run(material_of_run(run, "add-0")), spelled))
    made_s = time.perf_counter() - began
    page, empty = folder / "page.html", folder / "empty.html"
    page.write_text(document)
    began = time.perf_counter()
    browser.open(page)
    loaded_s = time.perf_counter() - began
    tokens = browser.ask("WORDS.length")
    empty.write_text(EMPTY.format(browser.ask("document.documentElement.scrollHeight")))
    print(f"{tokens} tokens in {calls} calls: {len(document.encode()) / 1e6:.2f} MB, made in {made_s:.1f} s")
    elements = browser.ask("document.querySelectorAll('*').length")
    print(f"  loaded in {loaded_s:.2f} s with {elements} elements")
    for name, opened in (("an empty page", empty), ("the session", page)):
        browser.open(opened)
        time.sleep(SETTLED_S)
        moves = Moves(browser, options)
        print(f"  {name}")
        print(f"    by {options.pixels} pixels a frame: {in_words(moves.scrolled(options.pixels))}")
        print(f"    in leaps, one a frame: {in_words(moves.scrolled(0))}")
        print(f"    by End and Home: {in_words(moves.by_keys())}")
        if opened is page:
            print(f"    by clicks on the map: {in_words(moves.by_map(calls))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--calls", type=int, nargs="+", default=[50, 1000])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--pixels", type=int, default=120)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, started_chromium() as browser:
        for calls in options.calls:
            measure(browser, Path(folder), calls, options)


if __name__ == "__main__":
    main()
