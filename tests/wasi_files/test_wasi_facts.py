"""The facts that WASI's own tests state about file calls, checked on our handlers.

The facts are those of wasmtime's `p1_*` test programs and of cap-std's tests of paths; a test is
named after the program that states it. Where systems differ, so do the answers that are allowed.
"""

from __future__ import annotations

import struct

import pytest

from tests.engine.tiny import APP, FOLLOW, READ_ONLY, RIGHTS, Guest
from wasm_kernel.engine import abi

OK, CREAT, DIRECTORY = abi.SUCCESS, abi.O_CREAT, abi.O_DIRECTORY
READ, WRITE = 2, abi.RIGHT_WRITE


class Facts:
    """The calls of one guest, as short as the facts are."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest

    def open(
        self, path: str | bytes, how: int = 0, rights: int = READ, *, fd: int = APP, follow: int = 0
    ) -> int:
        at = (fd, follow, *self.guest.text(path), how, rights, RIGHTS, 0, 64)
        return self.guest.call("path_open", *at)

    def opened(self, path: str, how: int = 0, rights: int = READ, **options: int) -> int:
        assert self.open(path, how, rights, **options) == OK
        return self.guest.instance.memory.read_word(64)

    def file(self, path: str) -> None:
        assert self.guest.call("fd_close", self.opened(path, CREAT, READ | WRITE)) == OK

    def symlink(self, target: str, path: str) -> int:
        return self.guest.symlink(target, path)

    def read(self, fd: int) -> int:
        self.guest.instance.memory.write(64, struct.pack("<II", 65_536, 10))
        return self.guest.call("fd_read", fd, 64, 1, 96)


@pytest.fixture
def facts(guest: Guest) -> Facts:
    return Facts(guest)


def test_p1_dir_fd_op_failures(facts: Facts) -> None:
    for fd in (APP, facts.opened(".", DIRECTORY)):
        call = facts.guest.call
        assert call("fd_filestat_get", fd, 256) == OK
        assert facts.guest.instance.memory.read(256 + 16, 1) == b"\x03"
        assert facts.read(fd) == abi.EBADF
        assert facts.guest.write(fd, b"x") == abi.EBADF
        facts.guest.instance.memory.write(64, struct.pack("<II", *facts.guest.text(b"x")))
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


def test_p1_fd_flags_set(facts: Facts) -> None:
    """Appending can be turned on and off: a write at a position then is one at the end, or not."""
    fd = facts.opened("f", CREAT, READ | WRITE)
    put, call = facts.guest.write, facts.guest.call
    assert put(fd, b"0123456789") == OK
    for flag, expected in ((1, b"0123456789x"), (0, b"x123456789x")):
        assert call("fd_fdstat_set_flags", fd, flag) == OK
        assert call("fd_seek", fd, 0, 0, 96) == OK
        assert put(fd, b"x") == OK
        assert (facts.guest.app / "f").read_bytes() == expected
    assert call("fd_fdstat_set_flags", fd, 16) == abi.EINVAL  # SYNC


def test_p1_path_open_read_write(facts: Facts) -> None:
    facts.file("file")
    reading, writing = facts.opened("file", 0, READ), facts.opened("file", 0, WRITE)
    assert facts.guest.write(reading, b"x") in (abi.EPERM, abi.EBADF, abi.EACCES)
    assert facts.read(writing) in (abi.EPERM, abi.EBADF, abi.EACCES)
    assert facts.guest.told[1] == set()
    assert facts.guest.write(writing, b"x") == OK
    assert facts.read(reading) == OK


@pytest.mark.parametrize("links", [39, 40, 41, 80])
def test_cap_std_a_chain_of_links_is_followed_as_by_the_system(facts: Facts, links: int) -> None:
    """The guest gets the system's limit: giving up before or after it would be wrong."""
    facts.file("0")
    for i in range(links):
        assert facts.symlink(str(i), str(i + 1)) == OK
    try:
        (facts.guest.app / str(links)).stat()
        expected = OK
    except OSError:
        expected = abi.ELOOP
    assert facts.open(str(links), follow=FOLLOW) == expected


def test_cap_std_up_from_an_open_folder_is_nowhere(facts: Facts) -> None:
    (facts.guest.app / "a" / "b").mkdir(parents=True)
    for path in ("file", "a/file", "a/b/file"):
        facts.file(path)
    fd = facts.opened("a/b", DIRECTORY)
    for path in ("..", "../file", "../../file", "../b/file", "x/../../file"):
        assert facts.open(path, fd=fd) in (abi.EPERM, abi.ENOENT)


def test_p1_file_truncation_readonly(facts: Facts) -> None:
    path = facts.guest.app.parent / "ro" / "f"
    path.write_text("content")
    assert facts.open("f", abi.O_TRUNC, fd=READ_ONLY) == abi.EPERM
    assert path.read_text() == "content"
