"""The WASI calls that the host answers itself: their shapes, numbers and constants.

Source: the witx files of `wasi_snapshot_preview1`. In a shape, `i` is an i32 and `I` an i64; every
call but `proc_exit` answers an i32 error number.
"""

from __future__ import annotations

import errno

WASI = "wasi_snapshot_preview1"

_BY_SHAPE = {
    "i": "fd_close fd_datasync fd_sync",
    "iI": "fd_filestat_set_size",
    "ii": "fd_fdstat_get fd_fdstat_set_flags fd_filestat_get fd_prestat_get fd_renumber fd_tell",
    "iII": "fd_allocate",
    "iIi": "clock_time_get",
    "iii": "fd_prestat_dir_name path_create_directory path_remove_directory path_unlink_file",
    "iIIi": "fd_advise fd_filestat_set_times",
    "iIii": "fd_seek",
    "iiii": "fd_read fd_write poll_oneoff",
    "iiiIi": "fd_pread fd_pwrite fd_readdir",
    "iiiii": "path_filestat_get path_symlink",
    "iiiiii": "path_readlink path_rename",
    "iiiiIIi": "path_filestat_set_times",
    "iiiiiii": "path_link",
    "iiiiiIIii": "path_open",
}
SHAPES = {name: shape for shape, names in _BY_SHAPE.items() for name in names.split()}

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

_NAMES = (
    "2BIG ACCES ADDRINUSE ADDRNOTAVAIL AFNOSUPPORT AGAIN ALREADY BADF BADMSG BUSY CANCELED CHILD "
    "CONNABORTED CONNREFUSED CONNRESET DEADLK DESTADDRREQ DOM DQUOT EXIST FAULT FBIG HOSTUNREACH "
    "IDRM ILSEQ INPROGRESS INTR INVAL IO ISCONN ISDIR LOOP MFILE MLINK MSGSIZE MULTIHOP "
    "NAMETOOLONG NETDOWN NETRESET NETUNREACH NFILE NOBUFS NODEV NOENT NOEXEC NOLCK NOLINK NOMEM "
    "NOMSG NOPROTOOPT NOSPC NOSYS NOTCONN NOTDIR NOTEMPTY NOTRECOVERABLE NOTSOCK NOTSUP NOTTY NXIO "
    "OVERFLOW OWNERDEAD PERM PIPE PROTO PROTONOSUPPORT PROTOTYPE RANGE ROFS SPIPE SRCH STALE "
    "TIMEDOUT TXTBSY XDEV"
)
_OF_LINUX = {getattr(errno, f"E{name}"): number for number, name in enumerate(_NAMES.split(), 1)}


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
