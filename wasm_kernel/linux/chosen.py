"""A folder that somebody named: by an absolute path, or by one that begins in the current folder.

The current folder may be a repository that somebody has just cloned, with a link in the place of
`workspace`. So a relative path is walked name by name, and a link on it is refused. An absolute
path may lead through links: who names it knows them.
"""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.linux.folder import Folder

_SEARCHED = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LISTED = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class PlantedLinkError(WasmKernelError, ValueError):
    """A relative path leads through a link."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} leads through a link, which whoever made the current folder may have put "
            "there. Nothing was opened. If the link is yours, name the folder that it leads to by "
            "its absolute path."
        )


def real_path(path: Path | str) -> Path:
    """Returns the real path of a folder that somebody named; it need not be there.

    Raises:
        PlantedLinkError: the path is relative, and leads through a link.
    """
    path = Path(path)
    if path.is_absolute():
        return path.resolve()
    with contextlib.suppress(OSError):  # missing, say: whoever opens it tells
        os.close(_walked(path, _SEARCHED))
    return _lexical(path)


def open_named(path: Path | str) -> Folder:
    """Returns a folder that somebody named, open; the caller closes it.

    Raises:
        PlantedLinkError: as `real_path`.
        OSError: it is missing, not a folder, or closed to this user.
    """
    path = Path(path)
    return Folder.open(path) if path.is_absolute() else Folder(_walked(path, _LISTED))


def _lexical(path: Path) -> Path:
    return Path(os.path.normpath(Path.cwd() / path))  # exact: no name on the way is a link


def _walked(path: Path, how: int) -> int:
    """Goes from the current folder to another one; returns its descriptor."""
    *way, last = Path(os.path.relpath(_lexical(path))).parts or (".",)
    fd = os.open(".", _SEARCHED)
    try:
        for name in way:
            below = _entered(fd, name, _SEARCHED, path)
            os.close(fd)
            fd = below
        return _entered(fd, last, how, path)
    finally:
        os.close(fd)


def _entered(fd: int, name: str, how: int, path: Path) -> int:
    try:
        return os.open(name, how, dir_fd=fd)
    except OSError as problem:
        if problem.errno in (errno.ENOTDIR, errno.ELOOP) and _is_link(fd, name):
            raise PlantedLinkError(str(path)) from None
        raise


def _is_link(fd: int, name: str) -> bool:
    try:
        os.readlink(name, dir_fd=fd)
    except OSError:
        return False
    return True
