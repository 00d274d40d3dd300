"""One live guest: its ends, the thread that may call it, its memory, its mounts."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import wasmtime
from hypothesis import given
from hypothesis import strategies as st

from tests.engine import tiny
from tests.engine.tiny import MIB, Guest
from tests.faces import PATIENCE
from wasm_kernel.engine import abi
from wasm_kernel.engine.clock import NO_SIGNALS, Clock, StopReason
from wasm_kernel.engine.compiler import Compiled
from wasm_kernel.engine.flavours import FUEL, UNCHECKED
from wasm_kernel.engine.host_calls import OutOfBounds
from wasm_kernel.engine.instance import Instance, InstanceOptions, stop_error
from wasm_kernel.engine.streams import OutputStreams
from wasm_kernel.engine.thread import JobThread
from wasm_kernel.engine.wasmtime_api import CallEnd
from wasm_kernel.errors import (
    CellTimeout,
    GuestClosed,
    GuestCrashed,
    GuestStopped,
    ImageError,
    Interrupted,
    OutOfFuel,
    StackExhausted,
)
from wasm_kernel.linux.folders import Folder
from wasm_kernel.state import image
from wasm_kernel.wasi_files.preopens import Preopen, Preopens

KNOWN = {wasmtime.TrapCode.OUT_OF_FUEL: OutOfFuel, wasmtime.TrapCode.STACK_OVERFLOW: StackExhausted}


def on_guest_thread(job: Callable[[], Any]) -> Any:
    """The result of `job` on a thread with a big stack."""
    thread = JobThread("test")
    try:
        return thread.submit(job).result(PATIENCE)
    finally:
        thread.close()
        thread.join(PATIENCE)


def stopped(guest: Guest, name: str, *args: int, fuel: int | None = None) -> GuestStopped:
    with pytest.raises(GuestStopped) as caught:
        guest.call(name, *args, fuel=fuel)
    return caught.value


@pytest.mark.parametrize("code", list(wasmtime.TrapCode))
def test_every_trap_has_an_error(code: wasmtime.TrapCode) -> None:
    error = stop_error(CallEnd(trap=code), None, fuel=7)
    assert type(error) is KNOWN.get(code, GuestCrashed)
    assert code in KNOWN or code.name.lower().replace("_", " ") in str(error)


@pytest.mark.parametrize(
    ("cause", "kind"), [("deadline", CellTimeout), ("grace", Interrupted), ("closed", GuestClosed)]
)
def test_every_reason_of_the_clock_has_an_error(cause: str, kind: type[GuestStopped]) -> None:
    assert type(stop_error(CallEnd(), StopReason(cause, 1.0), fuel=None)) is kind


def test_a_trap_that_came_first_is_told_although_the_clock_had_a_reason_too() -> None:
    stop = CallEnd(trap=wasmtime.TrapCode.UNREACHABLE)
    assert isinstance(stop_error(stop, StopReason("deadline", 1.0), fuel=None), GuestCrashed)


def test_an_endless_recursion_exhausts_the_stack_and_not_the_process(tmp_path: Path) -> None:
    def recurse() -> GuestStopped:
        guest = Guest(tmp_path)
        try:
            return stopped(guest, "recurse")
        finally:
            guest.close()

    assert isinstance(on_guest_thread(recurse), StackExhausted)


@pytest.fixture
def metered(tmp_path: Path) -> Iterator[Guest]:
    guest = Guest(tmp_path, flavour=FUEL, memory_bytes=1 * MIB)
    yield guest
    guest.close()


def test_fuel_runs_out_and_memory_grows_to_their_limits(metered: Guest) -> None:
    assert isinstance(stopped(metered, "nothing", fuel=1), OutOfFuel)
    error = stopped(metered, "spin", fuel=100_000)
    assert isinstance(error, OutOfFuel)
    assert error.budget == 100_000
    assert metered.instance.fuel_left == 0
    metered.call("nothing", fuel=1000)
    left = metered.instance.fuel_left
    assert left is not None
    assert metered.instance.lower_fuel(10) == left - 10
    assert metered.instance.lower_fuel(10_000) == 0
    with pytest.raises(MemoryError, match="memory_bytes"):
        metered.instance.grow_to(2 * MIB)
    assert metered.call("grow", 8, fuel=1000) == 8
    assert metered.call("grow", 1, fuel=1000) == 0xFFFFFFFF


def test_a_guest_whose_time_ends_in_a_host_call_ends_with_that_call(tmp_path: Path) -> None:
    def work(data: bytes) -> bytes:
        until = time.thread_time() + 0.2
        while time.thread_time() < until:
            """The ticker looks at the clock."""
        return data

    guest = Guest(tmp_path, handler=work)
    guest.clock.arm(NO_SIGNALS, 0.05, PATIENCE)
    assert isinstance(stopped(guest, "host_call", 1024, 0, 2048, 2052), CellTimeout)
    guest.close()


def test_another_thread_may_not_call_an_instance(guest: Guest) -> None:
    def call() -> None:
        guest.call("nothing")

    with pytest.raises(RuntimeError, match="thread"):
        on_guest_thread(call)


def test_a_guest_thread_outlives_failed_jobs_and_runs_the_last_once() -> None:
    before = threading.stack_size()
    on_guest_thread(lambda: None)
    assert threading.stack_size() == before
    thread = JobThread("test")
    try:
        with pytest.raises(ZeroDivisionError):
            thread.submit(lambda: 1 // 0).result(PATIENCE)
        assert thread.submit(lambda: 5).result(PATIENCE) == 5
    finally:
        thread.close()
    thread, ran = JobThread("test"), list[str]()
    thread.submit(lambda: ran.append("job"))
    thread.close(lambda: ran.append("last"))
    thread.close(lambda: ran.append("again"))
    thread.join(PATIENCE)
    assert ran == ["job", "last"]


TABLE = """(module
  (memory (export "memory") 1)
  (table (export "table") 4 funcref)
  (elem (i32.const 0) $two $sum $pair)
  (func $two (param i32) (result i32) (i32.mul (local.get 0) (i32.const 2)))
  (func $sum (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32) (local.get 7))
  (func $pair (param i32) (result i32 i32) (local.get 0) (local.get 0)))"""


def test_a_function_in_a_table_gets_no_more_arguments_than_there_are() -> None:
    """A guest whose memory is damaged may name any place; the host's memory stays its own."""
    engine = tiny.compiled().engine
    module = Compiled(engine, wasmtime.Module(engine, TABLE), UNCHECKED)
    instance = Instance(module, (), InstanceOptions(MIB), Clock(), OutputStreams())
    try:
        with instance.turn():
            assert instance.call_in_table("table", 0, 21) == 42
            for place in (1, 2, 3, 4, 0xFFFF_FFFF):
                with pytest.raises(GuestCrashed, match="bad signature"):
                    instance.call_in_table("table", place, 21)
    finally:
        instance.close()


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


