"""Reading an archive of a session: checked as a stranger's, and put into folders of its own.

Everything is put there by descriptors and without following a link; links are made last. What comes
out is bounded: in bytes, members, and steps from folder to folder.
"""

from __future__ import annotations

import contextlib
import errno
import math
import mmap
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping
from typing import IO, BinaryIO, Self

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from wasm_kernel.errors import HistoryError
from wasm_kernel.folders.folders import STATE, SandboxFolders
from wasm_kernel.folders.locks import note_forked
from wasm_kernel.linux.folders import Folder, TooLong
from wasm_kernel.state.archive_out import (
    FILES,
    IMAGE,
    KIND,
    MANIFEST,
    MEMORY,
    PARTS,
    SCRATCH,
    STATES,
    STATES_MOST,
    STATES_MOST_BYTES,
    VERSION,
    ArchivedMemory,
    ArchiveReport,
    Manifest,
    identities_here,
)
from wasm_kernel.state.commits import CONTENTS
from wasm_kernel.state.image import BaseImage
from wasm_kernel.state.index import Commit, Origin, decode
from wasm_kernel.state.rebase import ImagePair, rebase_commit
from wasm_kernel.state.stored import write_state
from wasm_kernel.state.tar import (
    NAME_MOST,
    ArchiveError,
    Member,
    Room,
    UnpackedTree,
    members,
    unpack,
)
from wasm_kernel.state.tree import Tree
from wasm_kernel.wasi_files.preopens import is_hidden_name

_MANIFEST_MOST_BYTES = 2 * 1024 * 1024  # some thirty times as much of this process's memory
_MEMBERS_MOST = 1_000_000
_LINK_MOST = 4096
_LINKS_MOST_BYTES = 64 * 1024 * 1024  # they are kept in memory until the end
_IMPOSSIBLE = {errno.ENAMETOOLONG, errno.EINVAL, errno.EFBIG, errno.EOVERFLOW, errno.EILSEQ}
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_TIME_MOST = 1 << 40
_SHOWN = 200
_ARRIVING = "arriving"
_BEGINNINGS_MOST = 64  # each is completed with what is different in the images
_FIRST_VERSION = 1
_FIRST_FORMAT = (
    "The variables were not imported: an earlier version of the sandbox has saved them, in a "
    "format that this one does not read. The files are all there."
)
OTHER_VERSION = (
    "The variables were not imported: they were saved by another version of the sandbox, or of a "
    "package in it. The files are all there."
)
_ELSEWHERE = (
    "The variables were not imported: memory is laid out in another way on this machine. The files "
    "are all there."
)
_DAMAGED = "The variables were not imported: {why}. The files are all there."

LeadsOut = Callable[[int, str, Callable[[], None]], bool]
"""Whether a link leads out of a folder: its descriptor, and the link's path in it. Calls the
function at each step of the way; what that raises ends the walk."""


class _AnyManifest(Struct):
    """What every version of a manifest has."""

    session_id: str
    kind: str
    version: msgspec.Raw = msgspec.Raw(b"null")
    memory: msgspec.Raw = msgspec.Raw(b"null")


def read_manifest(data: bytes) -> tuple[Manifest, bool]:
    """Returns a manifest, and whether the archive has variables in a format that is not read.

    Raises:
        ArchiveError: it is none, or one of a later version.
    """
    try:
        raw = msgspec.json.decode(data, type=_AnyManifest)
        version = bytes(raw.version)
        if raw.kind != KIND:
            raise ArchiveError("This is no archive of a session.")
        if version == b"%d" % _FIRST_VERSION:
            skips = bytes(raw.memory) != b"null"
            return Manifest(raw.session_id, why_not=_FIRST_FORMAT if skips else ""), skips
        if version != b"%d" % VERSION:
            raise ArchiveError(
                f"The archive is of format version {version.decode('ascii', 'replace'):.20}, and "
                f"this is version {VERSION}. Import it with the wasm-kernel that made it, or a "
                "later one."
            )
        manifest = msgspec.json.decode(data, type=Manifest)
        return replace(manifest, why_not=""), False  # a stranger's sentence is told to nobody
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as problem:
        what = problem if isinstance(problem, msgspec.ValidationError) else "it can't be read"
        raise ArchiveError(f"The archive's manifest says what can't be: {what}.") from None


