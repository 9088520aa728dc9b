"""The example of docs/credit.md, and the figures in its text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from finished import session

from polar.credit.group import Group

PAGE = Path(__file__).parents[3] / "docs/credit.md"


def test_the_example_makes_a_batch() -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    namespace: dict[str, Any] = {}
    exec(compile(block, "docs/credit.md", "exec"), namespace)
    split, whole = session("split", 1.0, traces=2), session("whole", 0.0)
    batch = namespace["batch_of"](Group("g", (split, whole)))
    assert [item["advantages"] for item in batch] == [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [-1.0, -1.0, 0.0]]
    assert [item["weight"] * sum(item["mask"]) for item in batch] == pytest.approx([0.25, 0.25, 0.5])
