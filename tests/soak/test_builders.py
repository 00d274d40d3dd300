"""Builders of the cache are killed at random moments; at the end the cache holds one good file."""

from __future__ import annotations

import random
import subprocess
import warnings
from contextlib import suppress
from pathlib import Path

import pytest

from tests.engine.test_compiler import TINY, answer_of, builder, modules_in
from wasm_kernel.engine.cache import Cache
from wasm_kernel.errors import CacheWarning

pytestmark = pytest.mark.soak

ROUNDS = 40


def test_killed_builders_leave_nothing_that_is_loaded_and_wrong(tmp_path: Path) -> None:
    dice = random.Random(6)
    cache, binary = Cache(tmp_path / "cache"), tmp_path / "tiny.wasm"
    binary.write_bytes(TINY)
    for _ in range(ROUNDS):
        doomed = [builder(cache, binary, 0.05) for _ in range(2)]
        for process in doomed:
            with suppress(subprocess.TimeoutExpired):
                process.wait(dice.uniform(0.1, 0.6))
            process.kill()
            process.communicate()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CacheWarning)
            assert answer_of(cache, binary) == 42
        assert len(modules_in(cache)) == 1
        for path in cache.folder.iterdir():
            if dice.random() < 0.7:
                path.unlink()
