"""The cache (ATTACKS 36): an untrusted file is never read, and is replaced, with a warning."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.test_compiler import answer_of, described, silent
from tests.engine.test_compiler import binary as binary  # noqa: PLC0414 - a fixture
from tests.faces import PATIENCE
from tests.nobody import mkdir
from wasm_kernel.engine.cache import ENVIRONMENT, Cache, CacheError, default_folder
from wasm_kernel.engine.cache_archive import CacheArchiveError, read_archive, write_archive
from wasm_kernel.engine.compiler import Compiler
from wasm_kernel.engine.flavours import UNCHECKED
from wasm_kernel.errors import CacheWarning, CompileError

NAME = f"{64206:032x}-unchecked.cwasm"
GOOD = b"good code" * 100
DAY = 24 * 3600

needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives files away"
)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """A cache with one good file."""
    made = Cache(tmp_path / "cache")
    made.prepare()
    made.write(NAME, lambda path: put(path, GOOD))
    return made


def put(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def note_of(path: Path) -> Path:
    return path.with_name(f"{NAME}.json")


def replaced(path: Path) -> None:
    path.with_name("other").write_bytes(b"evil code")
    path.with_name("other").replace(path)


def bit_flipped(path: Path) -> None:
    times = path.stat()
    with path.open("rb+") as file:
        file.write(bytes([GOOD[0] ^ 1]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def truncated(path: Path) -> None:
    os.truncate(path, len(GOOD) // 2)


def another(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


def linked(path: Path) -> None:
    path.symlink_to(path.rename(path.with_name("elsewhere")))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "replaced": replaced,
    "truncated": truncated,
    "a bit flipped": bit_flipped,
    "a symbolic link": linked,
    "a hard link": lambda path: os.link(path, path.with_name("second")),
    "writable by all": lambda path: path.chmod(0o602),
    "writable by the group": lambda path: path.chmod(0o620),
    "its note gone": lambda path: note_of(path).unlink(),
    "its note no JSON": lambda path: note_of(path).write_text("{"),
    "its note no object": lambda path: note_of(path).write_text("[]"),
    "its note no text": lambda path: note_of(path).write_bytes(b"\xff"),
    "its note of another file": lambda path: note_of(path).write_text(
        json.dumps({"sha256": "0" * 64, "stamp": []})
    ),
    "its note writable": lambda path: note_of(path).chmod(0o666),
    "its note a link": lambda path: linked(note_of(path)),
    "a folder": lambda path: another(path, Path.mkdir),
    "a pipe": lambda path: another(path, os.mkfifo),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_files_are_told_and_remade(cache: Cache, damage: Callable[[Path], object]) -> None:
    damage(cache.path(NAME))
    with pytest.warns(CacheWarning) as caught:
        assert cache.trusted(NAME) is None
    assert str(cache.folder) not in str(caught[0].message)
    cache.write(NAME, lambda path: put(path, GOOD))
    assert cache.trusted(NAME) is not None


@needs_root
def test_a_file_of_another_user_is_not_trusted(cache: Cache) -> None:
    os.chown(cache.path(NAME), 12345, 12345)
    with pytest.warns(CacheWarning, match="another user"):
        assert cache.trusted(NAME) is None


def test_a_file_that_was_only_copied_back_is_trusted_by_its_digest(cache: Cache) -> None:
    path = cache.path(NAME)
    path.rename(path.with_name("moved"))
    path.write_bytes(GOOD)
    path.chmod(0o600)
    assert cache.trusted(NAME) == path


def test_a_link_that_is_discarded_leaves_its_target(cache: Cache, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(GOOD)
    cache.path(NAME).unlink()
    cache.path(NAME).symlink_to(target)
    with pytest.warns(CacheWarning):
        cache.trusted(NAME)
    assert target.read_bytes() == GOOD


def test_files_are_private_and_not_there_before_they_are_whole(cache: Cache) -> None:
    assert cache.path(NAME).stat().st_mode & 0o777 == 0o600
    assert cache.folder.stat().st_mode & 0o777 == 0o700
    seen: list[bool] = []
    cache.write("new", lambda path: seen.append(cache.path("new").exists()))
    assert seen == [False]
    assert cache.path("new").exists()


FOLDERS: dict[str, Callable[[Path], object]] = {
    f"writable by others|{ENVIRONMENT}": lambda path: mkdir(path, 0o702),
    f"writable by the group|{ENVIRONMENT}": lambda path: mkdir(path, 0o720),
    "a file above|Not a directory": lambda path: path.parent.touch(),
    "a link|link": lambda path: path.symlink_to(path.parent.parent),
    "of another user|another user": lambda path: mkdir(path, 0o700, 12345),
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_folder_that_is_not_its_owners_alone_is_refused(tmp_path: Path, kind: str) -> None:
    if "user" in kind and os.geteuid() != 0:
        pytest.skip("only root gives files away")
    folder = tmp_path / "above" / "cache"
    if "file" not in kind:
        folder.parent.mkdir()
    FOLDERS[kind](folder)
    with pytest.raises((CacheError, PermissionError), match=kind.partition("|")[2]):
        Cache(folder).prepare()


def test_a_write_that_fails_leaves_the_old_file(cache: Cache) -> None:
    def fill(path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        cache.write(NAME, fill)
    assert cache.path(NAME).read_bytes() == GOOD
    assert cache.trusted(NAME) is not None


def test_a_process_that_waits_for_a_lock_is_told(cache: Cache) -> None:
    told = threading.Event()
    with cache.lock("x", lambda seconds: None):

        def wait() -> None:
            with cache.lock("x", lambda seconds: told.set()):
                pass

        thread = threading.Thread(target=wait)
        thread.start()
        assert told.wait(PATIENCE)
    thread.join()


Later = Callable[[float], None]
"""Moves the cache's clock on by a number of days."""


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    def move(days: float) -> None:
        now = time.time() + days * DAY
        monkeypatch.setattr("wasm_kernel.engine.cache.time.time", lambda: now)

    return move


