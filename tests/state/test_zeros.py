"""Pages of zeros take no room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wasm_kernel.state.pages import PAGE, Run, Runs, split_zeros

SHORT, LONG = 3, 16


def page(value: int) -> bytes:
    return bytes([value]) * PAGE


def split(runs: list[Run], content: bytes | bytearray) -> tuple[Runs, bytes, Runs]:
    left, parts, zeros = split_zeros(runs, bytearray(content))
    assert len(parts) <= len(zeros) + 1  # each is a write
    return left, b"".join(parts), zeros


def test_a_long_stretch_of_zeros_is_named_and_left_out() -> None:
    content = page(1) + bytes(LONG * PAGE) + page(2)
    runs, kept, zeros = split([(10, 1), (11, LONG), (11 + LONG, 1)], content)
    assert (runs, zeros) == (((10, 1), (11 + LONG, 1)), ((11, LONG),))
    assert kept == page(1) + page(2)


def test_a_stretch_within_a_run_is_found_but_for_its_ends() -> None:
    content = page(1) + bytes(LONG * PAGE) + page(2)
    runs, kept, zeros = split([(10, LONG + 2)], content)
    assert (runs, zeros) == (((10, 4), (26, 2)), ((14, 12),))
    assert kept == page(1) + bytes(4 * PAGE) + page(2)


def test_a_short_stretch_is_kept_as_content() -> None:
    content = page(1) + bytes(SHORT * PAGE)
    assert split([(0, SHORT + 1)], content) == (((0, SHORT + 1),), content, ())


def test_nothing_but_zeros_has_no_content() -> None:
    assert split([(4, 40)], bytes(40 * PAGE)) == ((), b"", ((4, 40),))


def test_a_page_with_one_byte_is_not_a_page_of_zeros() -> None:
    content = bytearray(40 * PAGE)
    content[20 * PAGE + 4095] = 1
    runs, kept, zeros = split([(0, 40)], content)
    assert (runs, zeros) == (((20, 4),), ((0, 20), (24, 16)))
    assert kept[4095] == 1


RUNS = st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 40)), min_size=1), max_size=4)


@given(RUNS)
def test_kept_pages_and_zeros_together_give_the_memory(
    shape: list[list[tuple[int, int]]],
) -> None:
    memory: dict[int, int] = {}
    runs: list[Run] = []
    content, at = b"", 0
    for stretches in shape:
        values = [value for value, count in stretches for _ in range(count)]
        runs.append((at, len(values)))
        content += b"".join(map(page, values))
        memory |= dict(enumerate(values, start=at))
        at += len(values) + 3
    kept_runs, kept, zeros = split(runs, content)
    numbers = [first + i for first, count in kept_runs for i in range(count)]
    seen = {number: kept[i * PAGE] for i, number in enumerate(numbers)}
    seen |= {first + i: 0 for first, count in zeros for i in range(count)}
    assert seen == memory
    assert len(kept) == len(numbers) * PAGE
