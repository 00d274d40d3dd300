"""A guest of a few lines of WAT that makes one WASI call per turn, which its test chooses.

The source of a turn is an operation's number and its arguments, eight bytes each. So a test calls
`guest.call("path_open", ...)` and gets a guest's answer.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import wasmtime
from msgspec.structs import replace

from wasm_kernel.engine import abi
from wasm_kernel.engine.cache import Cache
from wasm_kernel.engine.clock import NO_SIGNALS, Clock
from wasm_kernel.engine.compiler import Compiled, Compiler
from wasm_kernel.engine.flavours import UNCHECKED, Flavour
from wasm_kernel.engine.instance import Instance, InstanceOptions
from wasm_kernel.engine.streams import NAMES, OutputStreams, limit_of
from wasm_kernel.guests.python.guest import HostChannel
from wasm_kernel.linux.folders import Folder
from wasm_kernel.wasi_files.calls import WasiFiles
from wasm_kernel.wasi_files.changes import FileChanges
from wasm_kernel.wasi_files.file_history import NO_FILE_HISTORY, FileHistory
from wasm_kernel.wasi_files.operations import FileOperations
from wasm_kernel.wasi_files.preopens import METADATA_HIDDEN, Preopen, Preopens
from wasm_kernel.wasi_files.quota import Quota

MIB = 1024 * 1024
APP, READ_ONLY, OTHER, ROOT = 3, 4, 5, 6
RIGHTS = (1 << 29) - 1
FOLLOW = abi.LOOKUP_FOLLOW
_TEXT_AT, _ANSWER_AT, _BUFFER_AT, _HEAP_AT = 1024, 64, 65_536, 262_144

CALLS = {**abi.SHAPES, "random_get": "ii", "host_call": "iiii"}

SPECIAL = {
    "unreachable": "unreachable",
    "spin": "(loop $l (br $l))",
    "spin_until": "(loop $l (br_if $l (i32.eqz (i32.load (i32.const 128)))))",
    "recurse": "(call $recurse)",
    "out_of_bounds": "(drop (i32.load (i32.const -8)))",
    "divide": "(drop (i32.div_u (i32.const 1) (i32.const 0)))",
    "exit": "(call $proc_exit (i32.wrap_i64 (i64.load offset=8 (local.get 0))))",
    "grow": "(return (memory.grow (i32.wrap_i64 (i64.load offset=8 (local.get 0)))))",
    "nothing": "",
}


def text(pages: int = 8) -> str:
    """The guest's source."""
    imports, arms = [], []
    for name, shape in CALLS.items():
        module, spelled = (abi.WASI, name) if name != "host_call" else ("host", "call")
        params = " ".join("i32" if c == "i" else "i64" for c in shape)
        imports.append(
            f'(import "{module}" "{spelled}" (func ${name} (param {params}) (result i32)))'
        )
        args = [f"(i64.load offset={8 * (i + 1)} (local.get 0))" for i in range(len(shape))]
        loads = [a if c == "I" else f"(i32.wrap_i64 {a})" for a, c in zip(args, shape, strict=True)]
        arms.append(_arm(name, f"(return (call ${name} {' '.join(loads)}))"))
    arms += [_arm(name, body) for name, body in SPECIAL.items()]
    return f"""(module
      (import "{abi.WASI}" "proc_exit" (func $proc_exit (param i32)))
      {" ".join(imports)}
      (memory (export "memory") {pages})
      (global $heap (mut i32) (i32.const {_HEAP_AT}))
      (func $recurse (call $recurse))
      (func (export "host_alloc") (param i32) (result i32)
        (if (i32.gt_u (local.get 0) (i32.const 65536)) (then (return (i32.const 0))))
        (i32.const {_HEAP_AT}))
      (func (export "turn") (param i32 i32) (result i32)
        {" ".join(arms)}
        (i32.const 0)))"""


def _number(name: str) -> int:
    return [*CALLS, *SPECIAL].index(name)


