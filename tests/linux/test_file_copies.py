"""A second name for a file, also while other processes replace it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from wasm_kernel.linux.files import link_or_copy

BLOCK = 10_000
ROUNDS = 3_000  # without a defence, some in a thousand fail


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def test_a_file_that_is_replaced_all_the_time_is_always_there(folder: int, tmp_path: Path) -> None:
    """For example an old commit, which a folded one replaces while a fork is made."""
    file, aside, target = (tmp_path / name for name in ("file", "aside", "target"))
    file.write_bytes(b"a" * BLOCK)
    done = threading.Event()

    def replace() -> None:
        number = 0
        while not done.is_set():
            number += 1
            aside.write_bytes(b"ab"[number % 2 : number % 2 + 1] * BLOCK)
            aside.replace(file)

    replacing = threading.Thread(target=replace)
    replacing.start()
    try:
        for _ in range(ROUNDS):
            link_or_copy(folder, "file", target)
            assert target.read_bytes() in (b"a" * BLOCK, b"b" * BLOCK)
            target.unlink()
    finally:
        done.set()
        replacing.join()
