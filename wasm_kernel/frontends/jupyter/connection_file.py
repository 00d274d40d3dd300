"""The connection file's path and the session's id, found before Jupyter's libraries are loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from jupyter_core.paths import jupyter_runtime_dir

from wasm_kernel.sessions import ids

_PREFIX = "kernel-"


def connection_path(name: str) -> Path:
    """Returns the path of a connection file's name, as other Jupyter kernels read it.

    A plain name is looked for here and in Jupyter's runtime folder; a new one lies in the latter.
    An empty name stands for a new file.
    """
    name = name or f"{_PREFIX}{os.getpid()}.json"
    here = Path(name).expanduser()
    if here.exists() or here.name != name:
        return here.absolute()
    return Path(jupyter_runtime_dir(), name)


def session_of_file(path: Path) -> str:
    """Returns the id of the session that belongs to a connection file, always the same one.

    Jupyter names the file by the kernel's own id and keeps both over a restart. For other files the
    id depends on their path and their key; a file that does not exist yet gets a new session.
    """
    found = ids.uuid_in(path.stem.removeprefix(_PREFIX))
    if found is not None:
        return found
    try:
        key = json.loads(path.read_text(encoding="utf-8"))["key"]
    except (OSError, ValueError, KeyError, TypeError):
        return ids.new()
    return ids.derived(os.fsencode(path), str(key).encode())


SESSION_NAME = "JPY_SESSION_NAME"
"""The variable in which Jupyter's server passes a kernel the path of its notebook, on the host.

Source: `SessionManager.get_kernel_env` of jupyter_server, since 2.0.
"""


def session_of_notebook(environment: Mapping[str, str]) -> str | None:
    """Returns the id of the session that belongs to a notebook's path, always the same one.

    A notebook that was moved or renamed has another. None if no notebook is named: a console has
    a name of its own each time, without a suffix.
    """
    name = environment.get(SESSION_NAME, "")
    if not Path(name).is_absolute() or not (Path(name).suffix or Path(name).is_file()):
        return None
    return ids.derived(b"notebook", os.fsencode(os.path.realpath(name)))
