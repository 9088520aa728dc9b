"""The viewer in a real Chromium: it loads without a complaint, shows what is stored, and can be walked through."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from chromium import Chromium, started_chromium
from polar.dashboard.access import CodesRequired, OneTimeCodes
from polar.dashboard.document import session_document
from polar.dashboard.material import material_of_run
from polar.dashboard.session_page import page_of
from polar.dashboard.site import ViewerSite
from polar.dashboard.source import RunSource
from polar.store.paths import RunPaths
from polar.store.trajectories import read_trajectory
from polar.types import TokenIds
from polar.uvicorn_server import UvicornServer, address_of, listen
from viewed_session import HOSTILE, Conversation, forked, hostile, store
from waiting import blocked_until, until

pytestmark = pytest.mark.check


def spelled(ids: TokenIds) -> str:
    return "".join(map(chr, ids))


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    with started_chromium() as browser:
        yield browser


async def shown(browser: Chromium, folder: Path, talk: Conversation, words: str = "add 2 and 2") -> RunPaths:
    """The session's file, opened and put together."""
    run = await store(folder / "runs", talk, words=words)
    page = folder / "page.html"
    page.write_text(session_document(page_of(await material_of_run(run, "add-0"), spelled)))
    browser.open(page)
    first_call_is_there = "(s => !s || s.isFull)(document.querySelector('.call'))"
    await until(lambda: browser.ask(f"document.querySelector('footer') && {first_call_is_there} && !WAITING.size"))
    return run


def draw_all(browser: Chromium) -> None:
    """Also what is far from the window."""
    for parts in (".call", ".block"):
        all_of_them = f"document.querySelectorAll('{parts}')"
        browser.ask(f"{all_of_them}.forEach(each => {{ each.kept = true; fillNow(each); }})")


def details(browser: Chromium) -> dict[str, str]:
    pairs = (
        "[...document.querySelectorAll('#inspector dl div')].map(d => [d.dataset.name, d.lastChild.textContent])"
    )
    return dict(browser.ask(pairs))


async def test_it_loads_without_a_complaint(chromium: Chromium, tmp_path: Path) -> None:
    await shown(chromium, tmp_path, forked())
    assert chromium.complaints() == []
    assert chromium.ask("document.getElementById('light').dataset.light") == "exact"
    assert chromium.ask("document.querySelectorAll('.node').length") == 5
    assert chromium.ask("document.querySelectorAll('.edge.broken').length") >= 2
    assert chromium.ask("document.documentElement.scrollWidth <= window.innerWidth")


async def test_mask_kinds_are_those_of_the_stored_traces(chromium: Chromium, tmp_path: Path) -> None:
    run = await shown(chromium, tmp_path, forked())
    trajectory = read_trajectory(run.session("add-0").traces)
    draw_all(chromium)
    drawn = "document.querySelectorAll('main .block .t.{}').length"
    assert chromium.ask(drawn.format("trained")) == sum(trace.trainable_tokens for trace in trajectory.traces)
    assert chromium.ask(drawn.format("dropped")) == sum(drop.length for drop in trajectory.dropped)
    assert chromium.ask("document.querySelector('[data-legend=trained]').dataset.count") == chromium.ask(
        f"String({drawn.format('trained')})"
    )


async def test_the_context_of_a_call_is_shown_with_its_echoed_tokens(chromium: Chromium, tmp_path: Path) -> None:
    await shown(chromium, tmp_path, forked())
    chromium.ask("document.querySelector('#call-2 .context').open = true")
    await until(lambda: chromium.ask("document.querySelectorAll('#call-2 .context .t').length"))
    echoed = "[...document.querySelectorAll('#call-2 .context .echoed')].map(t => t.textContent).join('')"
    assert chromium.ask(echoed) == "I look.⏎\n"
    given = "[...document.querySelectorAll('#call-2 .context .given')].map(t => t.textContent).join('')"
    assert chromium.ask(given) == "<system>⏎\n<add 2 and 2>"


async def test_kinds_differ_by_more_than_colour(chromium: Chromium, tmp_path: Path) -> None:
    await shown(chromium, tmp_path, forked())
    lines = "['trained', 'dropped', 'echoed', 'given'].map(kind => getComputedStyle(document.querySelector("
    lines += "`.legend .${kind}`)).textDecorationStyle + getComputedStyle(document.querySelector("
    lines += "`.legend .${kind}`)).textDecorationLine)"
    assert len(set(chromium.ask(lines))) == 4


