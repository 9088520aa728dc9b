"""The dashboard in a real Chromium: login, every page and state, actions, and what goes on while it is open."""

from __future__ import annotations

import pytest
from live_browser import PAGES, READY, Visitor
from live_scene import busy, client_of, report_curves, task

from fake_node import FakeNode
from polar.server.overview import ended_sessions
from polar.types import Stage
from viewed_session import HOSTILE
from waiting import blocked_until

pytestmark = pytest.mark.check

COMPARED = "/compare?left=django-11000-0&right=django-11000-1&right_builder=per_request"


def test_a_wrong_token_is_refused_and_the_right_one_leads_on(visitor: Visitor) -> None:
    visitor.browser.open(visitor.service.url + "/sessions?stage=QUEUED")
    visitor.sees("document.getElementById('token')")
    visitor.type_token("guessed")
    visitor.reads("#problem", "not the server's control token")
    visitor.type_token("control-secret")
    visitor.sees(READY)
    assert visitor.ask("location.pathname + location.search") == "/sessions?stage=QUEUED"
    assert visitor.ask("document.cookie") == "", "scripts cannot read the cookie"
    assert visitor.ask("document.querySelector('[name=stage]').value") == "QUEUED"
    assert [each for each in visitor.complaints() if "401" not in each] == []
    visitor.click(".tools > button:last-child")
    visitor.sees("location.pathname === '/login' && document.getElementById('token')")
    visitor.browser.open(visitor.service.url + "/nodes")
    visitor.sees("location.pathname === '/login'")


def test_who_has_logged_in_passes_the_login_page(visitor: Visitor) -> None:
    visitor.log_in()
    visitor.browser.open(visitor.service.url + "/login?next=%2Fgroups")
    visitor.sees("location.pathname === '/groups'")
    visitor.browser.open(visitor.service.url + "/login?next=%2F%2Fevil.example%2F")
    visitor.sees(f"location.pathname === '/' && {READY}")


@pytest.mark.parametrize(("width", "dark"), [(1300, False), (1300, True), (380, False), (380, True)])
def test_every_page_fits_and_the_console_stays_empty(visitor: Visitor, width: int, dark: bool) -> None:
    busy(visitor.service, groups=5)
    visitor.browser.look(width=width, dark=dark)
    try:
        visitor.log_in()
        for path in (
            *PAGES,
            "/sessions/django-11000-0",
            "/sessions/sympy-20165-7",
            "/sessions/needs-a-tpu-0",
            COMPARED,
        ):
            visitor.go(path)
            assert visitor.ask("document.documentElement.scrollWidth") <= width, path
            ground = "rgb(22, 24, 27)" if dark else "rgb(253, 253, 252)"
            assert visitor.ask("getComputedStyle(document.body).backgroundColor") == ground
        assert visitor.complaints() == []
    finally:
        visitor.browser.look(width=1300)