def test_sweeping_removes_files_that_were_not_used_for_a_month(cache: Cache, later: Later) -> None:
    later(31)
    cache.remove_unused()
    assert not cache.path(NAME).exists()


def test_sweeping_leaves_files_that_were_used_lately_whatever_times_an_attacker_set(
    cache: Cache, later: Later
) -> None:
    for name in (NAME, f"{NAME}.json"):
        os.utime(cache.path(name), (1, 1))  # an attacker in a worker can do this
    later(29)
    cache.remove_unused()
    assert cache.path(NAME).exists()


@pytest.mark.parametrize("set_to", [1, 1 << 33])
def test_using_a_file_keeps_it_from_the_sweep_also_where_no_time_is_set_by_a_path(
    cache: Cache, later: Later, monkeypatch: pytest.MonkeyPatch, set_to: int
) -> None:
    note = cache.path(f"{NAME}.json")
    os.utime(note, (set_to, set_to))
    before, utime = note.stat().st_ctime_ns, os.utime

    def of_what_is_open(place: int) -> None:
        if not isinstance(place, int):
            raise PermissionError  # as behind the second wall
        utime(place)

    monkeypatch.setattr(os, "utime", of_what_is_open)
    later(2)
    time.sleep(0.01)  # file times have a limited resolution
    assert cache.trusted(NAME) is not None
    assert note.stat().st_ctime_ns > before


def test_sweeping_removes_what_was_never_finished(cache: Cache, later: Later) -> None:
    left = cache.path(f".{NAME}.x1")
    left.write_bytes(b"half")
    cache.remove_unused()
    assert left.exists()  # it is just being written
    later(2)
    cache.remove_unused()
    assert not left.exists()


def test_sweeping_leaves_files_of_folders_not_ours_alone(tmp_path: Path, later: Later) -> None:
    home = Cache(tmp_path)  # `WASM_KERNEL_CACHE=$HOME`
    home.prepare()
    home.write(NAME, lambda path: put(path, GOOD))
    for name in ("thesis.json", "vm.image", "bundle-of-photos", ".profile", f"{NAME}.json", NAME):
        home.path(name).touch()
    later(400)
    home.remove_unused()
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"thesis.json", "vm.image", "bundle-of-photos", ".profile"}


def test_sweeping_follows_no_link(cache: Cache, tmp_path: Path, later: Later) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    link = cache.path(f"bundle-{7:032x}")
    link.symlink_to(precious)
    later(100)
    cache.remove_unused()
    assert not link.is_symlink()
    assert (precious / "file").exists()


def test_a_folder_beside_the_notebook_is_never_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, "cache")
    with pytest.raises(CacheError, match="absolute"):
        default_folder()
    monkeypatch.delenv(ENVIRONMENT)
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert default_folder().is_absolute()


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


ARCHIVE_DAMAGES: dict[str, Callable[[Path], None]] = {
    "linked twice": lambda path: os.link(path, path.with_name("second")),
    "writable": lambda path: path.chmod(0o622),
    "another's": lambda path: os.chown(path, 12345, 12345),
    "flipped": flipped,
    "a pipe": a_pipe,
}


@pytest.mark.parametrize("damage", ARCHIVE_DAMAGES)
def test_an_archive_that_other_users_could_have_written_is_not_taken(
    one: Machine, other: Machine, tmp_path: Path, damage: str
) -> None:
    if damage == "another's" and os.geteuid() != 0:
        pytest.skip("only root gives files away")
    digest = one.export(tmp_path / "guest")
    ARCHIVE_DAMAGES[damage](tmp_path / "guest")
    with pytest.raises(CacheArchiveError, match=r"[Nn]othing was taken"):
        other.take(tmp_path / "guest", digest)
    assert not list(other.cache.folder.iterdir())


def test_code_for_another_version_processor_or_wasmtime_is_not_taken(
    one: Machine, other: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = one.cache.write("of-another-version.cwasm", lambda path: put(path, b"code"))
    digest = write_archive([path], tmp_path / "guest")
    with pytest.raises(CacheArchiveError, match="another version"):
        other.take(tmp_path / "guest", digest)
    path = one.cache.write(one.code, lambda path: put(path, b"code for another processor"))
    digest = write_archive([path], tmp_path / "guest")
    with pytest.raises(CompileError, match=r"does not fit: [A-Z][^/\n]*$"):
        other.take(tmp_path / "guest", digest)
    assert not list(other.cache.folder.iterdir())


def test_file_of_that_digest_that_is_not_an_archive_is_told(other: Machine, tmp_path: Path) -> None:
    put(tmp_path / "guest", b"no archive")
    with pytest.raises(CacheArchiveError, match="--export"):
        other.take(tmp_path / "guest", hashlib.sha256(b"no archive").hexdigest())