async def test_hostile_text_is_only_text(chromium: Chromium, tmp_path: Path) -> None:
    await shown(chromium, tmp_path, hostile(), words=HOSTILE)
    chromium.ask("document.querySelectorAll('details').forEach(each => each.open = true)")
    draw_all(chromium)
    await until(lambda: chromium.ask("document.querySelectorAll('.raw pre').length"))
    chromium.ask("goToken(3)")
    assert chromium.ask("window.hacked") is None
    assert chromium.ask("document.querySelectorAll('img, main script, iframe').length") == 0
    assert chromium.ask("document.body.textContent.includes('</script><script>window.hacked=1')")
    assert chromium.ask("document.getElementById('page').textContent.includes('\\u202e')") is False
    assert chromium.complaints() == []


async def test_a_script_that_is_not_ours_does_not_run(chromium: Chromium, tmp_path: Path) -> None:
    """Even if text became markup, the page's policy would hold."""
    await shown(chromium, tmp_path, forked())
    inject = (
        "const s = document.createElement('script'); s.textContent = 'window.hacked = 1'; document.body.append(s)"
    )
    chromium.driver.execute_script(inject)
    chromium.driver.execute_script(
        "document.body.insertAdjacentHTML('beforeend', '<b onclick=\"hacked=1\" id=b>x</b>')"
    )
    chromium.driver.execute_script("document.getElementById('b').click()")
    assert chromium.ask("window.hacked") is None
    assert any("Content Security Policy" in complaint for complaint in chromium.complaints())


async def test_keys_walk_through_calls_turns_and_tokens(chromium: Chromium, tmp_path: Path) -> None:
    await shown(chromium, tmp_path, forked())
    chromium.press("nn")
    first = chromium.ask("location.hash")
    chromium.press("n")
    assert (first, chromium.ask("location.hash")) == ("#call-2", "#call-3")
    chromium.press("p")
    assert chromium.ask("location.hash") == "#call-2"
    chromium.press("j")
    turn = "document.activeElement.classList.contains('message') && document.activeElement.textContent"
    here = chromium.ask(turn)
    chromium.press("j")
    after = chromium.ask(turn)
    chromium.press("k")
    assert here and after and here != after and chromium.ask(turn) == here
    chromium.press("lll")
    assert chromium.ask("location.hash") == "#token-2"
    chromium.press("?")
    assert chromium.ask("document.getElementById('help').open") is True


async def test_an_address_leads_to_a_token_and_its_facts(chromium: Chromium, tmp_path: Path) -> None:
    await shown(chromium, tmp_path, forked())
    first = len("<system>\n<add 2 and 2>")
    chromium.open(f"{(tmp_path / 'page.html').as_uri()}#token-{first + 1}")
    facts = details(chromium)
    assert facts["token"] == str(first + 1)
    assert (facts["id"], facts["text"]) == (str(ord(" ")), '" "')
    assert facts["kind"] == "sampled, dropped: missing_logprob"
    assert (facts["logprob"], facts["policy"], facts["call"]) == ("none", "v1", "1")
    assert facts["range"].startswith(f"tokens {first}–{first + 7}")
    chromium.open(f"{(tmp_path / 'page.html').as_uri()}#call-4")
    assert chromium.ask("document.activeElement.id") == "call-4"
    assert "history_edited" in chromium.ask("document.querySelector('#call-4 .fork').textContent")


async def test_search_goes_from_place_to_place(chromium: Chromium, tmp_path: Path) -> None:
    await shown(chromium, tmp_path, forked())
    chromium.press("/")
    chromium.press("SYSTEM\n")
    assert chromium.ask("document.getElementById('found').textContent") == "1 of 1"
    assert chromium.ask("location.hash") == "#token-1"
    chromium.ask("document.getElementById('search').value = 'nowhere'")
    chromium.press("\n")
    assert chromium.ask("document.getElementById('found').textContent") == "not found"


