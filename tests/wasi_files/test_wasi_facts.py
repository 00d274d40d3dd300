"""The facts that WASI's own tests state about file calls, checked on our handlers.

The facts are those of wasmtime's `p1_*` test programs and of cap-std's tests of paths; a test is
named after the program that states it. Where systems differ, so do the answers that are allowed.
"""

from __future__ import annotations

import struct

import pytest

from tests.engine.tiny import APP, READ_ONLY, Guest
from wasm_kernel.engine import abi

OK, CREAT, DIRECTORY = abi.SUCCESS, abi.O_CREAT, abi.O_DIRECTORY
READ, WRITE = 2, abi.RIGHT_WRITE


def opened(guest: Guest, path: str, how: int = 0, rights: int = READ) -> int:
    errno, fd = guest.open(path, how, follow=0, rights=rights)
    assert errno == OK
    return fd


def read(guest: Guest, fd: int) -> int:
    guest.instance.memory.write(64, struct.pack("<II", 65_536, 10))
    return guest.call("fd_read", fd, 64, 1, 96)


def test_p1_dir_fd_op_failures(guest: Guest) -> None:
    for fd in (APP, opened(guest, ".", DIRECTORY)):
        call = guest.call
        assert call("fd_filestat_get", fd, 256) == OK
        assert guest.instance.memory.read(256 + 16, 1) == b"\x03"
        assert read(guest, fd) == abi.EBADF
        assert guest.write(fd, b"x") == abi.EBADF
        guest.instance.memory.write(64, struct.pack("<II", *guest.text(b"x")))
        assert call("fd_pread", fd, 64, 1, 0, 96) == abi.EBADF
        assert call("fd_pwrite", fd, 64, 1, 0, 96) == abi.EBADF
        assert [call("fd_seek", fd, 0, whence, 96) for whence in range(3)] == [abi.EBADF] * 3
        assert call("fd_tell", fd, 96) == abi.EBADF
        assert call("fd_advise", fd, 0, 0, 4) == abi.EBADF
        assert call("fd_allocate", fd, 0, 0) == abi.EBADF
        assert call("fd_sync", fd) == abi.EBADF
        assert call("fd_datasync", fd) == abi.EBADF
        assert call("fd_fdstat_set_flags", fd, 4) == abi.EBADF
        assert call("fd_filestat_set_size", fd, 0) == abi.EBADF


def test_p1_fd_flags_set(guest: Guest) -> None:
    """Appending can be turned on and off: a write at a position then is one at the end, or not."""
    fd = opened(guest, "f", CREAT, READ | WRITE)
    put, call = guest.write, guest.call
    assert put(fd, b"0123456789") == OK
    for flag, expected in ((1, b"0123456789x"), (0, b"x123456789x")):
        assert call("fd_fdstat_set_flags", fd, flag) == OK
        assert call("fd_seek", fd, 0, 0, 96) == OK
        assert put(fd, b"x") == OK
        assert (guest.app / "f").read_bytes() == expected
    assert call("fd_fdstat_set_flags", fd, 16) == abi.EINVAL  # SYNC


def test_p1_path_open_read_write(guest: Guest) -> None:
    guest.make("file")
    reading, writing = opened(guest, "file", 0, READ), opened(guest, "file", 0, WRITE)
    assert guest.write(reading, b"x") in (abi.EPERM, abi.EBADF, abi.EACCES)
    assert read(guest, writing) in (abi.EPERM, abi.EBADF, abi.EACCES)
    assert guest.told[1] == set()
    assert guest.write(writing, b"x") == OK
    assert read(guest, reading) == OK


@pytest.mark.parametrize("links", [39, 40, 41, 80])
def test_cap_std_a_chain_of_links_is_followed_as_by_the_system(guest: Guest, links: int) -> None:
    """The guest gets the system's limit: giving up before or after it would be wrong."""
    guest.make("0")
    for i in range(links):
        assert guest.symlink(str(i), str(i + 1)) == OK
    try:
        (guest.app / str(links)).stat()
        expected = OK
    except OSError:
        expected = abi.ELOOP
    assert guest.open(str(links), rights=READ)[0] == expected


def test_cap_std_up_from_an_open_folder_is_nowhere(guest: Guest) -> None:
    (guest.app / "a" / "b").mkdir(parents=True)
    for path in ("file", "a/file", "a/b/file"):
        guest.make(path)
    fd = opened(guest, "a/b", DIRECTORY)
    for path in ("..", "../file", "../../file", "../b/file", "x/../../file"):
        assert guest.open(path, fd=fd, follow=0, rights=READ)[0] in (abi.EPERM, abi.ENOENT)


def test_p1_file_truncation_readonly(guest: Guest) -> None:
    path = guest.app.parent / "ro" / "f"
    path.write_text("content")
    assert guest.open("f", abi.O_TRUNC, fd=READ_ONLY, follow=0, rights=READ)[0] == abi.EPERM
    assert path.read_text() == "content"
