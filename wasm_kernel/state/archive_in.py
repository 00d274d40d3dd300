"""Reading an untrusted archive of a session into the session's own folders.

Everything is written through descriptors and without following a link; links are made last. The
content is bounded: in bytes, members, and steps from folder to folder.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, BinaryIO, Self

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from wasm_kernel.errors import HistoryError
from wasm_kernel.folders.folders import EXCHANGES, STATE, SandboxFolders
from wasm_kernel.folders.locks import note_forked
from wasm_kernel.linux.folders import NEW, Folder, TooLong, closing_fd, is_plain_name
from wasm_kernel.linux.trees import remove_contents
from wasm_kernel.linux.walks import Lookup
from wasm_kernel.state.archive_out import (
    FILES,
    IMAGE,
    KIND,
    MANIFEST,
    MEMORY,
    PARTS,
    STATES,
    STATES_MOST_BYTES,
    VERSION,
    ArchivedMemory,
    Exported,
    Manifest,
    check_states,
    identities_here,
)
from wasm_kernel.state.commits import CONTENTS
from wasm_kernel.state.image import BaseImage
from wasm_kernel.state.index import Commit, ForkOrigin, IndexContents, decode
from wasm_kernel.state.rebase import ImagePair, rebase_commit
from wasm_kernel.state.stored import StoredState, write_state
from wasm_kernel.state.tar import NAME_MOST, ArchiveBudget, ArchiveError, Member, members, unpack
from wasm_kernel.state.tree import Tree
from wasm_kernel.wasi_files.preopens import is_hidden_name

_MANIFEST_MOST_BYTES = 2 * 1024 * 1024  # some thirty times as much of this process's memory
_MEMBERS_MOST = 1_000_000
_LINKS_MOST_BYTES = 64 * 1024 * 1024  # they are kept in memory until the end
_IMPOSSIBLE = {errno.ENAMETOOLONG, errno.EINVAL, errno.EFBIG, errno.EOVERFLOW, errno.EILSEQ}
_TIME_MOST = 1 << 40
_SHOWN = 200
_BELOW = "x"  # any name: only the folder above it is looked up
_ARRIVING = "arriving"
_BEGINNINGS_MOST = 64  # each is completed with the pages that differ between the images
OTHER_VERSION = (
    "The variables were not imported: they were saved by another version of the sandbox, or of a "
    "package in it. The files are all there."
)
_ELSEWHERE = (
    "The variables were not imported: memory is laid out in another way on this machine. The files "
    "are all there."
)

LeadsOut = Callable[[int, str, Callable[[], None]], bool]
"""Returns whether a link leads out of a folder. Takes the folder's descriptor, the link's path in
it, and a function that is called at each step; an exception of that function ends the walk."""


class _AnyManifest(Struct):
    """The fields that every version of a manifest has."""

    kind: str
    version: msgspec.Raw = msgspec.Raw(b"null")


def read_manifest(data: bytes) -> Manifest:
    """Reads a manifest; `ArchiveError` if it is not one or has another version."""
    try:
        raw = msgspec.json.decode(data, type=_AnyManifest)
        version = bytes(raw.version)
        if raw.kind != KIND:
            raise ArchiveError("This is not an archive of a session.")
        if version != b"%d" % VERSION:
            raise ArchiveError(
                f"The archive is of format version {version.decode('ascii', 'replace'):.20}, and "
                f"this is version {VERSION}. Import it with the wasm-kernel that made it."
            )
        return msgspec.json.decode(data, type=Manifest)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as problem:
        what = problem if isinstance(problem, msgspec.ValidationError) else "it can't be read"
        raise ArchiveError(f"The archive's manifest is impossible: {what}.") from None


class Imported(Exported):
    """The outcome of an import, with the id of the new session.

    Without `states`, its variables begin fresh, and the `note` says why. `left_out` are parts of
    the archive.
    """


class ArchiveReader:
    """Reads an archive of a session, beginning with its `manifest`; close it."""

    def __init__(self, found: Iterator[Member], max_bytes: int) -> None:
        self._members = found
        self._budget = ArchiveBudget(max_bytes)
        self._roots: dict[str, int] = {}  # the folders that the archive's parts are put into
        self._lookups: dict[str, Lookup] = {}
        self._links: list[tuple[str, str, str]] = []  # part, path in it, and target
        self._links_length = 0
        self._memory: _MemoryReader | None = None
        self._files = 0
        info, content = next(self._members, (None, None))
        if info is None:
            raise ArchiveError("This is not an archive of a session: it is empty.")
        if info.name != MANIFEST or content is None or info.size > _MANIFEST_MOST_BYTES:
            raise ArchiveError("This is not an archive of a session: it does not begin as one.")
        self.manifest = read_manifest(content.read(info.size))

    @classmethod
    @contextlib.contextmanager
    def open(cls, source: BinaryIO, max_bytes: int) -> Iterator[Self]:
        """Opens an archive and reads its manifest; `ArchiveError` if it is damaged or no archive.

        Its uncompressed content may have at most `max_bytes`, and take no more on disk.
        """
        with members(source, max_bytes) as found, contextlib.closing(cls(found, max_bytes)) as made:
            yield made

    def unpack(
        self,
        session_id: str,
        folders: SandboxFolders,
        image: BaseImage | None,
        library: frozenset[str],
        leads_out: LeadsOut,
    ) -> Imported:
        """Puts everything into a session's empty folders; `ArchiveError` if a member is refused.

        `image` is the base image of this machine; None if the variables fit no image here.
        `library` are the guest's names of folders whose files are the same everywhere. Links for
        which `leads_out` returns True are removed again.
        """
        memory, note = self.manifest.memory, "It holds no variables."
        if memory is not None:
            note = _why_unfit(memory, image)
            if image is not None and not note:
                self._memory = _MemoryReader(folders, memory, image, library, self._budget)
        with folders.private.enter(EXCHANGES, make=True) as exchanges:
            own = (folders.workspace.fd, folders.scratch.fd, folders.packages.fd, exchanges.fd)
            left_out = self._unpack_into(own, leads_out)
        if self._memory is not None:
            note = self._memory.finish()
        states = 0 if note or self._memory is None else len(self._memory.tree.commits)
        return Imported(session_id, self._files, states, left_out, note)

    def _unpack_into(self, own: Sequence[int], leads_out: LeadsOut) -> dict[str, str]:
        """Puts all members into the folders of `PARTS`; returns the removed links with reasons."""
        self._roots = dict(zip(PARTS, own, strict=True))
        for part, root in self._roots.items():
            self._lookups[part] = Lookup(root, self._budget.take_step, self._budget.take_bytes)
        for number, (info, content) in enumerate(self._members, start=1):
            if number > _MEMBERS_MOST:
                raise ArchiveError(f"The archive holds more than {_MEMBERS_MOST:,} files.")
            self._budget.add_member()
            self._unpack_member(info, content)
        return self._make_links(leads_out)

    def _unpack_member(self, info: tarfile.TarInfo, content: IO[bytes] | None) -> None:
        part, _, rest = info.name.partition("/")
        if part == MEMORY:
            if self.manifest.memory is None:
                raise ArchiveError("The archive holds memory that its manifest does not name.")
            if self._memory is not None:
                self._memory.put_aside(rest, info, content)
            return
        names, shown = tuple(rest.split("/")), _shown(info.name)
        if part not in PARTS or not rest:
            raise ArchiveError(f"The archive holds something strange: {shown}.")
        if len(os.fsencode(rest)) > NAME_MOST:
            raise ArchiveError(f"The archive holds a name that is too long: {shown}.")
        if not all(map(is_plain_name, names)):
            raise ArchiveError(f"The archive holds a name that leads out: {shown}.")
        if part == FILES and is_hidden_name(names[0]):
            raise ArchiveError(f"The archive holds a reserved name: {shown}.")
        with _refused(info.name):
            if info.isdir():
                folder, _ = self._place_of(part, f"{rest}/{_BELOW}")
                os.chmod(".", info.mode & 0o777 | 0o700, dir_fd=folder)
            elif info.issym():
                self._note_link(part, rest, info)
            elif content is not None:
                self._write(*self._place_of(part, rest), info, content)
                self._files += part == FILES
            else:
                raise ArchiveError(f"The archive holds a device, a pipe or a hard link: {shown}.")

    def _note_link(self, part: str, path: str, info: tarfile.TarInfo) -> None:
        self._links.append((part, path, info.linkname))
        self._links_length += len(info.name) + len(info.linkname)
        if not info.linkname:
            raise ArchiveError(f"The archive holds a link to nothing: {_shown(info.name)}.")
        if self._links_length > _LINKS_MOST_BYTES:
            raise ArchiveError("The archive holds links that are too long, or too many of them.")

    def _write(self, folder: int, name: str, info: tarfile.TarInfo, content: IO[bytes]) -> None:
        with closing_fd(os.open(name, NEW, 0o600, dir_fd=folder)) as descriptor:
            self._budget.take_bytes()
            unpack(info, content, descriptor, self._budget)
            os.fchmod(descriptor, info.mode & 0o777)
            if abs(info.mtime) < _TIME_MOST:  # not of NaN
                os.utime(descriptor, (info.mtime, info.mtime))

    def _make_links(self, leads_out: LeadsOut) -> dict[str, str]:
        """Makes the links; returns those that were removed again, as they lead out, and why."""
        for part, path, target in self._links:
            with _refused(f"{part}/{path}"):
                self._budget.take_bytes()
                folder, name = self._place_of(part, path)
                os.symlink(target, name, dir_fd=folder)
        roots, step = self._roots, self._budget.take_step
        out = [(part, path) for part, path, _ in self._links if leads_out(roots[part], path, step)]
        for part, path in out:
            folder, name = self._place_of(part, path)
            os.unlink(name, dir_fd=folder)
        return {f"{part}/{path}": "the link leads out of the session" for part, path in out}

    def _place_of(self, part: str, path: str) -> tuple[int, str]:
        return self._lookups[part].parent(path, make=True)

    def close(self) -> None:
        """Closes all descriptors. Safe to call twice."""
        for lookup in self._lookups.values():
            lookup.close()
        if self._memory is not None:
            self._memory.close()


def _shown(name: str) -> str:
    return repr(name[:_SHOWN])


@contextlib.contextmanager
def _refused(name: str) -> Iterator[None]:
    """Raises `ArchiveError` if the file system refuses a member for its name."""
    try:
        yield
    except (FileExistsError, NotADirectoryError) as problem:
        raise ArchiveError(f"The archive holds a name twice: {_shown(name)}.") from problem
    except OSError as problem:
        if problem.errno not in _IMPOSSIBLE:
            raise
        raise ArchiveError(
            f"This file system can't hold a file of the archive: {_shown(name)}."
        ) from problem


def _why_unfit(memory: ArchivedMemory, image: BaseImage | None) -> str:
    """Returns why memory does not fit this machine, as a sentence; empty if it does."""
    theirs = memory.known()
    if image is None or theirs is None:
        return OTHER_VERSION
    return "" if image.record.extra == theirs.extra else _ELSEWHERE


class _MemoryReader:
    """Makes the memory in an archive a session's history; close it. Used by one thread."""

    def __init__(
        self,
        folders: SandboxFolders,
        memory: ArchivedMemory,
        image: BaseImage,
        library: frozenset[str],
        budget: ArchiveBudget,
    ) -> None:
        self._folders = folders
        self._memory = memory
        self._image = image
        self._library = library
        self._budget = budget
        self._private = folders.private
        self._folder = self._private.enter(_ARRIVING, make=True)
        self._expected = {IMAGE, STATES}
        self.tree = Tree()
        self._problem = ""

    def put_aside(self, name: str, info: tarfile.TarInfo, content: IO[bytes] | None) -> None:
        """Puts a member of the archive aside; `ArchiveError` if it does not belong there."""
        if self._problem:
            return
        if content is None or name not in self._expected:
            raise ArchiveError("The archive holds something in its memory that it does not name.")
        self._expected.discard(name)
        self._budget.take_bytes(info.size)  # holes count, too: they are read later
        with closing_fd(
            self._folder.open_regular(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
        ) as descriptor:
            unpack(info, content, descriptor)
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
        entries = tuple(map(decode, data.splitlines()))
        usable = StoredState.of(IndexContents("", b"", entries, 1, 0)).usable(())
        if usable.is_damaged:
            raise HistoryError("the record of its states is damaged")
        check_states(usable.tree)
        self.tree = usable.tree
        self._expected |= {commit.content for commit in self.tree.commits.values()} - {""}

    def finish(self) -> str:
        """Writes the session's history; returns why it could not, as a sentence, or nothing."""
        if self._expected and not self._problem:
            raise ArchiveError("The archive lacks a part of the memory that it names.")
        identities = identities_here(self._folders, self._memory.open_files)
        with self._private.enter(STATE, make=True) as state:
            try:
                with state.enter(CONTENTS, make=True) as contents:
                    commits = self._rebased(contents, identities)
            except HistoryError as problem:
                remove_contents(state.fd)
                return f"The variables were not imported: {problem}. The files are all there."
            finally:
                remove_contents(self._folder.fd)
                os.rmdir(_ARRIVING, dir_fd=self._private.fd)
            origin = ForkOrigin(max(commits), reseed=True, files=identities)
            write_state(state, self._image.id, replace(self.tree, commits=commits, origin=origin))
        note_forked(self._private)
        return ""

    def _rebased(self, contents: Folder, identities: Mapping[str, str]) -> dict[int, Commit]:
        if self._problem:
            raise HistoryError(self._problem)
        theirs_known = self._memory.known()
        rebased: dict[int, Commit] = {}
        beginnings = 0
        with (
            _map_file(self._folder.open_regular(IMAGE)) as theirs,
            _map_file(os.open(self._image.path, os.O_RDONLY | os.O_CLOEXEC)) as ours,
        ):
            if theirs_known is None or len(theirs) != theirs_known.size:
                raise HistoryError("its base image is not complete")
            open_files = {one: self._memory.open_files[one] for one in identities}
            images = ImagePair(theirs, ours, self._library, open_files)
            for commit in self.tree.commits.values():
                rebased[commit.id] = rebase_commit(
                    commit, self._folder, contents, images, self._budget.take_bytes
                )
                beginnings += not commit.parent
                if beginnings > _BEGINNINGS_MOST:
                    raise HistoryError("it has too many beginnings")
        return rebased

    def close(self) -> None:
        self._folder.close()


@contextlib.contextmanager
def _map_file(descriptor: int) -> Iterator[memoryview]:
    """Maps a file's bytes into memory; closes the descriptor afterwards."""
    with os.fdopen(descriptor, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise HistoryError("its base image is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as held, memoryview(held) as view:
            yield view
