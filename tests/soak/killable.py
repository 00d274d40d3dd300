"""A pytest plugin: the tests run in a process that may be killed, so their guests have no epochs.

The killed process leaves the name of the running test in the file that `KILLED_TEST` names.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wasm_kernel.engine.clock import StopReason
from wasm_kernel.engine.flavours import THIS_PROCESS

STATUS = 77
VARIABLE = "KILLED_TEST"


class Owner:
    """Ends the process as if it were killed."""

    def __init__(self) -> None:
        self.running = ""

    def kill(self, reason: StopReason) -> None:
        Path(os.environ[VARIABLE]).write_text(self.running)
        os._exit(STATUS)


_OWNER = Owner()


def pytest_configure() -> None:
    """Lets the guests of this process run without epochs, if it is loaded as a plugin."""
    # not when it is imported: a test of the everyday run names this module
    THIS_PROCESS.may_be_killed_by(_OWNER)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _OWNER.running = item.nodeid
