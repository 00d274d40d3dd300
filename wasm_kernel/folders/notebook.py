"""The notebook's folder: whether a guest may see it, and which of its files.

A kernel is started in the folder of its notebook. The guest sees that folder beneath its workspace
(`wasi_files/overlay.py`), unless the folder holds more than a notebook's files: a home, the root of
a file system, or a folder that leads to one that no guest may reach.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.folders.hiding import FolderAncestry, PlacesHidden, guarded
from wasm_kernel.folders.places import ROOTS
from wasm_kernel.folders.private import PrivateFolders
from wasm_kernel.linux.folders import Folder, inode_of
from wasm_kernel.wasi_files.preopens import Preopen, folded_name

NOTEBOOK = "/notebook"
BENEATH = "/notebook (beneath)"
"""The name of the folder itself in saved memory's records of open files."""

_SHORT_NAME = re.compile(r"~\d")  # FAT and NTFS give `.git` a second name, GIT~1
_KEYS = (
    r"kernel-(v\d+-\w+|\d+|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})\.json"
    r"|(jp|nb)server-\d+(\.json|-open\.html)"
    r"|(jupyter|notebook)_cookie_secret|notebook_secret"
)
"""The names that Jupyter and its clients give to files with keys of kernels and servers."""
_KEY_LETTERS = "kjn"  # the first letters of those names
_PSEUDO = ("/proc", "/sys")  # their files look regular, but are the system's
_MOUNTS, ACCOUNTS = "/proc/self/mountinfo", "/etc/passwd"
_FIRST_PERSON = 1000  # accounts below belong to the system, except for root's
_NOT_SHOWN = (
    "[wasm-kernel] Cells don't see the files beside this notebook, as its folder {why}. Files "
    "that cells write stay in the session. To have the files seen, move the notebook to a folder "
    "of its own and start it there.\n"
)
_SYSTEM = "is one of the system's own, or of Jupyter's"


class NotShown(WasmKernelError):
    """Cells are not shown the notebook's folder; the text says why."""

    def __init__(self, why: str) -> None:
        self.why = why
        super().__init__(_NOT_SHOWN.format(why=why))


class NotebookHidden(PlacesHidden):
    """The rule for the notebook's folder, which hides more than places and roots.

    `secret` is the connection file: a cell that reads it can send requests to the kernel. The
    folders `kept` are hidden, too, at any depth.
    """

    def __init__(self, folder: Folder, secret: Path, kept: Sequence[Path] = ()) -> None:
        super().__init__(folder)
        here = _mark(secret.parent) == self._own
        self._secret = folded_name(secret.name) if here else ""
        self._first = _KEY_LETTERS + self._secret[:1]
        self._private = frozenset(map(_mark, [*([] if here else [secret.parent]), *kept]))
        self._pseudo = frozenset(_devices(_PSEUDO))

    @property
    def hides_folders(self) -> bool:
        """Returns True, after a search for new places and roots."""
        return super().hides_folders or True

    def hides_name(self, depth: int, name: str) -> bool:
        """Hides names with a dot in front, under every spelling, and files with Jupyter's keys."""
        if name[0] == "." or _SHORT_NAME.search(name):
            return True
        if name.isascii() and name[0].lower() not in (self._first if not depth else _KEY_LETTERS):
            return False  # the quick way for most names
        plain = folded_name(name)
        if plain.startswith(".") or (not depth and bool(plain) and plain == self._secret):
            return True
        return re.fullmatch(_KEYS, plain) is not None

    def hides_folder(self, fd: int, depth: int) -> bool:
        """Hides places, roots, the folder of connection files, and `/proc` and `/sys`."""
        found = os.fstat(fd)
        if found.st_dev in self._pseudo or inode_of(found) in self._private:
            return True
        return super().hides_folder(fd, depth)


def open_here(start: Path = Path()) -> Folder:
    """Opens the notebook's folder, by default this process's working folder.

    Raises `NotShown` if it is unreadable.
    """
    try:
        return Folder.open(start)
    except PermissionError:
        raise NotShown("can't be listed by this user") from None