class ArchiveReader:
    """An archive of a session that is being read; close it. One thread's own.

    Attributes:
        manifest: What the archive says of itself.
    """

    def __init__(self, found: Iterator[Member], max_bytes: int) -> None:
        self._members = found
        self._room = Room(max_bytes)
        self._tree = UnpackedTree(self._room)
        self._links: list[tuple[str, str, str]] = []  # part, path in it, and target
        self._links_length = 0
        self._memory: _ArrivingMemory | None = None
        self._files = 0
        self.manifest, self._skips_memory = self._read_manifest()

    @classmethod
    @contextlib.contextmanager
    def opened(cls, source: BinaryIO, max_bytes: int) -> Iterator[Self]:
        """Opens an archive, and reads its manifest.

        Args:
            source: The archive; compressed by gzip or not.
            max_bytes: The most bytes that may come out of it, and that it may become on disk.

        Raises:
            ArchiveError: it is none, is damaged, or is too large.
        """
        with members(source, max_bytes) as found:
            reader = cls(found, max_bytes)
            try:
                yield reader
            finally:
                reader.close()

    def _read_manifest(self) -> tuple[Manifest, bool]:
        info, content = next(self._members, (None, None))
        if info is None:
            raise ArchiveError("This is no archive of a session: it is empty.")
        if info.name != MANIFEST or content is None or info.size > _MANIFEST_MOST_BYTES:
            raise ArchiveError("This is no archive of a session: it does not begin as one.")
        return read_manifest(content.read(info.size))

    def unpack(
        self,
        folders: SandboxFolders,
        image: BaseImage | None,
        library: frozenset[str],
        leads_out: LeadsOut,
    ) -> ArchiveReport:
        """Puts everything into a session's folders.

        Args:
            folders: The folders, which are empty.
            image: The base image of this machine; None if there is none that the variables fit.
            library: The guest's names of the folders whose files are the same on every machine.
            leads_out: Tells which links are taken away again.

        Raises:
            ArchiveError: a member is none that may be in it, or one is missing.
            OSError: one can't be written.
        """
        memory, note = self.manifest.memory, self.manifest.why_not
        if memory is None:
            note = note or "It holds no variables."
        else:
            note = _why_unfit(memory, image)
            if image is not None and not note:
                self._memory = _ArrivingMemory(folders, memory, image, library, self._room)
        for number, (info, content) in enumerate(self._members, start=1):
            if number > _MEMBERS_MOST:
                raise ArchiveError(f"The archive holds more than {_MEMBERS_MOST:,} files.")
            self._tree.add_steps()
            self._take(folders, info, content)
        left_out = self._make_links(folders, leads_out)
        if self._memory is not None:
            note = self._memory.finish()
        states = 0 if note or memory is None else len(memory.states)
        return ArchiveReport(self._files, states, left_out, note)

    def _take(
        self, folders: SandboxFolders, info: tarfile.TarInfo, content: IO[bytes] | None
    ) -> None:
        part, _, rest = info.name.partition("/")
        if part == MEMORY:
            if self.manifest.memory is None and not self._skips_memory:
                raise ArchiveError("The archive holds memory that its manifest does not name.")
            if self._memory is not None:
                self._memory.take(rest, info, content)
            return
        if part not in PARTS or not rest:
            raise ArchiveError(f"The archive holds something strange: {_shown(info.name)}.")
        if len(os.fsencode(rest)) > NAME_MOST:
            raise ArchiveError(f"The archive holds a name that is too long: {_shown(info.name)}.")
        names = tuple(rest.split("/"))
        if any(name in ("", ".", "..") or "\0" in name for name in names):
            raise ArchiveError(f"The archive holds a name that leads out: {_shown(info.name)}.")
        if part == FILES and is_hidden_name(names[0]):
            raise ArchiveError(f"The archive holds a reserved name: {_shown(info.name)}.")
        with _refused(info.name):
            self._place(part, _folder(folders, part), names, info, content)

    def _place(
        self,
        part: str,
        root: int,
        names: tuple[str, ...],
        info: tarfile.TarInfo,
        content: IO[bytes] | None,
    ) -> None:
        if info.isdir():
            os.fchmod(self._tree.enter(root, names), info.mode & 0o777 | 0o700)
        elif info.issym():
            self._note_link(part, names, info)
        elif content is not None:
            self._write(self._tree.enter(root, names[:-1]), names[-1], info, content)
            self._files += part == FILES
        else:
            raise ArchiveError(
                f"The archive holds a device, a pipe or a hard link: {_shown(info.name)}."
            )

    def _note_link(self, part: str, names: tuple[str, ...], info: tarfile.TarInfo) -> None:
        self._links.append((part, "/".join(names), info.linkname))
        self._links_length += len(info.name) + len(info.linkname)
        if not info.linkname:
            raise ArchiveError(f"The archive holds a link to nothing: {_shown(info.name)}.")
        if len(info.linkname) > _LINK_MOST or self._links_length > _LINKS_MOST_BYTES:
            raise ArchiveError("The archive holds links that are too long, or too many of them.")

    def _write(self, folder: int, name: str, info: tarfile.TarInfo, content: IO[bytes]) -> None:
        descriptor = os.open(name, _NEW, 0o600, dir_fd=folder)
        try:
            self._room.take(1)
            unpack(info, content, descriptor, self._room)
            os.fchmod(descriptor, info.mode & 0o777)
            if math.isfinite(info.mtime) and abs(info.mtime) < _TIME_MOST:
                os.utime(descriptor, (info.mtime, info.mtime))
        finally:
            os.close(descriptor)

    def _make_links(self, folders: SandboxFolders, leads_out: LeadsOut) -> dict[str, str]:
        """Makes the links, last of all; returns those that lead out and were taken away again."""
        for part, path, target in self._links:
            with _refused(f"{part}/{path}"):
                self._room.take(1)
                *names, name = path.split("/")
                os.symlink(target, name, dir_fd=self._tree.enter(_folder(folders, part), names))
        left_out: dict[str, str] = {}
        places = [(part, path, _folder(folders, part)) for part, path, _ in self._links]
        for part, path, root in [p for p in places if leads_out(p[2], p[1], self._tree.step)]:
            *names, name = path.split("/")
            os.unlink(name, dir_fd=self._tree.enter(root, names))
            left_out[f"{part}/{path}"] = "the link leads out of the session"
        return left_out

    def close(self) -> None:
        """Closes what is open. Safe to call twice."""
        self._tree.close()
        if self._memory is not None:
            self._memory.close()


