"""The guest's `host.call`, and source that runs in the guest."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.engine.tiny import MIB, Guest
from wasm_kernel.engine.flavours import UNCHECKED
from wasm_kernel.errors import GuestCrashed
from wasm_kernel.guests.python.guest import HostChannel, PythonAddresses, PythonGuest


def test_a_handler_that_fails_is_an_error_number_to_the_guest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(data: bytes) -> bytes:
        raise KeyboardInterrupt

    guest = Guest(tmp_path, handler=handler)
    try:
        assert guest.call("host_call", *guest.text("hi"), 2048, 2052) != 0
        assert "host" in caplog.text
        assert guest.call("nothing") == 0
    finally:
        guest.close()


@pytest.mark.parametrize(("at", "length"), [(0, 2**32 - 1), (2**32 - 8, 64), (0, 100 * MIB)])
def test_the_channel_reads_nothing_outside_a_memory(guest: Guest, at: int, length: int) -> None:
    assert guest.call("host_call", at, length, 2048, 2052) != 0


def test_nothing_is_written_outside_and_a_full_memory_is_told(guest: Guest) -> None:
    assert guest.call("host_call", *guest.text("hi"), 2**32 - 4, 2052) != 0
    python = PythonGuest(guest.instance, guest.files, PythonAddresses({}), UNCHECKED)
    with pytest.raises(GuestCrashed, match="out of memory"):
        python.run(b"x" * 1_000_000)


def test_an_answer_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    guest = Guest(tmp_path, handler=lambda data: b"x" * 200_000)
    try:
        assert guest.call("host_call", *guest.text("hi"), 2048, 2052) != 0
    finally:
        guest.close()


PAGE = 4096


@pytest.mark.parametrize("request_of_guest", [b"\0{}", b"\1{}"], ids=["codec", "shell"])
def test_while_an_image_is_built_codecs_and_scripts_are_refused_in_silence(
    request_of_guest: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Formerly, matplotlib's search for fonts had `wasm-kernel warm` print a traceback."""
    channel = HostChannel(lambda data: json.dumps(json.loads(data)).encode())
    memory = SimpleNamespace(read=lambda at, length: request_of_guest)
    call = channel.bind(cast(Any, SimpleNamespace(memory=memory)))["host", "call"]
    assert call(0, 3, PAGE, PAGE + 4) != 0
    assert not caplog.records
