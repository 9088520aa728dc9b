"""What a page is made of: the same session from a run on disk and from an upload, ended or still running."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from polar.dashboard.material import PageMaterial, material_of_run, material_of_upload
from polar.dashboard.page import SessionPage, TokenKind
from polar.dashboard.session_page import page_of
from polar.errors import PolarError
from polar.node.uplink import upload_of
from polar.types import SessionFile, SessionUpload, Stage, TokenIds, logprobs
from polar.types.packed import unpack_upload
from viewed_session import START, forked, store


def spelled(ids: TokenIds) -> str:
    return "".join(map(chr, ids))


@pytest.fixture
async def stored(tmp_path: Path) -> PageMaterial:
    """With two logs and an artefact."""
    run = await store(tmp_path, forked())
    session = run.session("add-0")
    session.logs.mkdir(parents=True, exist_ok=True)
    session.artifacts.mkdir(parents=True, exist_ok=True)
    (session.logs / "harness.stdout").write_bytes(b"hello \xff\n")
    (session.artifacts / "core.bin").write_bytes(bytes(9))
    return await material_of_run(run, "add-0")


def uploaded(material: PageMaterial) -> SessionUpload:
    """As its node sends it."""
    assert material.result is not None
    sent = upload_of(material.result, material.trajectory, material.calls, material.files)
    return unpack_upload(sent)


def without_origin(page: SessionPage) -> SessionPage:
    return msgspec.structs.replace(page, run_id="")


async def test_an_upload_makes_the_page_of_the_stored_session(stored: PageMaterial) -> None:
    material = material_of_upload(stored.lease, uploaded(stored), stored.stages)
    page = page_of(material, spelled, "a note")
    assert (page.run_id, page.note, page.proof.light) == ("", "a note", "exact")
    assert page == without_origin(page_of(stored, spelled, "a note"))


async def test_logs_are_read_as_text_and_artefacts_are_listed(stored: PageMaterial) -> None:
    files = {file.path: file for file in page_of(stored, spelled).files}
    assert files["logs/harness.stdout"].text == "hello \ufffd\n"
    assert (files["artifacts/core.bin"].text, files["artifacts/core.bin"].size_bytes) == ("", 9)


async def test_a_log_of_which_only_the_end_was_uploaded_is_marked(stored: PageMaterial) -> None:
    whole = uploaded(stored)
    cut = msgspec.structs.replace(whole, files=(SessionFile("logs/a", 1000, b"the end"),))
    [file] = page_of(material_of_upload(stored.lease, cut, stored.stages), spelled).files
    assert (file.text, file.cut) == ("the end", True)


async def test_a_session_that_runs_shows_its_calls_so_far(stored: PageMaterial) -> None:
    running = stored.lease.session.model_copy(update={"stage": Stage.RUNNING})
    lease = stored.lease.model_copy(update={"session": running})
    partial = SessionUpload(result=b"", trajectory=None, calls=tuple(stored.calls[:2]))
    page = page_of(material_of_upload(lease, partial, [(Stage.RUNNING, START)]), spelled)
    assert (page.stage, page.result, len(page.calls)) == ("RUNNING", None, 2)
    assert (page.proof.light, page.proof.summary) == ("none", "not done yet")
    assert page.tokens.kinds.count(TokenKind.UNPLACED) == sum(call.sampled for call in page.calls)


async def test_a_session_without_an_upload_shows_what_the_server_knows(stored: PageMaterial) -> None:
    assert stored.result is not None
    ended = stored.result.model_copy(update={"traces": None, "certificate": None, "seal": ""})
    page = page_of(material_of_upload(stored.lease, None, stored.stages, ended), spelled)
    assert (page.calls, page.reward, page.proof.light) == ([], stored.result.reward, "none")


async def test_an_upload_with_wrong_arrays_is_refused(stored: PageMaterial) -> None:
    whole = uploaded(stored)
    wrong = msgspec.structs.replace(whole.calls[0], completion_ids=logprobs([0.5]))
    damaged = msgspec.structs.replace(whole, calls=(wrong,))
    with pytest.raises(PolarError, match="the upload of session add-0 cannot be read"):
        material_of_upload(stored.lease, damaged, stored.stages)


async def test_an_upload_whose_result_is_none_is_refused(stored: PageMaterial) -> None:
    damaged = msgspec.structs.replace(uploaded(stored), result=b"{}")
    with pytest.raises(PolarError, match="cannot be read"):
        material_of_upload(stored.lease, damaged, stored.stages)
