"""What a connection file tells before Jupyter's own libraries are loaded: place and session."""

from __future__ import annotations

import json
import os
from pathlib import Path

from jupyter_core.paths import jupyter_runtime_dir

from wasm_kernel.sessions import ids

_PREFIX = "kernel-"


def place_of(name: str) -> Path:
    """The path that a connection file's name stands for, as other Jupyter kernels read it.

    A plain name is looked for here and in Jupyter's runtime folder, and belongs into the latter.
    An empty one stands for a new file.
    """
    name = name or f"{_PREFIX}{os.getpid()}.json"
    here = Path(name).expanduser()
    if here.exists() or here.name != name:
        return here.absolute()
    return Path(jupyter_runtime_dir(), name)


def session_of(path: Path) -> str:
    """The session that belongs to a connection file, the same one whenever it is asked.

    Jupyter names the file by the kernel's own id and keeps both over a restart. Other files are
    told apart by their place and their key; one that is not there yet gets a new session.
    """
    found = ids.uuid_in(path.stem.removeprefix(_PREFIX))
    if found is not None:
        return found
    try:
        key = json.loads(path.read_text(encoding="utf-8"))["key"]
    except (OSError, ValueError, KeyError, TypeError):
        return ids.new()
    return ids.derived(os.fsencode(path), str(key).encode())
