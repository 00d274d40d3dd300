"""The fork server of workers whose modules have other values: `patched` starts it for a test."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path

import pytest

from wasm_kernel.service import fork_loop, fork_process
from wasm_kernel.service.fork_server import ForkServer
from wasm_kernel.service.program_home import own_workers

VARIABLE = "WASM_KERNEL_TEST_PATCHES"


@contextmanager
def patched(**values: float | str) -> Iterator[None]:
    """The workers of sandboxes that are made in the block have other values.

    Args:
        values: The values by the name of a module in `wasm_kernel` and of its variable, with two
            underscores in place of each dot. A text names another variable of that module.
    """
    with pytest.MonkeyPatch.context() as patch, closing(ForkServer()) as server:
        patch.setenv(VARIABLE, json.dumps(values))
        patch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[1]))
        patch.setattr(fork_process, "PROGRAM", __name__)
        patch.setattr(own_workers(), "fork_server", server)
        yield


def main(line: int, owner: int) -> None:
    for place, value in json.loads(os.environ[VARIABLE]).items():
        *path, name = place.split("__")
        module = import_module(".".join(["wasm_kernel", *path]))
        setattr(module, name, getattr(module, value) if isinstance(value, str) else value)
    fork_loop.main(line, owner)
