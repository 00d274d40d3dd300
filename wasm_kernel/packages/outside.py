"""Fetching where the kernel's own process can't: the porter, outside of its walls, runs pip.

Whoever has taken over the inner process can ask the porter for anything. So it is handed names and
versions, which are checked again there, and the name of a folder in the session's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wasm_kernel.confinement.porter import Duty, Porter, PorterError, Stopped, Tell
from wasm_kernel.errors import PackageError

if TYPE_CHECKING:
    from wasm_kernel.packages.fetch import Fetch

DUTY = "fetch packages"
_WISHES_MOST = 100
_FOLDER = re.compile(r"[a-z0-9_]{1,40}")


def fetching(folder: Path) -> Duty:
    """The porter's duty.

    Args:
        folder: Where fetched wheels may be put, each time into a folder of its own in there.
    """

    def duty(fields: Mapping[str, Any], tell: Tell, stopped: Stopped) -> Mapping[str, Any]:
        from wasm_kernel.packages.fetching import Pip
        from wasm_kernel.sandbox.python import shared_driver

        name, wishes = str(fields.get("into", "")), fields.get("wishes")
        place = folder / name
        if not _FOLDER.fullmatch(name) or place.is_symlink() or not place.is_dir():
            raise PackageError("there is no such folder for packages.")
        if not isinstance(wishes, list) or len(wishes) > _WISHES_MOST:
            raise PackageError("these are no packages.")
        pip = Pip(shared_driver().environment.python_version)
        pre = fields.get("pre") is True
        pip([str(wish) for wish in wishes], place, pre=pre, tell=tell, stopped=stopped)
        return {}

    return duty


def through(porter: Porter) -> Fetch:
    """A `Fetch` that has the porter do it."""

    def fetch(
        wishes: Sequence[str], folder: Path, *, pre: bool, tell: Tell, stopped: Stopped
    ) -> None:
        fields = {"wishes": list(wishes), "into": folder.name, "pre": pre}
        try:
            porter.ask(DUTY, fields, tell, stopped)
        except PorterError as problem:
            raise PackageError(str(problem)) from problem

    return fetch
