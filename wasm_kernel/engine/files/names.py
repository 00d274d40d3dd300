"""Names that do not exist for the guest, and where a path leads.

One name in the workspace's root is the host's: `.metadata.json`, also with `~` and more behind it,
which is how the host calls what it writes aside. Whether a path means that name is decided where it
leads to, after every link on the way, under any spelling that some file system would take for the
same name (letter case, Unicode forms, ignorable characters, trailing dots and spaces, an NTFS
stream suffix).

That answer needs every link on the way to be read, and the host can't read one whose path is longer
than the system's limit. Nothing lies so deep for the guest: such a path is refused.
"""

from __future__ import annotations

import errno
import os
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from wasm_kernel.engine import abi
from wasm_kernel.engine.files.refused import Refused
from wasm_kernel.engine.folders.straight import is_straight

HIDDEN = frozenset({".metadata.json"})
_HOPS = 40  # as many links as Linux follows
_MANY = 5  # from so many parts on it is quicker to ask for all at once whether one is a link
_NO_LINK = (errno.EINVAL, errno.ENOENT, errno.ENOTDIR)


def is_hidden(name: str) -> bool:
    """Whether a name in the workspace's root is one of the host's, under any spelling."""
    if name.isascii() and not name.startswith("."):
        return False  # the quick way for nearly all names: only other characters fold to a dot
    return spelling(name) in HIDDEN


def spelling(name: str) -> str:
    """The one form that all spellings of a name share."""
    plain = "".join(c for c in name if unicodedata.category(c) != "Cf")
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", plain).casefold())
    return re.split("[:~]", folded, maxsplit=1)[0].rstrip(". ")


class HiddenName(Refused):
    """A path leads to, or through, a name that does not exist for the guest."""

    errno = abi.ENOENT


class TooDeep(Refused):
    """A path leads to where the host's path would be too long to be looked at."""

    errno = abi.ENAMETOOLONG


def resolve(
    root: Path, start: tuple[str, ...], path: str, *, follow: bool, guarded: bool
) -> tuple[str, ...] | None:
    """Where `path`, seen from the folder `start` below `root`, leads: the parts below `root`.

    Args:
        root: The host folder behind a preopen.
        start: The parts of the folder that the path begins at.
        path: The guest's path.
        follow: Whether a link at the end of the path is followed; with a slash or a dot behind it,
            every system follows it.
        guarded: Whether hidden names in `root` are refused.

    Returns:
        The parts, or None where the path leaves `root`.

    Raises:
        HiddenName: the path leads to or through a hidden name.
        TooDeep: it leads too deep.
        Refused: it follows too many links.
    """
    follow = follow or path.endswith(("/", "/."))
    done, hops = list(start), 0
    todo = [part for part in reversed(path.split("/")) if part not in ("", ".")]
    if len(todo) > _MANY and ".." not in todo:
        if guarded and not done and is_hidden(todo[-1]):
            raise HiddenName
        if is_straight("/".join([str(root), *done, *todo[:0:-1]])):
            done += todo[:0:-1]
            del todo[1:]
    while todo:
        part = todo.pop()
        if part == "..":
            if not done:
                return None
            done.pop()
            continue
        if guarded and not done and is_hidden(part):
            raise HiddenName
        target = _link_target(root, done, part) if todo or follow else None
        if target is None:
            done.append(part)
            continue
        hops += 1
        if hops > _HOPS:
            raise Refused(abi.ELOOP)
        if target.startswith("/"):
            return None
        todo += [part for part in reversed(target.split("/")) if part not in ("", ".")]
    if too_deep(root, done):
        raise TooDeep
    return tuple(done)


def too_deep(root: Path, parts: Iterable[str], more: int = 0) -> bool:
    """Whether the host's path of `parts` below `root`, and `more` bytes after it, is too long."""
    whole = "/".join([str(root), *parts])
    if 4 * len(whole) + more < abi.PATH_MAX:
        return False
    return len(os.fsencode(whole)) + more >= abi.PATH_MAX


def lexical(start: tuple[str, ...], path: str) -> tuple[str, ...] | None:
    """Where a path leads by its letters alone, or None where it has `..` in it."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return None if ".." in parts else (*start, *parts)


def _link_target(root: Path, folder: list[str], name: str) -> str | None:
    try:
        return os.readlink("/".join([str(root), *folder, name]))  # noqa: PTH115 - hot, and text
    except OSError as problem:
        if problem.errno in _NO_LINK:
            return None
        raise TooDeep if problem.errno == errno.ENAMETOOLONG else Refused(abi.EACCES) from None
