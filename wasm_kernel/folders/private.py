"""Where the private state of workspaces lies: outside of every folder that a guest is given.

Each workspace has one private folder: its history, the guest's `/tmp`, packages, locks. It lies in
the user's state folder, or beside the root of the workspaces; never inside a workspace, where a
stranger could have put links in its place. Which one belongs to a workspace is decided by the
root's path, the workspace's name in it, and by what the system knows of the very folder
(`linux/files.py`): a folder that is made anew at the same path gets a new one.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
from pathlib import Path
from typing import Self

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.linux import trees
from wasm_kernel.linux.files import FileMark
from wasm_kernel.linux.folders import Folder

RECORD = "record.json"
"""The file in a private folder that says which workspace it belongs to."""

_VERSION = 1
_RECORD_BYTES = 64 * 1024
_REMOVED = ".removed-"
_DIGEST_BYTES = 12
_ATTEMPTS = 8
_LABEL = re.compile(r"[^A-Za-z0-9-]+")
_LABEL_MOST = 64


class PrivateFolderError(WasmKernelError):
    """There is no place for private state; nothing was opened."""


class Owner(Struct, frozen=True):
    """The workspace that a private folder belongs to.

    Attributes:
        root: The real path of the folder that the workspace lies in: the root of the sessions.
        name: The workspace's name there.
        mark: Which folder it is.
        root_mark: Which folder the root was.
        above: Which folder the root lay in.
        session: Whether it is a session's.
    """

    root: str
    name: str
    mark: FileMark
    root_mark: FileMark
    above: FileMark
    session: bool = False

    @property
    def key(self) -> str:
        """The name of its private folder."""
        told = json.dumps([self.root, self.name, self.mark.number, self.mark.born])
        digest = hashlib.blake2b(told.encode(), digest_size=_DIGEST_BYTES).hexdigest()
        label = _LABEL.sub("-", self.name)[:_LABEL_MOST]
        return f"{label}-{digest}"

    @property
    def path(self) -> Path:
        """The path at which the workspace lay."""
        return Path(self.root, self.name)

    def dump(self) -> bytes:
        """Returns the record as JSON."""
        return json.dumps({"version": _VERSION, **msgspec.to_builtins(self)}, indent=1).encode()

    @classmethod
    def load(cls, data: bytes) -> Self:
        """Returns the record that `dump` wrote.

        Raises:
            ValueError: The data is not such a record.
        """
        raw = json.loads(data)  # msgspec's own reader refuses names that are not UTF-8
        if not isinstance(raw, dict) or raw.get("version") != _VERSION:
            raise ValueError("not a record of this version")
        return msgspec.convert(raw, cls)


def owner_of(folder: Folder) -> Owner | None:
    """Returns the workspace that a private folder belongs to; None if it does not say so."""
    try:
        return Owner.load(folder.read(RECORD, _RECORD_BYTES))
    except (OSError, ValueError, RecursionError):
        return None


class Place:
    """A folder that holds private folders; close it.

    Attributes:
        path: Its real path.
        folder: The folder, which is this user's alone.
        far: Whether it lies in another file system than the workspaces, so that files are copied
            and not linked.
    """

    def __init__(self, path: Path, folder: Folder, *, far: bool = False) -> None:
        self.path = path
        self.folder = folder
        self.far = far

    def find(self, owner: Owner, *, opened: bool = False) -> tuple[Folder, Owner] | None:
        """Returns the private folder of a workspace, and its record; None if it is not here.

        Args:
            owner: The workspace.
            opened: Whether it is used from now on; then its record is brought up to date.
        """
        try:
            found = self.folder.enter(owner.key)
        except OSError:
            return None
        known = owner_of(found)
        if known is not None and known.mark.same(owner.mark):
            if opened and known != owner:
                with contextlib.suppress(OSError):
                    _inscribe(found, replace(owner, session=owner.session or known.session))
                    os.utime(self.folder.fd)  # whoever watches the place looks again
            return found, known
        found.close()
        return None

    def make(self, owner: Owner) -> Folder:
        """Returns a new private folder for a workspace.

        Whatever had its name was another workspace's; that loses its name.

        Raises:
            OSError: it can't be made.
        """
        aside = f".new-{secrets.token_hex(8)}"
        made = self.folder.enter(aside, make=True)
        try:
            _inscribe(made, owner)
            self._retire(owner)
            self.folder.rename(aside, owner.key)
        except BaseException:
            made.close()
            with contextlib.suppress(OSError):
                trees.remove_tree(self.path / aside)
            raise
        return made

    def _retire(self, owner: Owner) -> None:
        """Free the name from what is not this workspace's private folder."""
        if self.folder.status(owner.key) is None:
            return
        there = self.find(owner)
        if there is not None:  # another process was faster
            there[0].close()
            raise FileExistsError(errno.EEXIST, "it is there by now")
        self.folder.rename(owner.key, f"{_REMOVED}{secrets.token_hex(8)}")

    def set_aside(self, key: str) -> str:
        """Gives a private folder a name by which nobody finds it; empty if it does not exist."""
        aside = f"{_REMOVED}{secrets.token_hex(8)}"
        try:
            self.folder.rename(key, aside)
        except FileNotFoundError:
            return ""
        return aside

    def remove(self, aside: str) -> None:
        """Removes a private folder that was set aside.

        Whoever has it open still, and finds out just now, may put a last file there.

        Raises:
            OSError: it can't be removed; a sweep tries again.
        """
        for left in reversed(range(_ATTEMPTS)):
            try:
                trees.remove_tree(self.path / aside)
            except OSError as problem:
                if problem.errno != errno.ENOTEMPTY or not left:
                    raise
            else:
                return

    def close(self) -> None:
        """Closes the folder."""
        self.folder.close()


def _inscribe(folder: Folder, owner: Owner) -> None:
    with folder.replacing(RECORD) as file:
        file.write(owner.dump())
