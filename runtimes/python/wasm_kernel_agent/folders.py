"""The working folder: one plain path, as the kernel of an operating system keeps it.

WASI's C library keeps the text that it was given: after `cd a` and `cd ..` it says `/app/a/..`.
"""

from __future__ import annotations

import os
from pathlib import PurePath
from typing import Any


def install() -> None:
    """Let `os.chdir` leave a plain path behind."""
    change = os.chdir

    def chdir(path: Any) -> None:
        """Change the working folder."""
        __tracebackhide__ = True
        if isinstance(path, str | PurePath) and ".." in str(path).split("/"):
            path = os.path.realpath(path)
        change(path)

    os.chdir = chdir
