"""Two sessions, or two builders of one, as the values of a page."""

from __future__ import annotations

import sys
from array import array
from dataclasses import replace
from pathlib import Path

import pytest

from polar.dashboard.comparison import comparison_of, partners_of
from polar.dashboard.material import PageMaterial, material_of_run, rebuilt
from polar.dashboard.page import ComparisonPage, TokenKind
from polar.errors import PolarError
from polar.types import Spec, TokenIds, token_ids
from viewed_session import Conversation, forked, store


def spelled(ids: TokenIds) -> str:
    return "".join(map(chr, ids))


@pytest.fixture
async def session(tmp_path: Path) -> PageMaterial:
    return await material_of_run(await store(tmp_path, forked()), "add-0")


def texts(page: ComparisonPage) -> list[str]:
    """Every row, the left ones first, put together from what the rows share."""
    words, rows = array("I", page.words), [*page.left.rows, *page.right.rows]
    found: list[str] = []
    for row in rows:
        size = row.prompt + row.response - row.common
        own = "".join(page.vocabulary[word] for word in words[row.start : row.start + size])
        found.append(("" if row.base is None else found[row.base][: row.common]) + own)
    return found


async def test_two_builders_of_one_session(session: PageMaterial) -> None:
    page = comparison_of(session, rebuilt(session, "per_request"), spelled)
    left, right = page.left, page.right
    assert (left.builder, left.built_now, right.builder, right.built_now) == (
        *("prefix_merging", False),
        *("per_request", True),
    )
    assert (len(left.rows), len(right.rows)) == (3, 4)
    assert left.light == right.light == "exact"
    assert sum(row.trainable for row in left.rows) == sum(row.trainable for row in right.rows) > 0
    assert ("history_edited" in {reason for _, _, reason in left.breaks}) and left.reward == right.reward == 1.0
    assert all(row.reward == 1.0 for row in right.rows), "rebuilt traces have the session's reward"


async def test_rows_are_the_traces_and_share_their_tokens(session: PageMaterial) -> None:
    other = rebuilt(session, "per_request")
    page = comparison_of(session, other, spelled)
    assert session.trajectory is not None and other.trajectory is not None
    traces = [*session.trajectory.traces, *other.trajectory.traces]
    assert texts(page) == [spelled(trace.prompt_ids) + spelled(trace.response_ids) for trace in traces]
    first, second = page.right.rows[:2]
    assert (first.base, first.common) == (0, first.prompt + first.response), "all of it stands on the left"
    assert second.common == second.prompt + second.response


async def test_kinds_are_those_of_the_mask(session: PageMaterial) -> None:
    row = comparison_of(session, session, spelled).left.rows[0]
    kinds = [kind for size, kind in row.kinds for _ in range(size)]
    assert session.trajectory is not None
    trace = session.trajectory.traces[0]
    assert kinds[: row.prompt] == [TokenKind.GIVEN] * row.prompt
    assert [kind == TokenKind.TRAINED for kind in kinds[row.prompt :]] == list(map(bool, trace.loss_mask))
    assert kinds[row.prompt + 1] == TokenKind.DROPPED, "sampled without a logprob"
    assert row.spans[0] == (1, row.prompt, 8)


async def test_a_session_without_traces_is_built_for_the_comparison(tmp_path: Path) -> None:
    run = await store(tmp_path, forked())
    run.session("add-0").traces.unlink()
    material = rebuilt(await material_of_run(run, "add-0"), "")
    assert material.built_now and len(comparison_of(material, material, spelled).left.rows) == 3


async def test_a_module_that_a_task_names_is_not_imported_for_it(session: PageMaterial) -> None:
    task = session.lease.task.model_copy(update={"builder": Spec(name="antigravity:Builder")})
    running = replace(
        session,
        lease=session.lease.model_copy(update={"task": task}),
        audit=replace(session.audit, trajectory=None),
    )
    assert rebuilt(running, "") is running
    assert "antigravity" not in sys.modules


async def test_a_session_without_calls_has_no_rows(tmp_path: Path) -> None:
    material = await material_of_run(await store(tmp_path, Conversation()), "add-0")
    page = comparison_of(material, material, spelled)
    assert (page.left.rows, page.partners) == ([], [])


async def test_a_builder_that_is_unknown_is_refused(session: PageMaterial) -> None:
    with pytest.raises(PolarError, match="unknown builder 'trie'"):
        rebuilt(session, "trie")


def test_partners_begin_alike_for_longest() -> None:
    def rows(*all_texts: str) -> list[TokenIds]:
        return [token_ids(map(ord, text)) for text in all_texts]

    assert partners_of(rows("abcd", "xy"), rows("x", "ab", "abc")) == [2, 0]
    assert partners_of(rows("ab"), rows("abc", "abd")) == [0], "the first of several"
    assert partners_of(rows("ab"), []) == []
