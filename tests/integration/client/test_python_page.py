"""The examples of docs/python.md and of the trainer, against a real server with a node that is played."""

from __future__ import annotations

import re
import runpy
import threading
from pathlib import Path

import pytest

from fake_node import FakeNode, Service
from polar.client import SyncPolarClient

ROOT = Path(__file__).parents[3]


def test_the_examples_with_a_rollout_server_run(
    service: Service, node: FakeNode, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    page = (ROOT / "docs/python.md").read_text().partition("## With a rollout server")[2]
    plain, grouped, awaited = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    serving = threading.Thread(target=node.serve, args=(8,))
    serving.start()
    namespace = {"__name__": "__main__"}
    for block in (plain, grouped, awaited):
        source = block.replace("http://127.0.0.1:8700", service.url)
        exec(compile(source, "docs/python.md", "exec"), namespace)
    serving.join()
    printed = capsys.readouterr().out
    assert len(re.findall(r"^\S+-\d 0\.\d+ \[\d+\]$", printed, re.MULTILINE)) == 4
    assert len(re.findall(r"^\d+ \S+-\d [\d.]+ \[-1\.0, -1\.0, -1\.0\]$", printed, re.MULTILINE)) == 2
    assert "{'COMPLETED': 4} True" in printed and "{'COMPLETED': 2} True" in printed


def test_the_example_of_curves_runs(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs/service.md").read_text().partition("### Curves")[2]
    block = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)[0]
    with SyncPolarClient(service.url) as client:
        exec(compile(block, "docs/service.md", "exec"), {"client": client})
    assert "eval 12 {'pass@1': 0.35}" in capsys.readouterr().out


def test_the_example_trainer_runs(service: Service, node: FakeNode, capsys: pytest.CaptureFixture[str]) -> None:
    serving = threading.Thread(target=node.serve, args=(4,))
    serving.start()
    runpy.run_path(str(ROOT / "examples/trainer.py"))["main"](service.url)
    serving.join()
    assert "baseline 0.38 of 4" in capsys.readouterr().out