def test_colours_can_be_chosen_and_stay_chosen(visitor: Visitor) -> None:
    visitor.log_in()
    visitor.click("#theme")
    visitor.click("#theme")
    assert visitor.ask("getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 27)"
    visitor.go("/nodes")
    assert visitor.ask("document.documentElement.dataset.theme") == "dark"
    visitor.click("#theme")
    assert visitor.ask("getComputedStyle(document.body).backgroundColor") == "rgb(253, 253, 252)"


def test_an_empty_server_teaches_how_to_begin(visitor: Visitor) -> None:
    visitor.log_in()
    visitor.reads("#stages", "polar submit tasks.toml --server " + visitor.service.url)
    for path, command in [
        ("/sessions", "polar submit"),
        ("/groups", "polar submit"),
        ("/nodes", "polar gateway --server " + visitor.service.url),
        ("/training", "report_training"),
    ]:
        visitor.go(path)
        visitor.reads("#empty", command)
    assert visitor.complaints() == []


def test_the_overview_keeps_causes_of_failures_apart(visitor: Visitor) -> None:
    node = FakeNode(visitor.service.url)
    with client_of(visitor.service) as client:
        client.submit(task("add", 4))
        client.submit(task("wait", 3))
    sessions = node.lease(4)
    ours = {"where": "engine", "type": "EngineUnavailable", "message": "away", "policy": False}
    theirs = {"where": "harness", "type": "HarnessFailed", "message": "exit code 1", "policy": True}
    node.finish(sessions[0], reward=None, failure=ours, stage=Stage.FAILED)
    node.finish(sessions[1], reward=0.0, failure=theirs)
    node.finish(sessions[2], reward=1.0)
    node.finish(sessions[3], reward=0.0)
    node.fall_sick("disk", "the disk is full")
    visitor.log_in()
    visitor.reads("[data-cause=infrastructure]", "EngineUnavailable")
    visitor.reads("[data-cause=agent]", "HarnessFailed")
    assert "HarnessFailed" not in visitor.text("[data-cause=infrastructure]")
    assert visitor.text("[data-stage=QUEUED] b") == "3"
    assert visitor.text("[data-stage=COMPLETED] b") == "3"
    visitor.reads("#attention", "the disk is full")
    visitor.reads("#trainable", "infrastructure")
    visitor.click("[data-cause=agent] td a")
    visitor.sees(f"location.pathname === '/sessions' && {READY}")
    assert visitor.ask("[...document.querySelectorAll('#rows tr')].map(r => r.dataset.session)") == [sessions[1]]


def test_a_run_is_followed_to_its_end_without_loading_again(visitor: Visitor) -> None:
    with client_of(visitor.service) as client:
        client.submit(task("add", 2))
    visitor.log_in("/sessions")
    visitor.ask("(window.untouched = true)")
    visitor.reads('[data-session="add-0"]', "queued")
    node = FakeNode(visitor.service.url)
    first, second = node.lease(2)
    node.report({first: Stage.RUNNING, second: Stage.INIT})
    visitor.reads(f'[data-session="{first}"]', "running")
    node.finish(first, reward=1.0)
    node.finish(second, reward=0.0)
    visitor.reads(f'[data-session="{first}"]', "completed")
    visitor.reads(f'[data-session="{first}"]', "1.000")
    visitor.reads(f'[data-session="{second}"]', "completed")
    assert visitor.ask("window.untouched") is True
    visitor.click(f'[data-session="{first}"] a')
    visitor.sees(f"location.pathname === '/sessions/{first}' && {READY}")
    visitor.reads("#page", "Call 2")
    visitor.reads("#sessionbar", "completed")
    assert visitor.ask("document.querySelectorAll('#sessionbar button').length") == 0
    assert visitor.complaints() == []


def test_a_page_survives_a_restart_of_the_server(visitor: Visitor) -> None:
    with client_of(visitor.service) as client:
        client.submit(task("add", 2))
    visitor.log_in()
    visitor.ask("(window.untouched = true)")
    visitor.service.stop()
    visitor.reads("#away", "The server is away; trying again")
    assert visitor.text("[data-stage=QUEUED] b") == "2", "what was known stays"
    visitor.service.start()
    visitor.sees("document.getElementById('away').hidden")
    with client_of(visitor.service) as client:
        client.submit(task("more", 3))
    visitor.reads("[data-stage=QUEUED] b", "5")
    assert visitor.ask("window.untouched") is True, "and nobody was logged out"


def test_who_was_logged_out_comes_back_to_the_same_page(visitor: Visitor) -> None:
    visitor.log_in("/sessions?failed_by=agent")
    visitor.browser.driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
    visitor.sees("location.pathname === '/login' && document.getElementById('token')")
    visitor.type_token("control-secret")
    visitor.sees(f"location.pathname + location.search === '/sessions?failed_by=agent' && {READY}")


def test_a_session_is_compared_with_another_of_its_group(visitor: Visitor) -> None:
    busy(visitor.service, groups=5)
    visitor.log_in("/sessions/django-11000-0")
    assert visitor.ask("document.querySelectorAll('#others option').length") > 1
    visitor.ask("document.getElementById('other').value = 'django-11000-1'")
    visitor.choose("#right-builder", "per_request")
    visitor.click("#compare")
    visitor.sees(f"location.pathname === '/compare' && {READY}")
    visitor.reads("h1", "django-11000-0 and django-11000-1")
    visitor.reads("table.numbers", "per_request, built now")
    visitor.click("table.numbers th:nth-child(2) a")
    visitor.sees(f"location.pathname === '/sessions/django-11000-0' && {READY}")
    assert visitor.complaints() == []


def test_filters_stand_in_the_address(visitor: Visitor) -> None:
    busy(visitor.service, groups=5)
    visitor.log_in("/sessions")
    visitor.choose("[name=stage]", "RUNNING")
    visitor.sees("location.search === '?stage=RUNNING'")
    shown = "[...document.querySelectorAll('#rows .stage')].every(e => e.classList.contains('RUNNING'))"
    visitor.sees(f"document.querySelectorAll('#rows tr').length === 12 && {shown}")
    visitor.choose("[name=text]", "sympy-20100")
    visitor.sees("document.querySelectorAll('#rows tr').length < 12")
    visitor.ask("history.back()")
    visitor.sees("document.querySelectorAll('#rows tr').length === 12")
    visitor.click("#clear")
    visitor.sees("location.search === ''")
    visitor.choose("[name=group_id]", "not an id!")
    visitor.reads("#problem", "group_id")
    visitor.go("/sessions?reward_at_least=0.5&reward_at_most=1")
    assert set(visitor.ask("[...document.querySelectorAll('#rows td:nth-child(4)')].map(e => e.innerText)")) == {
        "1.000"
    }


def test_a_list_says_how_far_it_looked(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ended_sessions, "LOOKED", 8)
    busy(visitor.service, groups=2)
    visitor.log_in("/sessions?text=django-11000")
    visitor.reads("#count", "looked at 8 that have ended, older ones may fit too")
    visitor.reads("#empty", "None of these fits.")
    visitor.click(".pager button")
    visitor.sees("document.querySelectorAll('#rows tr').length === 8")


def test_ten_thousand_sessions_are_listed_page_by_page(visitor: Visitor) -> None:
    with client_of(visitor.service) as client:
        client.submit_many(task(f"t{number:03}", 100) for number in range(100))
    visitor.log_in("/sessions")
    visitor.reads("#count", "100 sessions shown of 10,000 in all")
    newest = visitor.ask("document.querySelector('#rows tr').dataset.session")
    seen = set(visitor.ask("[...document.querySelectorAll('#rows tr')].map(e => e.dataset.session)"))
    visitor.click(".pager button:last-child")
    visitor.sees(f"!document.querySelector('[data-session=\"{newest}\"]')")
    assert not seen & set(visitor.ask("[...document.querySelectorAll('#rows tr')].map(e => e.dataset.session)"))
    visitor.choose("[name=text]", "t007-42")
    visitor.sees("document.querySelectorAll('#rows tr').length === 1")
    assert visitor.ask("document.querySelector('#rows tr').dataset.session") == "t007-42"
    assert visitor.complaints() == []


def test_a_session_is_cancelled_only_after_a_question(visitor: Visitor) -> None:
    with client_of(visitor.service) as client:
        client.submit(task("add", 2))
    visitor.log_in("/sessions")
    visitor.click('[data-session="add-0"] button')
    visitor.reads("dialog.confirm", "This cannot be taken back")
    visitor.click("#no")
    visitor.sees("!document.querySelector('dialog.confirm')")
    assert visitor.text('[data-session="add-0"] .stage').endswith("queued")
    visitor.click('[data-session="add-0"] button')
    visitor.click("#yes")
    visitor.reads('[data-session="add-0"]', "cancelled")
    visitor.go("/sessions/add-1")
    visitor.click("#sessionbar button:last-child")
    visitor.reads("dialog.confirm", "Cancel task add?")
    visitor.click("#yes")
    visitor.reads("#sessionbar", "cancelled")
    assert visitor.complaints() == []


def test_generation_is_paused_and_resumed(visitor: Visitor) -> None:
    visitor.log_in()
    visitor.click("#policy button")
    visitor.reads("dialog.confirm", "Nothing is lost")
    visitor.click("#yes")
    visitor.reads("#policy", "paused")
    visitor.reads("#attention", "Generation is paused")
    visitor.click("#policy button")
    visitor.click("#yes")
    visitor.sees("!document.getElementById('paused')")
    with client_of(visitor.service) as client:
        assert client.policy().paused is False


def test_a_node_is_drained_and_a_refusal_is_shown(visitor: Visitor) -> None:
    node = FakeNode(visitor.service.url, "gpu-1:1", 4)
    visitor.log_in("/nodes")
    card = f'[data-node="{node.node_id}"]'
    visitor.click(f"{card} button")
    visitor.click("#yes")
    visitor.reads(card, "draining")
    visitor.click(f"{card} button")
    visitor.reads("dialog.confirm", "again?")
    visitor.browser.driver.execute_script(
        "const real = fetch; window.fetch = (path, options) => options.method === 'POST' ? "
        "real(path.replace(/node-[^/]*/, 'node-gone'), options) : real(path, options)"
    )
    visitor.click("#yes")
    visitor.reads("dialog.confirm .failure", "there is no node")


def test_groups_show_whether_they_have_contrast(visitor: Visitor) -> None:
    node = FakeNode(visitor.service.url)
    for name, rewards in {"equal": (1.0, 1.0), "mixed": (0.0, 1.0)}.items():
        with client_of(visitor.service) as client:
            client.submit(task(name, 2))
        for session, reward in zip(node.lease(2), rewards, strict=True):
            node.finish(session, reward=reward)
    visitor.log_in("/groups")
    visitor.reads("[data-group=equal]", "no contrast")
    visitor.reads("[data-group=mixed]", "differ")
    visitor.reads("[data-group=mixed]", "1 × 0, 1 × 1")
    visitor.reads("#contrast", "50 %")


def test_evaluation_is_never_drawn_with_the_training_reward(visitor: Visitor) -> None:
    with client_of(visitor.service) as client:
        report_curves(client)
    visitor.log_in("/training?run=grpo-a&run=grpo-b")
    titles = "[...document.querySelectorAll('#{} figcaption b')].map(e => e.innerText)"
    assert visitor.ask(titles.format("eval")) == ["evaluation reward", "evaluation pass@1"]
    assert visitor.ask(titles.format("train"))[:2] == ["reward", "loss"]
    assert not any("evaluation" in title for title in visitor.ask(titles.format("train")))
    of_all = "[...document.querySelectorAll('#eval figure:first-child {}')].map(e => e.getAttribute('{}'))"
    dashes = of_all.format(".line", "stroke-dasharray")
    marks = of_all.format("[data-series] .mark:last-child", "d")
    visitor.sees("document.querySelectorAll('#eval .line').length")
    assert len(set(visitor.ask(dashes))) == len(set(visitor.ask(marks))) == 2
    visitor.browser.driver.execute_script("document.querySelector('#eval .chart').focus()")
    visitor.browser.press("\ue012")  # left arrow
    visitor.reads("#eval output", "step 50: grpo-a")
    with client_of(visitor.service) as client:
        report_curves(client, runs=1, steps=70)
    visitor.reads("#runs", "step 70")
    visitor.reads("#eval output", "step 70")
    visitor.click("#runs input[value=grpo-b]")
    visitor.sees("location.search === '?run=grpo-a'")
    visitor.sees("document.querySelectorAll('#eval figure:first-child .line').length === 1")
    assert visitor.complaints() == []


def test_stages_differ_by_more_than_colour(visitor: Visitor) -> None:
    with client_of(visitor.service) as client:
        client.submit(task("add", 1))
    visitor.log_in()
    signs = visitor.ask("[...document.querySelectorAll('#stages .sign')].map(e => e.innerText)")
    assert len(signs) == 9 == len(set(signs))


def test_hostile_text_is_only_text_on_every_page(visitor: Visitor) -> None:
    line = HOSTILE.replace("\u2028", "").replace("\u202e", "").replace("\x1b", "")
    names = [line[:400]]
    node = FakeNode(visitor.service.url, line[:190], engine=line[:150], model=line, labels=names, polar=line[:100])
    with client_of(visitor.service) as client:
        client.set_policy_version(line)
        client.submit(task("add", 3, instruction=HOSTILE, metadata={"words": HOSTILE}))
        client.submit(task("open", 2, instruction=HOSTILE))
        client.submit(task("waits", 1, needs={"labels": [line]}))
    first, second, third = node.lease(3)
    failure = {"where": HOSTILE[:90], "type": HOSTILE, "message": HOSTILE}
    node.finish(first, reward=None, failure={**failure, "policy": False}, stage=Stage.FAILED)
    node.finish(second, reward=0.0, failure={**failure, "policy": True})
    node.finish(third, reward=1.0)
    held = node.lease(1)
    sick = {"part": "engine", "why": HOSTILE, "since": 1.0}
    log = [{"at": 2.0, "level": "error", "source": HOSTILE, "message": HOSTILE, "session_id": HOSTILE}]
    node.report({held[0]: Stage.RUNNING}, sick=sick, log=log)
    visitor.log_in()
    for path in (
        *PAGES,
        f"/sessions/{first}",
        f"/sessions/{held[0]}",
        "/sessions/waits-0",
        "/sessions?failure_type=%3Cb%3E",
    ):
        visitor.go(path)
        assert visitor.ask("window.hacked") is None
        assert visitor.ask("document.querySelectorAll('img, iframe, #page script, header script').length") == 0
        assert "\u202e" not in visitor.ask("document.body.innerText")
    for path, place in [("/", "#waiting"), ("/sessions/waits-0", "#waits"), ("/actions", "#rows")]:
        visitor.go(path)
        visitor.reads(place, "<script>window.hacked=1</script>")
    visitor.go("/nodes")
    visitor.reads("#nodes .can", "<script>window.hacked=1")
    visitor.reads("#nodes", "<script>window.hacked=1</script>")
    visitor.click("#nodes .buttons button")
    visitor.reads("dialog.confirm", "<script>")
    assert visitor.complaints() == []


def test_a_script_of_somebody_else_does_not_run(visitor: Visitor) -> None:
    visitor.log_in()
    visitor.browser.driver.execute_script(
        "const s = document.createElement('script'); s.textContent = 'window.hacked = 1'; document.body.append(s);"
        "document.body.insertAdjacentHTML('beforeend', '<b onclick=\"hacked=1\" id=b>x</b>');"
        "document.getElementById('b').click()"
    )
    assert visitor.ask("window.hacked") is None
    assert any("Content Security Policy" in complaint for complaint in visitor.complaints())


def test_the_calls_of_a_session_appear_while_it_runs(visitor: Visitor) -> None:
    with client_of(visitor.service) as client:
        client.submit(task("add", 1))
    node = FakeNode(visitor.service.url)
    [session] = node.lease(1)
    node.report({session: Stage.RUNNING})
    visitor.log_in(f"/sessions/{session}")
    visitor.reads("#sessionbar", "running")
    assert "Call 1" not in visitor.text("#page")
    blocked_until(lambda: session in node.watched({session: Stage.RUNNING}))
    node.show_calls(session, 1)
    visitor.reads("#page", "Call 1")
    assert "Call 2" not in visitor.text("#page")
    node.show_calls(session, 2)
    visitor.reads("#page", "Call 2")
    node.finish(session, reward=1.0)
    visitor.reads("#sessionbar", "completed")
    visitor.reads("#page", "reward 1.000")
