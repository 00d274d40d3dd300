"""Reading and writing a guest's memory; mounts."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.tiny import Guest
from wasm_kernel.engine import abi
from wasm_kernel.engine.host_calls import OutOfBounds
from wasm_kernel.linux.folders import Folder
from wasm_kernel.wasi_files.preopens import Preopen, Preopens

SIZE = 8 * 65_536
CLOSED = Folder(-1)
FIXED = (Preopen(CLOSED, "/app"), Preopen(CLOSED, "/"))
DATA, DEEP = Preopen(CLOSED, "/data"), Preopen(CLOSED, "/data/deep")


@pytest.mark.parametrize(("at", "length"), [(0, 0), (0, SIZE), (SIZE - 1, 1), (SIZE, 0)])
def test_ranges_inside_the_memory_are_read(guest: Guest, at: int, length: int) -> None:
    assert len(guest.instance.memory.read(at, length)) == length


@pytest.mark.parametrize(
    ("at", "length"), [(SIZE, 1), (0, SIZE + 1), (-1, 1), (0, -1), (2**32, 1), (2**64, 2**64)]
)
def test_ranges_outside_of_the_memory_are_not_read(guest: Guest, at: int, length: int) -> None:
    with pytest.raises(OutOfBounds):
        guest.instance.memory.read(at, length)
    with pytest.raises(OutOfBounds):
        guest.instance.memory.buffers(0, 1025)


@pytest.mark.parametrize("at", [SIZE - 3, SIZE, 2**32 - 4, -4])
def test_nothing_is_written_outside(guest: Guest, at: int) -> None:
    with pytest.raises(OutOfBounds):
        guest.instance.memory.write_word(at, 1)


def test_memory_that_grew_is_in_reach(guest: Guest) -> None:
    guest.call("grow", 1)
    assert guest.instance.memory.read(SIZE, 65_536) == bytes(65_536)


def test_each_guest_has_its_own_host_whichever_was_closed_before(tmp_path: Path) -> None:
    """The next guest reuses a closed one's dispatcher; a living guest shares its own with none."""
    made = {}
    for name in ("first", "second", "third", "fourth"):
        (tmp_path / name).mkdir()
        made[name] = Guest(tmp_path / name)
        if name == "second":
            made["first"].close()
    del made["first"]
    for name, guest in made.items():
        assert guest.make(name) == abi.SUCCESS
    assert {path.name: path.parts[-3] for path in tmp_path.glob("*/app/*")} == {n: n for n in made}
    for guest in made.values():
        guest.close()


def test_nothing_of_a_closed_guests_host_is_kept_for_the_next_one(tmp_path: Path) -> None:
    def answer(data: bytes) -> bytes:
        return data

    kept = weakref.ref(answer)
    Guest(tmp_path, handler=answer).close()
    del answer
    gc.collect()
    assert kept() is None


@given(path=st.text(alphabet="dataep/.", max_size=14))
def test_a_folder_takes_what_lies_below_it_and_nothing_else(path: str) -> None:
    found = Preopens(FIXED, (DATA, DEEP)).below_root(path)
    below = path.partition("/")[0] in {"app", "data"}
    assert (found is not None) == below
    if found is not None:
        assert path[: found[1]].rstrip("/") == found[0].guest[1:]
    assert Preopens(FIXED, (DATA, DEEP)).below_root("data/deep/x") == (DEEP, len("data/deep/"))
