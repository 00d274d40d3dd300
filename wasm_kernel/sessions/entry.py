"""One name in a folder that is held open: its content read, replaced as a whole, or deleted.

No link is followed, and nothing but a regular file is ever opened for its content: a pipe would
block, a device would act.
"""

from __future__ import annotations

import errno
import os
import stat

from wasm_kernel.linux import trees, walks
from wasm_kernel.sessions import drafts

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CHUNK = 16 * 1024 * 1024


def read(folder: int, name: str, most: int) -> bytes:
    """A file's content.

    Raises:
        OSError: it is no regular file, is larger than `most` bytes, or can't be read.
    """
    _check_regular(os.stat(name, dir_fd=folder, follow_symlinks=False))
    descriptor = os.open(name, _READ, dir_fd=folder)
    try:
        status = os.fstat(descriptor)
        _check_regular(status)  # it may have been swapped since
        if status.st_size > most:
            raise OSError(errno.EFBIG, f"The file's {status.st_size:,} bytes are over {most:,}")
        return _whole(descriptor, most)
    finally:
        os.close(descriptor)


def _whole(descriptor: int, most: int) -> bytes:
    """Everything from here to the end, also where the file grows meanwhile, up to `most` bytes."""
    pieces, left = [], most
    while piece := os.read(descriptor, min(left, _CHUNK)):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def replace(root: int, folder: int, name: str, content: bytes, *, overwrite: bool) -> None:
    """Put a file with this content in the place of what is there, all at once.

    Args:
        root: A descriptor of the session's folder: the file is made there, under a hidden name.
        folder: A descriptor of the folder that it is for.
        name: Its name there.
        content: Its content.
        overwrite: Whether a file that is there is replaced.

    Raises:
        OSError: there is something else or, without `overwrite`, anything; the file there is
            read-only; or it can't be written. What was there is still there.
    """
    mode = _mode_to_keep(folder, name, overwrite=overwrite)
    with drafts.written(root, content, mode) as draft:
        if overwrite:
            os.rename(draft, name, src_dir_fd=root, dst_dir_fd=folder)
        else:
            os.link(draft, name, src_dir_fd=root, dst_dir_fd=folder, follow_symlinks=False)


def _mode_to_keep(folder: int, name: str, *, overwrite: bool) -> int | None:
    """The permissions of the file that is replaced; None where there is none."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not overwrite:
        raise FileExistsError(errno.EEXIST, "There is something already")
    _check_regular(status)
    # a rename would not ask; root may write to everything, and is still told
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
    """Delete a file, a link itself, or a folder.

    Raises:
        OSError: there is nothing; the folder is not empty and `recursive` is False; or something
            can't be deleted, and a part is gone.
    """
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode):
        os.unlink(name, dir_fd=folder)
        return
    if recursive:
        with walks.opened_folder(name, folder) as below:
            trees.remove_contents(below)
    os.rmdir(name, dir_fd=folder)
