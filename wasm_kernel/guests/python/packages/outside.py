"""Fetching where the kernel's own process can't: the porter, outside of its walls, runs pip.

Whoever has taken over the inner process can ask the porter for anything. So it is handed names and
versions, which are checked again there, and the name of a folder in the session's own.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wasm_kernel.errors import PackageError
from wasm_kernel.folders.folders import FETCHED
from wasm_kernel.folders.places import PrivateFolders
from wasm_kernel.linux.broker import Duty, Porter, PorterError, Stopped, Tell
from wasm_kernel.linux.folders import Folder, real_path

if TYPE_CHECKING:
    from wasm_kernel.guests.python.packages.fetch import Fetch

DUTY = "fetch packages"
_WISHES_MOST = 100
_FOLDER = re.compile(r"[a-z0-9_]{1,40}")


def fetching(root: Path, session_id: str, private_root: Path | None = None) -> Duty:
    """The porter's duty: wheels are put into a folder of their own in a session's private one.

    Args:
        root: The sessions' folder.
        session_id: The session.
        private_root: The folder that holds private folders; one of the user's by default.
    """

    def duty(fields: Mapping[str, Any], tell: Tell, stopped: Stopped) -> Mapping[str, Any]:
        from tempfile import TemporaryDirectory

        from wasm_kernel.guests.python.language import shared_language
        from wasm_kernel.guests.python.packages.fetching import Pip

        name, wishes = str(fields.get("into", "")), fields.get("wishes")
        if not isinstance(wishes, list) or len(wishes) > _WISHES_MOST:
            raise PackageError("these are no packages.")
        pip = Pip(shared_language().files.python_version)
        pre = fields.get("pre") is True
        # pip goes by paths: it works where whoever is inside can't put links in its way
        with (
            _place(real_path(root), session_id, private_root, name) as (place, beside),
            TemporaryDirectory(prefix=".fetched-", dir=beside) as own,
        ):
            folder = Path(own)
            pip([str(wish) for wish in wishes], folder, pre=pre, tell=tell, stopped=stopped)
            for wheel in folder.glob("*.whl"):
                os.link(wheel, wheel.name, dst_dir_fd=place.fd, follow_symlinks=False)
        return {}

    return duty


@contextlib.contextmanager
def _place(
    root: Path, session_id: str, private_root: Path | None, name: str
) -> Iterator[tuple[Folder, Path]]:
    """The folder that wheels are put into, and one that the session's process can't change."""
    with contextlib.ExitStack() as held:
        try:
            top = held.enter_context(Folder.open(root))
            workspace = held.enter_context(top.enter(session_id))
            found = PrivateFolders(root, private_root).find(session_id, workspace)
            if found is None or not _FOLDER.fullmatch(name):
                raise FileNotFoundError
            private = held.enter_context(found.folder)
            place = held.enter_context(private.enter(FETCHED, name))
        except OSError:
            raise PackageError("there is no such folder for packages.") from None
        yield place, found.path.parent


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