def _folder(folders: SandboxFolders, part: str) -> int:
    if part == FILES:
        return folders.workspace.fd
    return folders.scratch.fd if part == SCRATCH else folders.packages.fd


def _shown(name: str) -> str:
    return repr(name[:_SHOWN])


@contextlib.contextmanager
def _refused(name: str) -> Iterator[None]:
    """Makes what the file system refuses of a member the archive's fault.

    Raises:
        ArchiveError: it refused it.
        OSError: it is something else.
    """
    try:
        yield
    except (FileExistsError, NotADirectoryError) as problem:
        raise ArchiveError(f"The archive holds a name twice: {_shown(name)}.") from problem
    except OSError as problem:
        if problem.errno not in _IMPOSSIBLE:
            raise
        raise ArchiveError(
            f"The archive holds what this file system can't have: {_shown(name)}."
        ) from problem


def _why_unfit(memory: ArchivedMemory, image: BaseImage | None) -> str:
    """Returns why memory does not fit this machine, as a sentence; empty if it does."""
    theirs = memory.known()
    if image is None or theirs is None or memory.artifact != image.name:
        return OTHER_VERSION
    return "" if image.record.extra == theirs.extra else _ELSEWHERE


class _ArrivingMemory:
    """The memory in an archive, which becomes a session's history; close it. One thread's own."""

    def __init__(
        self,
        folders: SandboxFolders,
        memory: ArchivedMemory,
        image: BaseImage,
        library: frozenset[str],
        room: Room,
    ) -> None:
        self._folders = folders
        self._memory = memory
        self._image = image
        self._library = library
        self._room = room
        self._private = folders.private
        self._folder = self._private.enter(_ARRIVING, make=True)
        self._expected = {IMAGE, STATES}
        self._commits: list[Commit] = []
        self._problem = ""

    def take(self, name: str, info: tarfile.TarInfo, content: IO[bytes] | None) -> None:
        """Puts a member of the archive aside.

        Raises:
            ArchiveError: it is none that belongs there.
            OSError: it can't be written.
        """
        if self._problem:
            return
        if content is None or name not in self._expected:
            raise ArchiveError("The archive holds something in its memory that it does not name.")
        self._expected.discard(name)
        self._room.take(info.size)  # holes, too: all of it is going to be read
        descriptor = self._folder.open_regular(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            unpack(info, content, descriptor)
        finally:
            os.close(descriptor)
        if name == STATES:
            try:
                self._read_states()
            except HistoryError as problem:
                self._problem = str(problem)

    def _read_states(self) -> None:
        try:
            data = self._folder.read(STATES, STATES_MOST_BYTES)
        except TooLong:
            raise HistoryError("the record of its states is damaged") from None
        for line in data.splitlines():
            commit = decode(line)
            if not isinstance(commit, Commit) or len(self._commits) == STATES_MOST:
                raise HistoryError("the record of its states is damaged")
            self._commits.append(commit)
        if tuple(commit.id for commit in self._commits) != self._memory.states:
            raise HistoryError("the record of its states is damaged")
        self._expected |= {commit.content for commit in self._commits} - {""}

    def finish(self) -> str:
        """Makes the session's history of what arrived; returns why that can't be, as a sentence.

        Raises:
            ArchiveError: a part of it is missing.
            OSError: it can't be written.
        """
        if self._expected and not self._problem:
            raise ArchiveError("The archive lacks a part of the memory that it names.")
        memory = self._memory
        identities = identities_here(self._folders, memory.open_files)
        with self._private.enter(STATE, make=True) as state:
            try:
                with state.enter(CONTENTS, make=True) as contents:
                    commits = self._rebased(contents, identities)
            except HistoryError as problem:
                with state.enter(CONTENTS) as contents:
                    _empty(contents)
                os.rmdir(CONTENTS, dir_fd=state.fd)
                return _DAMAGED.format(why=problem)
            finally:
                _empty(self._folder)
                os.rmdir(_ARRIVING, dir_fd=self._private.fd)
            origin = Origin(max(memory.states), reseed=True, files=identities)
            tree = Tree(commits, memory.at, memory.names, memory.undone, memory.after, origin)
            write_state(state, self._image.id, tree)
        note_forked(self._private)
        return ""

    def _rebased(self, contents: Folder, identities: Mapping[str, str]) -> dict[int, Commit]:
        if self._problem:
            raise HistoryError(self._problem)
        theirs_known = self._memory.known()
        rebased: dict[int, Commit] = {}
        beginnings = 0
        with (
            _mapped(self._folder.open_regular(IMAGE)) as theirs,
            _mapped(os.open(self._image.path, os.O_RDONLY | os.O_CLOEXEC)) as ours,
        ):
            if theirs_known is None or len(theirs) != theirs_known.size:
                raise HistoryError("its base image is not complete")
            open_files = {one: self._memory.open_files[one] for one in identities}
            images = ImagePair(theirs, ours, self._library, open_files)
            for commit in self._commits:
                if commit.parent and commit.parent not in rebased:
                    raise HistoryError("a state stands on one that is not there")
                rebased[commit.id] = rebase_commit(
                    commit, self._folder, contents, images, self._room.take
                )
                beginnings += not commit.parent
                if beginnings > _BEGINNINGS_MOST:
                    raise HistoryError("it begins too often")
        return rebased

    def close(self) -> None:
        """Closes its folder. Safe to call twice."""
        self._folder.close()


def _empty(folder: Folder) -> None:
    for name in folder.names():
        folder.remove(name)


@contextlib.contextmanager
def _mapped(descriptor: int) -> Iterator[memoryview]:
    """The bytes of a file, read as they are needed; the descriptor is closed afterwards."""
    with os.fdopen(descriptor, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise HistoryError("its base image is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as held, memoryview(held) as view:
            yield view