def shown(
    folder: Folder, privates: PrivateFolders, secret: Path, kept: Sequence[Path] = ()
) -> Preopen:
    """Returns the guest's view of the notebook's folder. Raises `NotShown` if no guest may see it.
    The folder stays the caller's. `kept` are folders of the front end, such as that of its keys.
    """
    ancestry = FolderAncestry.of(folder.fd)
    if ancestry.chain[-1][0] in _devices(_PSEUDO) or ancestry.chain[-1] in map(_mark, kept):
        raise NotShown(_SYSTEM)
    if any(ancestry.holds(home) for home in _homes()):
        raise NotShown("is, or holds, a home folder")
    if _is_root(folder, ancestry):
        raise NotShown("is the root of a file system")
    _check_places(ancestry, privates)
    # the root may not have been noted
    hidden = NotebookHidden(folder, secret, (*kept, privates.root))
    return Preopen(folder, BENEATH, hidden=hidden, living=True)


def check_target(folder: Folder, privates: PrivateFolders, kept: Sequence[Path]) -> None:
    """Raises `NotShown`, whose `why` gives the reason, if a session's files may not go to a folder.

    They may not go into the folders `kept` by the front end, or below them.
    """
    ancestry = FolderAncestry.of(folder.fd)
    if ancestry.chain[-1][0] in _devices(_PSEUDO) or any(
        _mark(each) in ancestry.chain for each in kept
    ):
        raise NotShown(_SYSTEM)
    _check_places(ancestry, privates)


def _check_places(ancestry: FolderAncestry, privates: PrivateFolders) -> None:
    for what, other in guarded(privates.named):
        if ancestry.overlaps(other):
            raise NotShown(f"is, holds or lies in the one for {what}")
    if any(_mark(each) in ancestry.chain for each in (privates.root, *ROOTS.paths())):
        raise NotShown("is one of sessions, or lies in one")


def _mark(path: Path) -> tuple[int, int]:
    """Returns a folder's device and inode number; for a missing one, numbers of no folder."""
    with contextlib.suppress(OSError):
        return inode_of(path.stat())
    return -1, -1


def _devices(paths: tuple[str, ...]) -> Iterator[int]:
    for path in paths:
        with contextlib.suppress(OSError):
            yield Path(path).stat().st_dev


def _homes() -> Iterator[FolderAncestry]:
    """Yields the existing homes of this user and of other people."""
    named = {os.environ.get("HOME", "")}
    with contextlib.suppress(OSError):
        for line in Path(ACCOUNTS).read_text(errors="replace").splitlines():
            fields = line.split(":")
            if len(fields) > 5 and fields[2].isdecimal() and _is_person(int(fields[2])):
                named.add(fields[5])
    for name in named:
        with contextlib.suppress(OSError, RuntimeError):
            ancestry = FolderAncestry.at(Path(name)) if name.startswith("/") else None
            if ancestry is not None and not ancestry.rest:
                yield ancestry


def _is_person(number: int) -> bool:
    return number in (0, os.getuid()) or number >= _FIRST_PERSON


def _is_root(folder: Folder, ancestry: FolderAncestry) -> bool:
    """Returns whether a folder is the root of a file system; a folder mounted from one is not."""
    if len(ancestry.chain) == 1:
        return True
    if ancestry.chain[-1][0] == ancestry.chain[-2][0]:
        return False
    try:
        here = str(Path(f"/proc/self/fd/{folder.fd}").readlink())
        lines = Path(_MOUNTS).read_text(errors="surrogateescape").splitlines()
    except OSError:
        return True  # unknown, but it is a mount
    fields = [line.split() for line in lines]
    roots = [each[3] for each in fields if len(each) > 4 and _unescaped(each[4]) == here]
    return not roots or roots[-1] == "/"


def _unescaped(path: str) -> str:
    """Returns a path of `mountinfo`, in which blanks are octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), path)
