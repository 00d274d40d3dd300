"""The newest page wins: pages that are filled already are not filled again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wasm_kernel.errors import HistoryError
from wasm_kernel.state.pages import PAGE, PageSet

PAGES = 60
RUNS = st.lists(
    st.integers(0, PAGES).flatmap(lambda a: st.tuples(st.just(a), st.integers(0, PAGES - a)))
)


@given(RUNS)
def test_every_page_is_free_once(runs: list[tuple[int, int]]) -> None:
    cover, seen = PageSet(PAGES), set[int]()
    for first, pages in runs:
        fresh = {page for a, b, _ in list(cover.cover([(first, pages)])) for page in range(a, b)}
        assert fresh == set(range(first, first + pages)) - seen
        seen |= fresh


def test_a_stretch_comes_with_the_pages_before_it() -> None:
    cover = PageSet(PAGES, [(2 * PAGE, 5 * PAGE), (7 * PAGE, PAGES * PAGE)])
    assert list(cover.cover([(0, 4), (4, 6)])) == [(2, 4, 2), (4, 5, 4), (7, 10, 7)]


@pytest.mark.parametrize("run", [(0, PAGES + 1), (PAGES, 1), (-1, 1), (0, -1)])
def test_a_run_outside_is_refused(run: tuple[int, int]) -> None:
    with pytest.raises(HistoryError):
        list(PageSet(PAGES).cover([run]))
