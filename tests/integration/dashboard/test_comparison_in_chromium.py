"""Two traces side by side in a real Chromium: where they agree, the way to the first difference, other traces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chromium import Chromium, started_chromium
from polar.dashboard.comparison import comparison_of
from polar.dashboard.document import comparison_document
from polar.dashboard.material import material_of_run, rebuilt
from polar.types import TokenIds
from viewed_session import HOSTILE, Conversation, forked, store
from waiting import until

pytestmark = pytest.mark.check

LONG = "the same long text of a tool, word for word, " * 40


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    with started_chromium(width=1280) as browser:
        yield browser


def spelled(ids: TokenIds) -> str:
    return "".join(map(chr, ids))


def answered(session_id: str, answer: str) -> Conversation:
    talk = Conversation(session_id)
    first = talk.say("<add 2 and 2>", answer)
    talk.say(f"<{LONG}>", "done", parent=first)
    return talk


async def opened(
    browser: Chromium, folder: Path, *talks: Conversation, builder: str = "", words: str = "add"
) -> str:
    """Two sessions, or one with its stored traces and with another builder's. Returns the address."""
    run = await store(folder / "runs", *talks, words=words)
    left = await material_of_run(run, talks[0].session_id)
    right = await material_of_run(run, talks[-1].session_id)
    page = folder / "compared.html"
    page.write_text(comparison_document(comparison_of(left, rebuilt(right, builder), spelled)))
    browser.open(page)
    await until(lambda: browser.ask("document.getElementById('aligned').children.length && !WAITING.size"))
    return page.as_uri()


def pieces(browser: Chromium) -> list[str]:
    return browser.ask("pieces.map(piece => piece.what)")


async def test_two_sessions_agree_up_to_their_answers(chromium: Chromium, tmp_path: Path) -> None:
    address = await opened(chromium, tmp_path, answered("add-0", "four"), answered("add-1", "fifty"))
    assert pieces(chromium) == ["same", "differ", "same"], "the text of the tool is equal again"
    outcome = chromium.ask("document.getElementById('outcome').textContent")
    assert outcome == f"Equal up to token {len('<add 2 and 2>f')}; 1 difference."
    chromium.press("f")
    assert chromium.ask("document.activeElement.id") == "piece-1"
    assert chromium.ask("location.hash") == "#traces-0-0-1"
    sides = "[...document.querySelectorAll('#piece-1 .block')].map(each => each.textContent)"
    assert chromium.ask(sides) == ["our", "ifty"]
    chromium.open(f"{address}#traces-0-0-1")
    await until(lambda: chromium.ask("document.activeElement.id") == "piece-1")
    assert chromium.complaints() == []
    assert chromium.ask("document.documentElement.scrollWidth <= 1280")


async def test_equal_tokens_stand_beside_each_other(chromium: Chromium, tmp_path: Path) -> None:
    await opened(chromium, tmp_path, answered("add-0", "four"), answered("add-1", "fifty, or so I think\n\n\n"))
    last_pair = "[...document.querySelectorAll('#piece-2 .pair:last-child .block')]"
    left, right = chromium.ask(f"{last_pair}.map(each => each.getBoundingClientRect().top)")
    assert left == right
    folded = "document.querySelectorAll('#piece-2 .pair').length"
    before = chromium.ask(folded)
    chromium.ask("document.querySelector('#piece-2 .unfold').click()")
    assert chromium.ask(folded) > before == 2
    assert chromium.ask("document.querySelectorAll('.unfold').length") == 0


async def test_two_builders_differ_in_what_they_train_on(chromium: Chromium, tmp_path: Path) -> None:
    await opened(chromium, tmp_path, forked(), builder="per_request")
    assert chromium.ask("[...document.querySelectorAll('.rows ol')].map(each => each.children.length)") == [3, 4]
    assert chromium.ask("shownRows") == [0, 1], "the longest trace that begins like it"
    assert pieces(chromium) == ["same", "use", "use", "use", "same"]
    assert "trained on the left, given on the right" in chromium.ask(
        "document.querySelector('.piece.use h3').textContent"
    )
    chromium.press("n")
    chromium.press("n")
    assert chromium.ask("document.activeElement.id") == "piece-2"
    chromium.press("p")
    assert chromium.ask("document.activeElement.id") == "piece-1"
    chromium.ask("document.querySelector('.rows.side-1 [data-row=\"0\"]').click()")
    assert (chromium.ask("location.hash"), chromium.ask("shownRows")) == ("#traces-0-0", [0, 0])
    assert pieces(chromium)[-1] == "differ" and "only on the left" in chromium.ask(
        "document.querySelector('.piece.differ h3').textContent"
    )


async def test_hostile_text_in_a_comparison_is_only_text(chromium: Chromium, tmp_path: Path) -> None:
    talk = Conversation()
    talk.say(HOSTILE, HOSTILE, policy_version=HOSTILE)
    talk.say("<script>" + HOSTILE, HOSTILE, parent=talk.calls[0], continues=False, break_reason=HOSTILE)
    await opened(chromium, tmp_path, talk, builder="per_request", words=HOSTILE)
    assert pieces(chromium)
    chromium.ask("document.querySelectorAll('.pair').forEach(fillNow)")
    assert chromium.ask("window.hacked") is None
    assert chromium.ask("document.querySelectorAll('img, iframe').length") == 0
    assert chromium.ask("document.getElementById('page').textContent.includes('\\u202e')") is False
    assert chromium.complaints() == []


async def test_a_comparison_fits_a_phone(chromium: Chromium, tmp_path: Path) -> None:
    chromium.look(width=390)
    try:
        await opened(chromium, tmp_path, answered("add-0", "four"), answered("add-1", "fifty"))
        assert chromium.ask("document.documentElement.scrollWidth") <= 390
        shown = "[...document.querySelectorAll('#piece-{} .block')].filter(each => each.offsetHeight).length"
        assert chromium.ask(shown.format(1)) == 2, "beneath each other"
        assert chromium.ask(shown.format(0)) == 1, "equal tokens once"
    finally:
        chromium.look(width=1280)


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ([1, 2, 3], [1, 2, 3], [[0, 3, 0, 3, True]]),
        ([1, 2], [1, 2, 3], [[0, 2, 0, 2, True], [2, 2, 2, 3, False]]),
        ([1, 9, 3], [1, 8, 3], [[0, 1, 0, 1, True], [1, 2, 1, 2, False], [2, 3, 2, 3, True]]),
        ([], [1], [[0, 0, 0, 1, False]]),
        (
            [1, *range(20, 40), 2],
            [3, 3, *range(20, 40), 4],
            [[0, 1, 0, 2, False], [1, 21, 2, 22, True], [21, 22, 22, 23, False]],
        ),
        ([7] * 30 + [1], [7] * 28 + [2], [[0, 28, 0, 28, True], [28, 31, 28, 29, False]]),
    ],
    ids=["equal", "longer", "in the middle", "empty", "a run within", "repeated ids"],
)
async def test_where_sequences_agree(
    chromium: Chromium, tmp_path: Path, left: list[int], right: list[int], expected: list[list[object]]
) -> None:
    await opened(chromium, tmp_path, forked())
    assert chromium.ask(f"aligned(Int32Array.of(...{left}), Int32Array.of(...{right}))") == expected
