"""A sandbox over a notebook's folder, as the Jupyter kernel has it."""

from __future__ import annotations

import contextlib
from pathlib import Path

from tests.local import LocalSandbox, get_session_sandbox
from wasm_kernel.folders.private import PrivateFolders


def over(folder: Path, aside: Path) -> LocalSandbox:
    """A session whose guest sees a folder as /notebook; close it.

    Args:
        folder: The folder.
        aside: Where the session's root and the connection file lie.
    """
    sandbox = get_session_sandbox("reader", workspace_root=aside / "sessions")
    with contextlib.chdir(folder):
        sandbox.folders.show_notebook(
            PrivateFolders(aside / "sessions"), aside / "runtime" / "kernel.json"
        )
    return sandbox
