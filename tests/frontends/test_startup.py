"""Modules that a start leaves out are there when code asks for them later."""

from __future__ import annotations

import subprocess
import sys

LAZILY = """
import sys
from wasm_kernel.frontends.jupyter.startup import lazily
for package in ("ipykernel", "jupyter_client", "IPython"):
    lazily(package)
from ipykernel.kernelbase import Kernel
from jupyter_client.session import Session
print(*sorted(sys.modules))
import IPython, ipykernel, jupyter_client
from jupyter_client import KernelManager
assert jupyter_client.manager.KernelManager is KernelManager
assert jupyter_client.session.Session is Session
assert ipykernel.version_info and ipykernel.kernelbase.Kernel is Kernel
assert IPython.get_ipython() is None and IPython.core.error.UsageError
try:
    jupyter_client.no_such_name
except AttributeError:
    print("done")
"""
WITHOUT = """
import sys
from wasm_kernel.frontends.jupyter.startup import without
with without("ssl"):
    import asyncio
print(*sorted(sys.modules))
import ssl
assert ssl.create_default_context()
assert asyncio.run(asyncio.sleep(0, "slept")) == "slept"
print("done")
"""


def said(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_a_package_is_whole_when_code_asks_for_it() -> None:
    loaded, done = said(LAZILY)
    assert "jupyter_client.session" in loaded.split()
    assert not {"jupyter_client.manager", "IPython.core.interactiveshell"} & set(loaded.split())
    assert done == "done"


def test_a_module_that_was_left_out_is_there_afterwards() -> None:
    loaded, done = said(WITHOUT)
    assert not {"ssl", "_ssl"} & set(loaded.split())
    assert done == "done"
