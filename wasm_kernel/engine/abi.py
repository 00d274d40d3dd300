"""The WASI calls that the host answers itself: their shapes, numbers and constants.

Source: the witx files of `wasi_snapshot_preview1`. In a shape, `i` is an i32 and `I` an i64; every
call but `proc_exit` answers an i32 error number.
"""

from __future__ import annotations

import errno

WASI = "wasi_snapshot_preview1"

SHAPES = {
    "clock_time_get": "iIi",
    "fd_advise": "iIIi",
    "fd_allocate": "iII",
    "fd_close": "i",
    "fd_datasync": "i",
    "fd_fdstat_get": "ii",
    "fd_fdstat_set_flags": "ii",
    "fd_filestat_get": "ii",
    "fd_filestat_set_size": "iI",
    "fd_filestat_set_times": "iIIi",
    "fd_pread": "iiiIi",
    "fd_prestat_dir_name": "iii",
    "fd_prestat_get": "ii",
    "fd_pwrite": "iiiIi",
    "fd_read": "iiii",
    "fd_readdir": "iiiIi",
    "fd_renumber": "ii",
    "fd_seek": "iIii",
    "fd_sync": "i",
    "fd_tell": "ii",
    "fd_write": "iiii",
    "path_create_directory": "iii",
    "path_filestat_get": "iiiii",
    "path_filestat_set_times": "iiiiIIi",
    "path_link": "iiiiiii",
    "path_open": "iiiiiIIii",
    "path_readlink": "iiiiii",
    "path_remove_directory": "iii",
    "path_rename": "iiiiii",
    "path_symlink": "iiiii",
    "path_unlink_file": "iii",
    "poll_oneoff": "iiii",
}

SUCCESS = 0
EACCES = 2
EBADF = 8
EEXIST = 20
EFAULT = 21
EILSEQ = 25
EINTR = 27
EINVAL = 28
EIO = 29
EISDIR = 31
ELOOP = 32
EMFILE = 33
ENAMETOOLONG = 37
ENOENT = 44
ENOSPC = 51
ENOTDIR = 54
ENOTEMPTY = 55
ENOTSUP = 58
EPERM = 63
ESPIPE = 70
EXDEV = 75

_OF_LINUX = {
    errno.E2BIG: 1,
    errno.EACCES: EACCES,
    errno.EAGAIN: 6,
    errno.EBADF: EBADF,
    errno.EBUSY: 10,
    errno.EDQUOT: 19,
    errno.EEXIST: EEXIST,
    errno.EFBIG: 22,
    errno.EILSEQ: EILSEQ,
    errno.EINTR: EINTR,
    errno.EINVAL: EINVAL,
    errno.EISDIR: EISDIR,
    errno.ELOOP: ELOOP,
    errno.EMFILE: EMFILE,
    errno.EMLINK: 34,
    errno.ENAMETOOLONG: ENAMETOOLONG,
    errno.ENFILE: 41,
    errno.ENODEV: 43,
    errno.ENOENT: ENOENT,
    errno.ENOMEM: 48,
    errno.ENOSPC: ENOSPC,
    errno.ENOTDIR: ENOTDIR,
    errno.ENOTEMPTY: ENOTEMPTY,
    errno.ENOTSUP: ENOTSUP,
    errno.ENXIO: 60,
    errno.EOVERFLOW: 61,
    errno.EPERM: EPERM,
    errno.EROFS: 69,
    errno.ESPIPE: ESPIPE,
    errno.ESTALE: 72,
    errno.ETXTBSY: 74,
    errno.EXDEV: EXDEV,
}


def errno_of(problem: OSError) -> int:
    """Returns WASI's number for a system error, or `EIO` if it has none."""
    return _OF_LINUX.get(problem.errno or 0, EIO)


O_CREAT, O_DIRECTORY, O_EXCL, O_TRUNC = 1, 2, 4, 8
FD_APPEND, FD_NONBLOCK = 1, 4
LOOKUP_FOLLOW = 1
RIGHT_READ, RIGHT_WRITE, RIGHT_READDIR = 1 << 1, 1 << 6, 1 << 14
FOLDER_RIGHTS = 0x7B7FE00, 0xFF7FFFF
"""The rights to a folder, and to files that are opened below it, as WASI counts them."""

FILE_RIGHTS = 0x3FFFFFFF
UNKNOWN_TYPE, FOLDER_TYPE, FILE_TYPE, LINK_TYPE = 0, 3, 4, 7
PATH_MAX = 4096
