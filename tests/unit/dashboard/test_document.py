"""The file: nothing in the values can leave the JSON, and the policy lets only our script run."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

from polar.dashboard.document import session_document
from polar.dashboard.material import material_of_run
from polar.dashboard.session_page import page_of
from viewed_session import HOSTILE, forked, hostile, store


async def a_document(tmp_path: Path, *, bad: bool) -> str:
    run = await store(tmp_path, hostile() if bad else forked(), words=HOSTILE if bad else "add")
    return session_document(page_of(await material_of_run(run, "add-0"), lambda ids: "".join(map(chr, ids))))


def embedded(document: str) -> str:
    [values] = re.findall(r'<script type="application/json" id="values">(.*?)</script>', document, re.DOTALL)
    return values


async def test_hostile_text_stays_inside_the_values(tmp_path: Path) -> None:
    document = await a_document(tmp_path, bad=True)
    assert document.count("<script") == document.count("</script>") == 2
    assert "<" not in embedded(document) and "<img" not in document.replace(embedded(document), "")
    page = json.loads(embedded(document))
    assert page["task"]["instruction"] == HOSTILE
    assert page["calls"][0]["reply"]["tool_calls"] == [[HOSTILE, HOSTILE, HOSTILE]]


async def test_the_policy_names_our_style_and_script_by_digest_and_nothing_else(tmp_path: Path) -> None:
    document = await a_document(tmp_path, bad=False)
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', document)
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    for tag in ("style", "script"):
        [text] = re.findall(rf"<{tag}>(.*?)</{tag}>", document, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


async def test_the_file_names_no_other_host(tmp_path: Path) -> None:
    document = await a_document(tmp_path, bad=False)
    assert re.findall(r"https?://[^\"' ]+", document) == ["http://www.w3.org/2000/svg"], "a name, never loaded"


def test_scripts_write_text_and_never_markup() -> None:
    assets = Path(session_document.__code__.co_filename).parent / "assets"
    scripts = {path.name: path.read_text() for path in assets.glob("*.js")}
    markup = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function")
    assert [name for name, text in scripts.items() if markup.search(text)] == []
