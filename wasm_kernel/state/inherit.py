"""Another workspace, a copy of one, gets the earlier versions of its files, too."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping

from wasm_kernel.linux.files import FileCopier
from wasm_kernel.linux.folders import Folder
from wasm_kernel.state.file_contents import link_same_file
from wasm_kernel.state.file_ledger import JOURNAL, JOURNAL_MOST_BYTES, FileLedger

_COPIED_MOST = 64 * 1024 * 1024
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def inherit(kept: int, private: Folder, name: str, last: int, names: Mapping[str, str]) -> None:
    """Fill a folder that is not there.

    Args:
        kept: A descriptor of the folder that holds them.
        private: The folder that the new one is made in.
        name: The new one's name there.
        last: The last commit of the history that is copied, too.
        names: The identities of files that were open at commits, and those of their copies.

    Raises:
        OSError: it can't be made.
    """
    os.mkdir(name, 0o700, dir_fd=private.fd)
    ledger = FileLedger(private, name)
    ledger.begin(last)
    with contextlib.suppress(OSError):
        ledger.take_over(_journal(kept))
    ledger.rename(names)
    ledger.write()
    with private.enter(name) as other:
        for number in ledger.contents:
            if not _copied(kept, str(number), other):
                ledger.lose(number, "large")
    ledger.close()


def _journal(kept: int) -> bytes:
    with Folder(os.dup(kept)) as folder:
        return folder.read(JOURNAL, JOURNAL_MOST_BYTES)


def _copied(folder: int, name: str, other: Folder) -> bool:
    """Whether a content is there, too: the very file if nobody will ever write to it, a clone or
    a copy of what lies in a workspace, too, or may come to.
    """
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISREG(found.st_mode):
            return False
        if found.st_nlink == 1 and found.st_size <= _COPIED_MOST:
            with contextlib.suppress(OSError):  # on another device, or no hard links here
                link_same_file(folder, name, found, other, name)
                return True
        return _cloned(os.open(name, _READ, dir_fd=folder), other, name)
    except OSError:
        return False


def _cloned(source: int, other: Folder, name: str) -> bool:
    with os.fdopen(source, "rb"):
        found = os.fstat(source)
        new = os.fdopen(other.open_regular(name, os.O_RDWR | os.O_CREAT | os.O_EXCL), "r+b")
        with new:
            content = FileCopier()
            if not content.clone(source, new.fileno()):
                if found.st_size > _COPIED_MOST:
                    other.remove(name)
                    return False
                content.copy(source, new.fileno(), found.st_size)
            os.utime(new.fileno(), ns=(found.st_atime_ns, found.st_mtime_ns))
    return True
