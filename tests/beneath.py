"""A sandbox over a notebook's folder, like that of the Jupyter kernel."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from tests.local import get_session_sandbox
from wasm_kernel.folders.private import PrivateFolders


def over(folder: Path, aside: Path) -> Any:
    """A session whose guest sees a folder as /notebook; the caller closes it.

    Args:
        folder: The folder.
        aside: A folder for the session's root and the connection file.
    """
    sandbox = get_session_sandbox("reader", workspace_root=aside / "sessions")
    with contextlib.chdir(folder):
        sandbox.folders.show_notebook(
            PrivateFolders(aside / "sessions"), aside / "runtime" / "kernel.json"
        )
    return sandbox
