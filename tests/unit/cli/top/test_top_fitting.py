"""How tables fit a terminal: columns go, cells are cut, lines are shared."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from polar.cli.top.fitting import fitted, folded, shared_rows
from polar.cli.top.sections import Row, Section


def a_section(*rows: tuple[str, ...]) -> Section:
    made = tuple(Row(cells[0], cells) for cells in rows)
    return Section("nodes", "nodes", ("name", "#count", "extra", "why"), made, optional=("extra",))


def test_numbers_are_aligned_to_the_right() -> None:
    table = fitted(a_section(("a", "7", "x", "well"), ("bb", "1234", "y", "")), 60)
    assert [line.rstrip() for line in (table.header, *table.lines)] == [
        "name  count  extra  why",
        "a         7  x      well",
        "bb     1234  y",
    ]


def test_an_optional_column_goes_before_the_last_is_cut() -> None:
    table = fitted(a_section(("a", "7", "0123456789", "a reason of many words")), 32)
    assert "extra" not in table.header
    assert table.lines[0] == "a         7  a reason of many w…"


@given(st.lists(st.tuples(*[st.text(max_size=30)] * 4), max_size=4), st.integers(1, 120))
def test_no_line_is_wider_than_the_terminal(rows: list[tuple[str, ...]], width: int) -> None:
    table = fitted(a_section(*rows), width)
    assert all(cell_len(line) <= width for line in (table.header, *table.lines))


def test_a_long_line_is_folded_between_its_parts() -> None:
    assert folded("one 1  two 2  three 3", 14) == ["one 1  two 2", "  three 3"]
    assert folded("one 1  two 2", 80) == ["one 1  two 2"]


@given(st.integers(0, 100), st.lists(st.integers(0, 200), min_size=1, max_size=6), st.data())
def test_tables_never_get_more_lines_than_there_are(height: int, rows: list[int], data: st.DataObject) -> None:
    focused = data.draw(st.integers(0, len(rows) - 1))
    given_lines = shared_rows(height, rows, focused)
    assert sum(given_lines) <= max(0, height - len(rows))
    assert min(given_lines) >= 0 and 1 not in given_lines, "a header without a row says nothing"


def test_the_table_in_front_comes_first_where_there_is_no_room() -> None:
    assert shared_rows(7, [9, 9, 9, 9, 9], focused=2) == [0, 0, 2, 0, 0]
    assert shared_rows(19, [9, 9, 9, 9, 9], focused=2) == [3, 2, 5, 2, 2]
