"""The notebook that a kernel was started for, so that it finds its variables tomorrow."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from wasm_kernel.sessions import ids

SESSION_NAME = "JPY_SESSION_NAME"
"""Where Jupyter's server tells a kernel the path of its notebook, on the host.

Source: `SessionManager.get_kernel_env` of jupyter_server, since 2.0.
"""


def session_of_notebook(environment: Mapping[str, str]) -> str | None:
    """The session that belongs to a notebook's path, the same one whenever it is opened.

    A notebook that was moved or renamed has another. None where no notebook is named: a console has
    a name of its own each time, without a suffix.
    """
    name = environment.get(SESSION_NAME, "")
    if not Path(name).is_absolute() or not (Path(name).suffix or Path(name).is_file()):
        return None
    return ids.derived(b"notebook", os.fsencode(os.path.realpath(name)))
