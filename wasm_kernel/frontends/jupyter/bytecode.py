"""Bytecode for a kernel's modules, which a kernel within its walls may not write.

Python compiles a module when it is first imported, and keeps what it made beside it. Some
installers do that themselves (pip), others leave it to Python (uv, an editable install). A confined
kernel can write nothing there, so each of its starts would compile everything anew, at a third of
the start's time. So a process outside does it, once, while the first kernel starts.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import cache_from_source
from pathlib import Path

_IMPORTS = "import wasm_kernel.frontends.jupyter.kernel, wasm_kernel.frontends.jupyter.sockets"
_IMPORTS += ", wasm_kernel.execution.create"
_IMPORTS += ", wasm_kernel.guests.python.language"


def missing() -> bool:
    """Whether bytecode is to be written, and can be; the last module of a start tells of all."""
    last = Path(__file__).with_name("kernel.py")
    kept = cache_from_source(str(last))
    return not (
        sys.dont_write_bytecode or Path(kept).exists() or not os.access(last.parent, os.W_OK)
    )


def write() -> subprocess.Popen[bytes]:
    """Have another interpreter import what a kernel does; it is not waited for.

    It ends with this process: the next start goes on where it was.
    """
    from wasm_kernel.linux.broker import tied_command

    quiet = subprocess.DEVNULL
    return subprocess.Popen(  # noqa: S603 - nothing of it comes from anybody
        tied_command(_IMPORTS), stdin=quiet, stdout=quiet, stderr=quiet
    )