def _arm(name: str, body: str) -> str:
    test = f"(i64.eq (i64.load (local.get 0)) (i64.const {_number(name)}))"
    return f"(if {test} (then {body}))"


@cache
def compiled(flavour: Flavour = UNCHECKED, pages: int = 8) -> Compiled:
    """The tiny guest, compiled once per run and flavour."""
    engine = Compiler(Cache(Path("unused"))).engine(flavour, 8 * MIB)
    return Compiled(engine, wasmtime.Module(engine, text(pages)), flavour)


@dataclass
class Entry:
    """One entry of a listing."""

    name: str
    next: int
    inode: int
    kind: int


def workspace_at(path: Path) -> Preopen:
    """A folder that a guest sees as its workspace."""
    folder = Folder.open(path)
    return Preopen(
        folder, "/app", writable=True, tracked=True, counted=True, hidden=METADATA_HIDDEN
    )


class Guest:
    """A tiny guest and everything around it. Close it."""

    def __init__(
        self,
        folder: Path,
        *,
        flavour: Flavour = UNCHECKED,
        mounts: tuple[Preopen, ...] = (),
        beneath: Preopen | None = None,
        handler: Callable[[bytes], bytes] = lambda data: data,
        open_files: int = 64,
        memory_bytes: int = 16 * MIB,
        workspace_bytes: int = 64 * MIB,
        workspace_files: int = 100_000,
        history: FileHistory = NO_FILE_HISTORY,
        clock_before: int = 0,
    ) -> None:
        self.app, self.clock, self.streams = folder / "app", Clock(), OutputStreams()
        for name in ("app", "ro", "other", "root"):
            (folder / name).mkdir(exist_ok=True)
        fixed = (
            workspace_at(self.app),
            Preopen(Folder.open(folder / "ro"), "/ro"),
            Preopen(Folder.open(folder / "other"), "/other", writable=True),
            Preopen(Folder.open(folder / "root"), "/"),
        )
        if beneath is not None:
            mounts = (*mounts, replace(fixed[0], guest="/notebook", beneath=beneath))
        self._preopens = Preopens(fixed, mounts)
        self.is_to_stop = False  # as if an interrupt had come
        self.changes = FileChanges(fixed[0])
        self.files = FileOperations(
            self._preopens,
            self.changes,
            Quota(self._preopens.counted, workspace_bytes, workspace_files),
            history,
            open_files=open_files,
            should_stop=lambda: self.is_to_stop or self.clock.should_stop(),
        )
        self.said: list[tuple[str, str]] = []
        self.limits = {name: limit_of(name, 1000) for name in NAMES.values()}
        self.streams.begin(lambda *said: self.said.append(said), self.limits)
        self.clock.arm(NO_SIGNALS, None, 1.0)
        hosts = (WasiFiles(self.files, self.streams), HostChannel(handler))
        options = InstanceOptions(memory_bytes, clock_before=clock_before)
        self.instance = Instance(compiled(flavour), hosts, options, self.clock, self.streams)
        self._text_at = _TEXT_AT

    def close(self) -> None:
        self.files.close()
        self.instance.close()
        for preopen in self._preopens.all:
            preopen.folder.close()

    @property
    def told(self) -> tuple[set[str], set[str], set[str]]:
        """The files that were created, modified and deleted."""
        found = self.changes.compare()
        return set(found.created), set(found.modified), set(found.deleted)

    def call(self, name: str, *args: int, fuel: int | None = None) -> int:
        """Makes one call of the guest; returns its error number or a special operation's answer."""
        source = struct.pack(f"<{len(args) + 1}Q", _number(name), *args)
        self._text_at = _TEXT_AT
        self.files.quota.begin_turn()
        with self.instance.turn(fuel):
            at = self.instance.call("host_alloc", len(source))
            self.instance.memory.write(at, source)
            return self.instance.call("turn", at, len(source))

    def text(self, words: str | bytes) -> tuple[int, int]:
        """Puts text into guest memory; returns address and length."""
        data = words.encode() if isinstance(words, str) else words
        at = self._text_at
        self._text_at += len(data)
        self.instance.memory.write(at, data)
        return at, len(data)

    def open(
        self,
        path: str | bytes,
        how: int = 0,
        *,
        fd: int = APP,
        follow: int = FOLLOW,
        rights: int | None = None,
    ) -> tuple[int, int]:
        """The error number and the descriptor."""
        if rights is None:
            rights = RIGHTS if fd != READ_ONLY else 0x4002
            rights = RIGHTS & ~0x42 if how & abi.O_DIRECTORY else rights
        at = (fd, follow, *self.text(path))
        errno = self.call("path_open", *at, how, rights, RIGHTS, 0, _ANSWER_AT)
        return errno, self.instance.memory.read_word(_ANSWER_AT)

    def make(self, path: str, data: bytes = b"") -> int:
        """Creates a file by the guest's calls; returns the error number."""
        errno, fd = self.open(path, abi.O_CREAT)
        if errno == abi.SUCCESS:
            if data:
                self.write(fd, data)
            self.call("fd_close", fd)
        return errno

    def write(self, fd: int, data: bytes) -> int:
        at, length = self.text(data)
        self.instance.memory.write(_ANSWER_AT, struct.pack("<II", at, length))
        return self.call("fd_write", fd, _ANSWER_AT, 1, _ANSWER_AT + 32)

    def stat(self, path: str | bytes, *, fd: int = APP, follow: int = FOLLOW) -> int:
        return self.call("path_filestat_get", fd, follow, *self.text(path), _ANSWER_AT)

    def rename(self, old: str, new: str, *, fd: int = APP, to: int = APP) -> int:
        return self.call("path_rename", fd, *self.text(old), to, *self.text(new))

    def link(self, old: str, new: str, *, fd: int = APP, to: int = APP, follow: int = 0) -> int:
        return self.call("path_link", fd, follow, *self.text(old), to, *self.text(new))

    def symlink(self, target: str, new: str, *, fd: int = APP) -> int:
        return self.call("path_symlink", *self.text(target), fd, *self.text(new))

    def one_path(self, name: str, path: str | bytes, *, fd: int = APP) -> int:
        """A call whose arguments are a descriptor and a path."""
        return self.call(name, fd, *self.text(path))

    def answer(self, length_at: int) -> bytes:
        """The content of the buffer after a call."""
        return self.instance.memory.read(_BUFFER_AT, self.instance.memory.read_word(length_at))

    def readlink(self, path: str) -> int:
        return self.call("path_readlink", APP, *self.text(path), _BUFFER_AT, 4096, _ANSWER_AT)

    def read_folder(self, fd: int, room: int, cookie: int = 0) -> tuple[int, bytes]:
        """One `fd_readdir`."""
        errno = self.call("fd_readdir", fd, _BUFFER_AT, room, cookie, _ANSWER_AT)
        used = self.instance.memory.read_word(_ANSWER_AT)
        return errno, self.instance.memory.read(_BUFFER_AT, used)

    def names(self, fd: int, room: int = 4096) -> list[str]:
        """A folder's names, read as a C library does: each call goes on after the last."""
        names: list[str] = []
        cookie = 0
        for _ in range(10_000):
            errno, data = self.read_folder(fd, room, cookie)
            assert errno == abi.SUCCESS
            entries = list(entries_of(data))
            names += [entry.name for entry in entries]
            if len(data) < room:
                return [name for name in names if name not in (".", "..")]
            assert entries, "a full buffer without one whole entry: no reader gets further"
            cookie = entries[-1].next
        raise AssertionError("the listing has no end")


def entries_of(data: bytes) -> list[Entry]:
    """The whole entries of a `fd_readdir` buffer."""
    found, at = [], 0
    while at + 24 <= len(data):
        following, inode, length, kind = struct.unpack_from("<QQIB", data, at)
        if at + 24 + length > len(data):
            break
        name = data[at + 24 : at + 24 + length].decode("utf-8", "surrogateescape")
        found.append(Entry(name, following, inode, kind))
        at += 24 + length
    return found
