"""Programs that end with the process that starts them, however that ends.

A file of its own, as two rooms start programs and neither may import the other: the kernel has
bytecode written, and `%pip` has wheels fetched.
"""

from __future__ import annotations

import os
import sys

_TIE = """
import ctypes, os, signal
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() != {parent}:
    os._exit(1)
"""


def tied(code: str) -> list[str]:
    """The command of a Python that runs `code`, and is killed when the calling thread has ended.

    It imports nothing from the folder that it is started in. The system sends the signal, so it
    also comes if this process is killed.
    """
    return [sys.executable, "-P", "-c", _TIE.format(parent=os.getpid()) + code]
