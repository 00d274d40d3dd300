"""A pytest plugin: the tests run in a process that may be killed, so their guests have no epochs.

As tests begin, their names are written to the file that `BEGUN_TESTS` names. Tests named there
already are skipped, so that a process can continue after one that was killed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wasm_kernel.engine.clock import StopReason
from wasm_kernel.engine.flavours import THIS_PROCESS

STATUS = 77
VARIABLE = "BEGUN_TESTS"


class Owner:
    """Ends the process as if it were killed."""

    def kill(self, reason: StopReason) -> None:
        os._exit(STATUS)


_OWNER = Owner()


def pytest_configure() -> None:
    """Lets the guests of this process run without epochs, if it is loaded as a plugin."""
    # a test of the everyday run names this module, so importing it must change nothing
    THIS_PROCESS.may_be_killed_by(_OWNER)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    with Path(os.environ[VARIABLE]).open("a") as begun:
        begun.write(f"{item.nodeid!a}\n")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    begun = set(Path(os.environ[VARIABLE]).read_text().splitlines())
    items[:] = [item for item in items if ascii(item.nodeid) not in begun]
