"""The WASI calls that the host answers itself or looks at: their shapes and error numbers.

Source: the witx files of `wasi_snapshot_preview1`. In a shape, `i` is an i32 and `I` an i64; every
call but `proc_exit` answers an i32 error number.
"""

from __future__ import annotations

WASI = "wasi_snapshot_preview1"

SHAPES = {
    "fd_write": "iiii",
    "fd_pwrite": "iiiIi",
    "fd_filestat_set_size": "iI",
    "fd_allocate": "iII",
    "fd_fdstat_set_flags": "ii",
    "fd_renumber": "ii",
    "fd_close": "i",
    "fd_readdir": "iiiIi",
    "poll_oneoff": "iiii",
    "path_open": "iiiiiIIii",
    "path_create_directory": "iii",
    "path_filestat_get": "iiiii",
    "path_filestat_set_times": "iiiiIIi",
    "path_link": "iiiiiii",
    "path_readlink": "iiiiii",
    "path_remove_directory": "iii",
    "path_rename": "iiiiii",
    "path_symlink": "iiiii",
    "path_unlink_file": "iii",
}

FORWARDED = {**SHAPES, "clock_time_get": "iIi", "fd_seek": "iIii", "fd_tell": "ii"}
"""What a shadow may pass on or ask wasmtime's WASI for."""

SUCCESS = 0
EACCES = 2
EBADF = 8
EILSEQ = 25
EINVAL = 28
EIO = 29
ELOOP = 32
EMFILE = 33
ENAMETOOLONG = 37
ENOENT = 44
ENOSPC = 51
EFAULT = 21
ENOTSUP = 58
EPERM = 63

O_CREAT, O_DIRECTORY, O_EXCL, O_TRUNC = 1, 2, 4, 8
FD_APPEND = 1
LOOKUP_FOLLOW = 1
RIGHT_WRITE = 1 << 6
PATH_MAX = 4096
