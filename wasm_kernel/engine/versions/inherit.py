"""Another workspace, a copy of one, gets the earlier versions of its files, too."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from wasm_kernel.engine.folders.content import Content, share
from wasm_kernel.engine.versions import journal
from wasm_kernel.engine.versions.record import Record
from wasm_kernel.errors import HistoryError

_COPIED_MOST = 64 * 1024 * 1024
_JOURNAL_MOST = 256 * 1024 * 1024
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def inherit(kept: int, other: Path, last: int, names: Mapping[str, str]) -> None:
    """Fill a folder that is not there.

    Args:
        kept: A descriptor of the folder that holds them.
        other: The new one.
        last: The last commit of the history that is copied, too.
        names: The identities of files that were open at commits, and those of their copies.

    Raises:
        OSError: it can't be made.
    """
    other.mkdir(mode=0o700)
    record = Record(other)
    record.begin(last)
    with contextlib.suppress(HistoryError, ValueError, OSError):
        record.take_over(journal.read(_bytes(kept, journal.NAME)))
    record.rename(names)
    record.write()
    for number in record.contents:
        if not _copied(kept, str(number), other / str(number)):
            record.lose(number, "large")
    record.close()


def _bytes(folder: int, name: str) -> bytes:
    descriptor = os.open(name, _READ, dir_fd=folder)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(_JOURNAL_MOST)


def _copied(folder: int, name: str, target: Path) -> bool:
    """Whether a content is there, too: the very file where nobody will ever write to it, a clone or
    a copy of what lies in a workspace, too, or may come to.
    """
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISREG(found.st_mode):
            return False
        if found.st_nlink == 1 and found.st_size <= _COPIED_MOST:
            share(folder, name, target)
            return True
        return _cloned(os.open(name, _READ, dir_fd=folder), found, target)
    except OSError:
        return False


def _cloned(source: int, found: os.stat_result, target: Path) -> bool:
    with os.fdopen(source, "rb"), target.open("xb") as new:
        content = Content()
        if not content.clone(source, new.fileno()):
            if found.st_size > _COPIED_MOST:
                return False
            content.copy(source, new.fileno(), found.st_size)
        os.utime(new.fileno(), ns=(found.st_atime_ns, found.st_mtime_ns))
    return True
