"""One name in an open folder of a session: reads, replaces or deletes its file.

No link is followed, and only regular files are opened for their content: a pipe would block, and a
device could act.

A file is replaced by a draft, which is written in the root of the session's workspace and then
renamed. Drafts have names of the host that no guest can see or make (`wasi_files/preopens.py`). A
draft that was not written to for some minutes was left by a killed writer, and is removed when the
session is opened next.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from wasm_kernel.linux import trees
from wasm_kernel.linux.folders import NEW, READ, Folder, closing_fd


def read(folder: int, name: str, most: int) -> bytes:
    """Returns a file's content; `OSError` if it is not a regular file or over `most` bytes."""
    _check_regular(os.stat(name, dir_fd=folder, follow_symlinks=False))
    with closing_fd(os.open(name, READ, dir_fd=folder)) as descriptor:
        status = os.fstat(descriptor)
        _check_regular(status)  # it may have been swapped since
        if status.st_size > most:
            raise OSError(errno.EFBIG, f"The file's {status.st_size:,} bytes are over {most:,}")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(status.st_size)


def replace(root: int, folder: int, name: str, content: bytes, *, overwrite: bool) -> None:
    """Replaces a file by one with this content, as a whole; the draft is made in `root`.

    Raises `OSError` if the name is taken by something else or, without `overwrite`, by anything, or
    if the file is read-only; then nothing changes.
    """
    mode = _mode_to_keep(folder, name, overwrite=overwrite)
    with draft_of(root, content, mode) as draft:
        if overwrite:
            os.rename(draft, name, src_dir_fd=root, dst_dir_fd=folder)
        else:
            os.link(draft, name, src_dir_fd=root, dst_dir_fd=folder, follow_symlinks=False)


def _mode_to_keep(folder: int, name: str, *, overwrite: bool) -> int | None:
    """Returns the permissions of the file to replace; None if there is no file."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not overwrite:
        raise FileExistsError(errno.EEXIST, "There is something already")
    _check_regular(status)
    # a rename ignores the file's permissions, and root may write to everything
    writable = os.access(name, os.W_OK, dir_fd=folder, effective_ids=True)
    if not (writable and status.st_mode & stat.S_IWUSR):
        raise PermissionError(errno.EACCES, "Permission denied: the file is read-only")
    return stat.S_IMODE(status.st_mode) & 0o777


def _check_regular(status: os.stat_result) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if kind == stat.S_IFLNK:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if kind != stat.S_IFREG:
        raise OSError(errno.ENOTSUP, "It is a pipe, a socket or a device, and was not opened")


def delete(folder: int, name: str, *, recursive: bool) -> None:
    """Deletes a file, a link itself, or a folder, which must be empty unless `recursive`.

    If something in a folder can't be deleted, other parts may be gone.
    """
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(name, dir_fd=folder)
        return
    if recursive:
        with Folder(folder).enter(name) as below:
            trees.remove_contents(below.fd)
    os.rmdir(name, dir_fd=folder)


# -- drafts

_PREFIX = ".metadata.json~"
LEFT_SECONDS = 600.0  # since the last write to a draft whose writer was killed


@contextmanager
def draft_of(root: int, content: bytes, mode: int | None) -> Iterator[str]:
    """Writes a draft, and yields its name; a draft that is not renamed in the block is removed.

    Without a mode, the umask decides its permissions.
    """
    draft = f"{_PREFIX}{os.urandom(8).hex()}"
    try:
        with os.fdopen(os.open(draft, NEW, 0o666, dir_fd=root), "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            yield draft
    finally:
        with suppress(FileNotFoundError):
            os.unlink(draft, dir_fd=root)


def remove_left_drafts(root: int) -> None:
    """Removes the drafts of killed writers, and skips those that can't be removed."""
    for name in os.listdir(root):
        if name.startswith(_PREFIX):
            with suppress(OSError):
                written = os.stat(name, dir_fd=root, follow_symlinks=False).st_ctime
                if time.time() - written > LEFT_SECONDS:
                    os.unlink(name, dir_fd=root)
