"""Archives of the cache: native code is only imported by a user's command, with its digest."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.test_compiler import answer_of, described, silent
from tests.engine.test_compiler import binary as binary  # noqa: PLC0414 - a fixture
from wasm_kernel.engine.cache import Cache
from wasm_kernel.engine.cache_archive import CacheArchiveError, read_archive, write_archive
from wasm_kernel.engine.compiler import Compiler
from wasm_kernel.engine.flavours import UNCHECKED
from wasm_kernel.errors import CompileError

MEMORY = bytes(200_000) + b"remembered" + bytes(300_000)


class Machine:
    """One of the two machines: a cache, and the names of its files."""

    def __init__(self, folder: Path, binary: Path) -> None:
        self.cache = Cache(folder)
        self.cache.prepare()
        self.compiler = Compiler(self.cache)
        self._binary = described(binary)
        self.code = self.compiler.name(self._binary, UNCHECKED)

    def export(self, target: Path) -> str:
        self.compiler.module(self._binary, UNCHECKED, silent)
        self.cache.write("memory.image", lambda path: put(path, MEMORY))
        return write_archive([self.cache.path(self.code), self.cache.path("memory.image")], target)

    def take(self, source: Path, sha256: str) -> tuple[str, ...]:
        def check(path: Path) -> None:
            self.compiler.check(path, self._binary, UNCHECKED)

        known = {self.code: check, "memory.image": lambda path: None}
        return read_archive(source, sha256, self.cache, known)


@pytest.fixture
def one(tmp_path: Path, binary: Path) -> Machine:
    return Machine(tmp_path / "one", binary)


@pytest.fixture
def other(tmp_path: Path, binary: Path) -> Machine:
    return Machine(tmp_path / "other", binary)


def put(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def test_another_machine_runs_it_without_compiling(
    one: Machine, other: Machine, tmp_path: Path, binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = one.export(tmp_path / "guest")
    assert other.take(tmp_path / "guest", digest) == (other.code, "memory.image")
    monkeypatch.setattr(Compiler, "_compile", lambda *_: pytest.fail("compiled"))
    assert answer_of(other.cache, binary) == 42
    image = other.cache.trusted("memory.image")
    assert image is not None
    assert image.read_bytes() == MEMORY
    assert image.stat().st_blocks * 512 < len(MEMORY)


def test_an_archive_that_can_not_be_written_is_named_without_a_file_of_our_own(
    one: Machine, tmp_path: Path
) -> None:
    for target, why in ((tmp_path, "Is a directory"), (tmp_path / "no" / "x", "No such file")):
        with pytest.raises(CacheArchiveError, match=rf"^{target} can't be written \({why}"):
            one.export(target)


def flipped(path: Path) -> None:
    with path.open("rb+") as file:
        file.write(b"\0")


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "linked twice": lambda path: os.link(path, path.with_name("second")),
    "writable": lambda path: path.chmod(0o622),
    "another's": lambda path: os.chown(path, 12345, 12345),
    "flipped": flipped,
    "a pipe": a_pipe,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_archive_that_other_users_could_have_written_is_not_taken(
    one: Machine, other: Machine, tmp_path: Path, damage: str
) -> None:
    if damage == "another's" and os.geteuid() != 0:
        pytest.skip("only root gives files away")
    digest = one.export(tmp_path / "guest")
    DAMAGES[damage](tmp_path / "guest")
    with pytest.raises(CacheArchiveError, match=r"[Nn]othing was taken"):
        other.take(tmp_path / "guest", digest)
    assert not list(other.cache.folder.iterdir())


def test_another_versions_archive_is_not_taken(
    one: Machine, other: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = one.cache.write("of-another-version.cwasm", lambda path: put(path, b"code"))
    digest = write_archive([path], tmp_path / "guest")
    with pytest.raises(CacheArchiveError, match="another version"):
        other.take(tmp_path / "guest", digest)


def test_code_for_another_processor_or_wasmtime_is_not_taken(
    one: Machine, other: Machine, tmp_path: Path
) -> None:
    path = one.cache.write(one.code, lambda path: put(path, b"code for another processor"))
    digest = write_archive([path], tmp_path / "guest")
    with pytest.raises(CompileError, match=r"does not fit: [A-Z][^/\n]*$"):
        other.take(tmp_path / "guest", digest)
    assert not list(other.cache.folder.iterdir())


def test_a_file_of_that_digest_that_is_not_an_archive_is_told(
    other: Machine, tmp_path: Path
) -> None:
    put(tmp_path / "guest", b"no archive")
    with pytest.raises(CacheArchiveError, match="--export"):
        other.take(tmp_path / "guest", hashlib.sha256(b"no archive").hexdigest())
