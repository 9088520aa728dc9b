"""The dashboard of a fleet in a real Chromium: why sessions wait, what each node can run, and who did what."""

from __future__ import annotations

import pytest
from live_browser import READY, Visitor
from live_scene import client_of, task

from fake_node import FakeNode

pytestmark = pytest.mark.check

NO_TPU = "no live node has the label tpu (1 node: gpu)"


def test_the_overview_says_why_sessions_wait(visitor: Visitor) -> None:
    node = FakeNode(visitor.service.url, "gpu-1:1", 1, labels=["gpu"])
    with client_of(visitor.service) as client:
        client.submit(task("first", 1))
    visitor.log_in()
    visitor.reads("#waiting", "a node gets it with its next request")
    node.lease(1)
    visitor.sees("document.getElementById('waiting').hidden")
    with client_of(visitor.service) as client:
        client.submit(task("later", 2))
        client.submit(task("special", 3, needs={"labels": ["tpu"]}))
    visitor.reads("#waiting tbody tr:first-child", NO_TPU)
    visitor.reads("#waiting tbody tr:last-child", "all 1 slots of 1 node that can run it are in use")
    visitor.click("#waiting tbody tr:first-child a")
    visitor.sees(f"location.search === '?task_id=special&stage=QUEUED' && {READY}")
    assert visitor.ask("document.querySelectorAll('#rows tr').length") == 3
    assert visitor.complaints() == []


def test_a_session_says_why_it_waits_until_a_node_has_it(visitor: Visitor) -> None:
    FakeNode(visitor.service.url, "gpu-1:1", 1, labels=["gpu"])
    with client_of(visitor.service) as client:
        client.submit(task("special", 1, needs={"labels": ["tpu"]}))
    visitor.log_in("/sessions/special-0")
    visitor.reads("#waits", NO_TPU)
    FakeNode(visitor.service.url, "tpu-1:1", 1, labels=["tpu"]).lease(1)
    visitor.sees("document.getElementById('waits').hidden")
    assert visitor.complaints() == []


def test_a_node_shows_what_it_can_run(visitor: Visitor) -> None:
    many = [f"label-{number}" for number in range(20)]
    can = {"engine": "vllm", "model": "Qwen/Qwen3-8B", "runtimes": ["docker"], "harnesses": ["codex", "pi"]}
    node = FakeNode(visitor.service.url, "gpu-1:1", 8, **can, labels=many, polar="0.1.7")
    visitor.log_in("/nodes")
    card = f'[data-node="{node.node_id}"]'
    visitor.reads(card, "Polar 0.1.7")
    facts = visitor.ask(f"[...document.querySelectorAll('{card} dt, {card} dd')].map(e => e.innerText)")
    shown = [" ".join(fact.split()) for fact in facts]
    assert shown[:6] == ["engine", "vllm Qwen/Qwen3-8B", "runtimes", "docker", "harnesses", "codex pi"]
    assert shown[6:] == ["labels", " ".join(many[:8]) + " and 12 more"]
    assert "label-19" in visitor.ask(f"document.querySelector('{card} dd [title]').title")
    assert visitor.complaints() == []


def test_the_sessions_of_a_node_stay_open_while_it_reports(visitor: Visitor) -> None:
    with client_of(visitor.service) as client:
        client.submit(task("add", 1))
    node = FakeNode(visitor.service.url)
    node.lease(1)
    visitor.log_in("/nodes")
    visitor.click("#nodes summary")
    visitor.sees("document.querySelector('#nodes details').open")
    node.report(generating=3)
    visitor.reads("#nodes", "3 generations under way")
    assert visitor.ask("document.querySelector('#nodes details').open")


def test_actions_are_listed_with_who_did_them(visitor: Visitor) -> None:
    with client_of(visitor.service) as client:
        client.submit(task("add", 2))
    visitor.log_in("/actions")
    newest, submitted = "#rows tr:first-child", "#rows tr:nth-child(2)"
    visitor.reads(newest, "login.login")
    visitor.reads(submitted, "tasks.submit")
    visitor.reads(submitted, "✓ done")
    fingerprint = visitor.ask(f"document.querySelector('{submitted} td:nth-child(2) div').innerText").split(" · ")
    assert len(fingerprint[0]) == 12 and fingerprint[1] == "127.0.0.1"
    visitor.ask("fetch('/v1/tasks/gone/cancel', {method: 'POST', headers: {'x-polar-page': '1'}})")
    visitor.reads(newest, "✕ refused")
    visitor.reads(newest, "there is no task")
    assert visitor.ask(f"document.querySelectorAll('{newest} a').length") == 0, "it leads nowhere"
    visitor.click("#rows a")
    visitor.sees(f"location.search === '?task_id=add' && {READY}")
    assert [each for each in visitor.complaints() if "404" not in each] == []


def test_many_actions_are_listed_page_by_page(visitor: Visitor) -> None:
    with client_of(visitor.service) as client:
        for number in range(120):
            client.set_policy_version(f"step-{number}")
    visitor.log_in("/actions")
    numbers = "[...document.querySelectorAll('#rows tr')].map(e => Number(e.dataset.action))"
    assert visitor.ask(numbers) == list(range(121, 21, -1)), "the newest first"
    visitor.click(".pager a")
    visitor.sees(f"location.search === '?before=22' && {READY}")
    assert visitor.ask(numbers) == list(range(21, 0, -1))
    assert visitor.text(".pager") == "« newest", "there are no older ones"
    visitor.click(".pager a")
    visitor.sees(f"location.search === '' && {READY}")
    assert visitor.complaints() == []