def test_each_guest_has_its_own_host_of_which_nothing_is_kept(tmp_path: Path) -> None:
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


Making = Callable[..., Guest]


@pytest.fixture
def make(tmp_path: Path, ending: ExitStack) -> Making:
    """Makes guests, and closes them at the end."""
    return lambda **options: ending.enter_context(closing(Guest(tmp_path, **options)))


@pytest.fixture
def saved(make: Making, tmp_path: Path) -> image.BaseImage:
    """The image of a guest with data in its memory, also in the part by which it grew."""
    guest = make()
    guest.call("grow", 32)
    guest.instance.memory.write(200_000, b"remembered")
    guest.instance.memory.write(2 * MIB, b"far away")
    path = tmp_path / "memory"
    image.save(guest.instance, path)
    record = image.ImageRecord(guest.instance.memory.size, "build")
    return image.BaseImage(path, "tiny", record)


def test_no_guest_sees_the_writes_of_another(make: Making, saved: image.BaseImage) -> None:
    before = saved.path.read_bytes()
    one, other = make(), make()
    for guest in (one, other):
        saved.attach(guest.instance)
    one.instance.memory.write(200_000, b"overwritten")
    assert other.instance.memory.read(200_000, 10) == b"remembered"
    assert saved.path.read_bytes() == before


def test_an_image_that_is_kept_open_is_there_when_its_file_is_removed(
    make: Making, saved: image.BaseImage
) -> None:
    saved.keep_open()
    saved.path.unlink()
    saved.attach((guest := make()).instance)
    assert guest.instance.memory.read(200_000, 10) == b"remembered"


def test_an_image_too_large_or_cut_off_is_refused(make: Making, saved: image.BaseImage) -> None:
    with pytest.raises(MemoryError, match="memory_bytes"):
        saved.attach(make(memory_bytes=MIB).instance)
    with saved.path.open("rb+") as file:
        file.truncate(saved.record.size - 1)
    with pytest.raises(ImageError, match="not complete"):
        saved.attach(make().instance)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"size": 1, "build": "", "files": [{"fd": 1}], "extra": {}}']
)
def test_a_damaged_record_is_refused(text: str) -> None:
    with pytest.raises(ImageError):
        image.ImageRecord.load(text)