async def test_it_fits_a_phone(chromium: Chromium, tmp_path: Path) -> None:
    chromium.look(width=390, dark=True)
    try:
        await shown(chromium, tmp_path, hostile(), words=HOSTILE)
        assert chromium.ask("document.documentElement.scrollWidth") <= 390
        assert chromium.ask("getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 27)"
    finally:
        chromium.look(width=1300)


async def test_only_tokens_near_the_window_are_in_the_page(chromium: Chromium, tmp_path: Path) -> None:
    talk = Conversation()
    talk.say("".join(f"<line {number}>\n" for number in range(4000)), "done")
    await shown(chromium, tmp_path, talk)
    drawn = "document.querySelectorAll('.block .t').length"
    chromium.ask("goToken(0)")
    await until(lambda: chromium.ask(drawn))
    assert 0 < chromium.ask(drawn) < 8_000 < chromium.ask("WORDS.length")
    last = chromium.ask("WORDS.length") - 1
    chromium.open(f"{(tmp_path / 'page.html').as_uri()}#token-{last}")
    assert details(chromium)["token"] == str(last)
    inside = "(r => r.top >= 0 && r.bottom <= innerHeight)(document.activeElement.getBoundingClientRect())"
    await until(lambda: chromium.ask(inside))
    assert chromium.ask(drawn) < 8_000


def long_talk(calls: int = 400) -> Conversation:
    talk, before = Conversation(), None
    for number in range(calls):
        before = talk.say(f"<question {number}>", f"answer {number}", parent=before)
    return talk


async def test_only_calls_near_the_window_are_in_the_page(chromium: Chromium, tmp_path: Path) -> None:
    await shown(chromium, tmp_path, long_talk())
    drawn = "document.querySelectorAll('.message').length"
    await until(lambda: chromium.ask(drawn))
    assert 0 < chromium.ask(drawn) < 200 and chromium.ask("document.querySelectorAll('.call').length") == 400
    assert chromium.ask("document.querySelectorAll('.node').length") < 100
    chromium.press("\ue010")  # End
    last = "(s => s.isFull && s.textContent.includes('answer 399'))(document.getElementById('call-400'))"
    await until(lambda: chromium.ask(last))
    await until(lambda: not chromium.ask("document.getElementById('call-1').isFull"))
    assert chromium.ask(drawn) < 200


async def test_an_address_leads_to_a_far_call_and_marks_it_on_the_map(chromium: Chromium, tmp_path: Path) -> None:
    await shown(chromium, tmp_path, long_talk())
    chromium.open(f"{(tmp_path / 'page.html').as_uri()}#call-300")
    top = "document.getElementById('call-300').getBoundingClientRect().top"
    await until(lambda: 0 <= chromium.ask(top) < 300)
    assert chromium.ask("document.querySelector('.node.here').dataset.map") == "300"
    chromium.press("j")
    assert "question 299" in chromium.ask("document.activeElement.parentElement.textContent")
    for _ in range(3):
        chromium.press("j")
    assert chromium.ask("document.activeElement.closest('.call').id") == "call-301"
    chromium.press("kkk")
    assert chromium.ask("document.activeElement.closest('.call').id") == "call-300"


async def test_what_a_reader_opened_stays_open(chromium: Chromium, tmp_path: Path) -> None:
    await shown(chromium, tmp_path, long_talk())
    await until(lambda: chromium.ask("document.querySelector('#call-2 .context')"))
    chromium.ask("document.querySelector('#call-2 .context').open = true")
    await until(lambda: chromium.ask("document.getElementById('call-2').kept"))
    chromium.press("\ue010")
    await until(lambda: not chromium.ask("document.getElementById('call-1').isFull"))
    assert chromium.ask("document.querySelector('#call-2 .context').open")


async def test_a_served_run_is_searched_and_opened(chromium: Chromium, tmp_path: Path) -> None:
    other = Conversation("add-1")
    other.say("<find the Needle here>", "no")
    run = await store(tmp_path, forked(), other)
    listening = listen("127.0.0.1", 0)
    codes = OneTimeCodes()
    server = UvicornServer(CodesRequired(ViewerSite(RunSource(run), spelled).app(), codes))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        await server.until_started(serving)
        # In a thread: the pages come from this one.
        await asyncio.to_thread(_search_and_open, chromium, address_of(listening) + codes.address("/"))
    finally:
        server.end()
        await serving


def _search_and_open(chromium: Chromium, address: str) -> None:
    chromium.open(address.partition("?")[0])
    assert "Press Enter in the terminal" in chromium.ask("document.body.textContent")
    chromium.complaints()  # of this refusal
    chromium.open(address)
    assert chromium.ask("location.search") == "", "the code has left the address"
    assert chromium.ask("document.querySelectorAll('tbody tr').length") == 2
    chromium.press("/")
    chromium.press("needle\n")
    blocked_until(lambda: chromium.ask("document.querySelectorAll('.hits li').length"))
    chromium.driver.execute_script("document.querySelector('.hits a').click()")
    blocked_until(
        lambda: chromium.ask("location.hash === '#call-1' && document.title.startsWith('session add-1')")
    )
    chromium.ask("document.getElementById('other').value = 'add-0'")
    chromium.ask("document.getElementById('compare').click()")
    blocked_until(lambda: chromium.ask("document.title.startsWith('add-1 and add-0 compared')"))
    blocked_until(lambda: chromium.ask("document.querySelectorAll('.piece').length"))
    # A browser asks for an icon that no page names.
    assert [each for each in chromium.complaints() if "favicon" not in each] == []
