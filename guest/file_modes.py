"""The patch that gives files permissions in `os.stat`.

WASI has no modes: the C library makes `st_mode` of a file's type alone, from tables of `fstat` and
`fstatat`. `zipfile` and `tarfile` put a file's mode into the archive, so a file that another
program unpacked could not be read. The table has the modes that a native program's files have now.
"""

from __future__ import annotations

from struct import pack

from guest.wasm_module import DataEdit

_TABLES = (25903832, 25903864)
_TYPES = (0o020000, 0o040000, 0o100000, 0o140000, 0o140000, 0o120000)
"""A device, a folder, a file, two kinds of sockets, and a link: WASI's types from 2 on."""
_PERMISSIONS = (0o666, 0o755, 0o644, 0o777, 0o777, 0o777)

_OLD = pack("<6H", *_TYPES)
_NEW = pack("<6H", *(kind | mode for kind, mode in zip(_TYPES, _PERMISSIONS, strict=True)))

DATA_EDITS = tuple(DataEdit(each, _OLD, _NEW, "files have permissions") for each in _TABLES)
