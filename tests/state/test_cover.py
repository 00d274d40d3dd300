"""The newest page wins: what lies already is not laid again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wasm_kernel.state.pages import PageSet

PAGES = 60
RUNS = st.lists(
    st.integers(0, PAGES).flatmap(lambda a: st.tuples(st.just(a), st.integers(0, PAGES - a)))
)


@given(RUNS)
def test_every_page_is_free_once(runs: list[tuple[int, int]]) -> None:
    cover, seen = PageSet(PAGES), set[int]()
    for first, pages in runs:
        fresh = {page for a, b in list(cover.free(first, pages)) for page in range(a, b)}
        assert fresh == set(range(first, first + pages)) - seen
        seen |= fresh


def test_a_run_outside_is_not_held() -> None:
    cover = PageSet(PAGES)
    assert cover.holds(0, PAGES)
    assert not any(cover.holds(*run) for run in [(0, PAGES + 1), (PAGES, 1), (-1, 1), (0, -1)])
