"""Places in the guest's memory that the host uses: signal words, and SQLite's generators."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from wasm_kernel.guests.python.guest import HostChannel

PAGE = 4096


@pytest.mark.parametrize("request_of_guest", [b"\0{}", b"\1{}"], ids=["codec", "shell"])
def test_while_an_image_is_built_codecs_and_scripts_are_refused_in_silence(
    request_of_guest: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Before, matplotlib's search for fonts had `wasm-kernel warm` print a traceback."""
    channel = HostChannel(lambda data: json.dumps(json.loads(data)).encode())
    memory = SimpleNamespace(read=lambda at, length: request_of_guest)
    call = channel.bind(cast(Any, SimpleNamespace(memory=memory)))["host", "call"]
    assert call(0, 3, PAGE, PAGE + 4) != 0
    assert not caplog.records
