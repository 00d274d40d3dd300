"""A session that comes in an archive: checked as a stranger's, and there as a whole or not at all.

Everything is put into a folder that is no session's yet, by descriptors and without following a
link; links are made last. At the end that folder gets the session's name. Who was killed on the way
leaves a folder that the next removal sweeps away.
"""

from __future__ import annotations

import errno
import math
import os
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from wasm_kernel import events
from wasm_kernel.errors import WasmKernelError
from wasm_kernel.events import SandboxLogger, heard_by
from wasm_kernel.folders.folders import SandboxFolders
from wasm_kernel.linux.folders import making_folder, real_path
from wasm_kernel.sessions import ids, manifest
from wasm_kernel.sessions.archive import FILES, MEMORY, PARTS
from wasm_kernel.sessions.ground import Ground
from wasm_kernel.sessions.manifest import Manifest
from wasm_kernel.sessions.paths import WORKSPACE_ROOT, SessionPathError, printable, resolve
from wasm_kernel.sessions.revival import Progress, Revival, fitting
from wasm_kernel.sessions.staging import inscribe, settle, staged
from wasm_kernel.sessions.tarball import NAME_MOST, ArchiveError, Member, Room, members, unpack
from wasm_kernel.wasi_files.preopens import is_hidden_name

MOST_BYTES = 64 << 30
"""The most bytes that may come out of an archive by default."""

_MEMBERS_MOST = 1_000_000
_LINK_MOST = 4096
_LINKS_MOST_BYTES = 64 * 1024 * 1024  # they are kept in memory until the end
_IMPOSSIBLE = {errno.ENAMETOOLONG, errno.EINVAL, errno.EFBIG, errno.EOVERFLOW, errno.EILSEQ}
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_TIME_MOST = 1 << 40


class SessionExists(WasmKernelError, FileExistsError):
    """There is a session of that id already; nothing was imported."""


@dataclass(frozen=True)
class Imported:
    """What came out of an archive.

    Attributes:
        session_id: The id of the session that is there now.
        files: How many files it has.
        states: How many states of its memory; with none, its variables begin fresh.
        left_out: What of the archive is not in it, and why, by path.
        note: Why the variables are not there, as a sentence; empty where they are.
    """

    session_id: str
    files: int
    states: int
    left_out: dict[str, str]
    note: str


def import_session(
    source: Path | str,
    workspace_root: Path | str = WORKSPACE_ROOT,
    *,
    session_id: str | None = None,
    same_id: bool = False,
    max_bytes: int = MOST_BYTES,
    progress: Progress | None = None,
    logger: SandboxLogger | None = None,
    private_root: Path | str | None = None,
) -> Imported:
    """Make a session of an archive that `export_session` wrote, here or on another machine.

    Its variables come along where the sandbox here is of the same version; files that they had open
    are open again, where they are in the archive, and closed elsewhere. Whoever opens the session
    goes on with them. An archive may be a stranger's: what is in it is checked, and its code and
    memory stay in the sandbox.

    Args:
        source: The archive.
        workspace_root: The folder that holds the sessions' folders, made if it is not there.
        session_id: The id that the session gets; a new one by default.
        same_id: Let it keep the id that it had.
        max_bytes: The most bytes that may come out of the archive, and that it may become on disk
            meanwhile: states of the memory are written twice.
        progress: Hears plain sentences about what takes long.
        logger: Hears of it; silent by default.
        private_root: The folder that holds private folders; one of the user's by default.

    Raises:
        ArchiveError: it is no such archive, is damaged, or holds what it may not (a `ValueError`).
        SessionExists: there is a session of that id already (a `FileExistsError`).
        SessionIdError: `session_id` is none (a `ValueError`).
        OSError: the archive can't be read, or the session not be written. Nothing of it is left.
    """
    wanted, told = None if session_id is None else ids.checked(session_id), heard_by(logger)
    folder = real_path(workspace_root)
    with (
        making_folder(folder, 0o700),
        Path(source).open("rb") as file,
        staged(folder) as (root, made),
        members(file, max_bytes) as found,
        ExitStack() as held,
    ):

        def begin(was: str) -> SandboxFolders:
            return made.folders(wanted or (was if same_id else ids.new()), private_root)

        arrival = _Arrival(begin, Room(max_bytes))
        held.callback(arrival.close)
        arrival.take_all(found, progress or (lambda text: None))
        name = arrival.finish()
        _settle(root.fd, made.aside, name)
    result = replace(arrival.result, session_id=name)
    told.log_event(
        events.SESSION_IMPORTED, session_id=name, files=result.files, states=result.states
    )
    return result


def _settle(root: int, aside: str, name: str) -> None:
    """The folder becomes the session's.

    Raises:
        SessionExists: there is one.
    """
    if not settle(root, aside, name):
        raise SessionExists(
            f"There is a session {name} already. Nothing was imported. Import it under another id, "
            "or under a new one."
        )


@contextmanager
def _refused(name: str) -> Iterator[None]:
    """What the file system refuses of a member is the archive's fault.

    Raises:
        ArchiveError: it refused it.
        OSError: it is something else.
    """
    try:
        yield
    except (FileExistsError, NotADirectoryError) as problem:
        raise ArchiveError(f"The archive holds a name twice: {printable(name)}.") from problem
    except OSError as problem:
        if problem.errno not in _IMPOSSIBLE:
            raise
        raise ArchiveError(
            f"The archive holds what this file system can't have: {printable(name)}."
        ) from problem


class _Arrival:
    """A session on its way; one thread's own."""

    def __init__(self, begin: Callable[[str], SandboxFolders], room: Room) -> None:
        """An arrival; `begin` makes the folders, and is told what id the session had."""
        self._begin = begin
        self._room = room
        self._ground = Ground(room)
        self._links: list[tuple[str, str, str]] = []  # part, path in it, and target
        self._links_length = 0
        self._revival: Revival | None = None
        self._has_memory = False
        self.was = ""
        self.result = Imported("", 0, 0, {}, "")

    def take_all(self, found: Iterator[Member], progress: Progress) -> None:
        """Every member of the archive.

        Raises:
            ArchiveError: one of them is none that may be in it.
            OSError: one can't be written.
        """
        for number, (info, content) in enumerate(found):
            self._ground.another()
            if number == 0:
                self._take_manifest(info, content, progress)
            elif number > _MEMBERS_MOST:
                raise ArchiveError(f"The archive holds more than {_MEMBERS_MOST:,} files.")
            else:
                self._take(info, content)
        if not self.was:
            raise ArchiveError("This is no archive of a session: it is empty.")
        self._make_links()

    def _take_manifest(
        self, info: tarfile.TarInfo, content: IO[bytes] | None, progress: Progress
    ) -> None:
        if info.name != manifest.NAME or content is None or info.size > manifest.MOST_BYTES:
            raise ArchiveError("This is no archive of a session: it does not begin as one.")
        told = Manifest.load(content.read(info.size))
        self.was = told.session_id
        self._folders = self._begin(self.was)
        self._has_memory = told.skips_memory or told.memory is not None
        if told.memory is None:
            self.result = replace(self.result, note=told.why_not or "It holds no variables.")
            return
        fits = fitting(told.memory, progress)
        if isinstance(fits, str):
            self.result = replace(self.result, note=fits)
        else:
            self._revival = Revival(self._folders, fits, self._room)
            self.result = replace(self.result, states=len(told.memory.states))

    def _take(self, info: tarfile.TarInfo, content: IO[bytes] | None) -> None:
        part, _, rest = info.name.partition("/")
        if part == MEMORY:
            if not self._has_memory:
                raise ArchiveError("The archive holds memory that its manifest does not name.")
            if self._revival is not None:
                self._revival.take(rest, info, content)
            return
        if part not in PARTS or not rest:
            raise ArchiveError(f"The archive holds something strange: {printable(info.name)}.")
        if len(os.fsencode(rest)) > NAME_MOST:
            raise ArchiveError(
                f"The archive holds a name that is too long: {printable(info.name)}."
            )
        names = tuple(rest.split("/"))
        if not {"", ".", ".."}.isdisjoint(names) or "\0" in rest:
            raise ArchiveError(f"The archive holds a name that leads out: {printable(info.name)}.")
        if part == FILES and is_hidden_name(names[0]):
            raise ArchiveError(f"The archive holds a reserved name: {printable(info.name)}.")
        self._place_entry(part, names, info, content)

    def _place_entry(
        self, part: str, names: tuple[str, ...], info: tarfile.TarInfo, content: IO[bytes] | None
    ) -> None:
        with _refused(info.name):
            if info.isdir():
                folder = self._ground.enter(self._folder(part), names)
                os.fchmod(folder, info.mode & 0o777 | 0o700)
            elif info.issym():
                self._note_link(part, names, info)
            elif content is not None:
                self._write(part, names, info, content)
                self.result = replace(self.result, files=self.result.files + (part == FILES))
            else:
                raise ArchiveError(
                    f"The archive holds a device, a pipe or a hard link: {printable(info.name)}."
                )

    def _note_link(self, part: str, names: tuple[str, ...], info: tarfile.TarInfo) -> None:
        self._links.append((part, "/".join(names), info.linkname))
        self._links_length += len(info.name) + len(info.linkname)
        if not info.linkname:
            raise ArchiveError(f"The archive holds a link to nothing: {printable(info.name)}.")
        if len(info.linkname) > _LINK_MOST or self._links_length > _LINKS_MOST_BYTES:
            raise ArchiveError("The archive holds links that are too long, or too many of them.")

    def _write(
        self, part: str, names: tuple[str, ...], info: tarfile.TarInfo, content: IO[bytes]
    ) -> None:
        folder = self._ground.enter(self._folder(part), names[:-1])
        descriptor = os.open(names[-1], _NEW, 0o600, dir_fd=folder)
        try:
            self._room.take(1)
            unpack(info, content, descriptor, self._room)
            os.fchmod(descriptor, info.mode & 0o777)
            if math.isfinite(info.mtime) and abs(info.mtime) < _TIME_MOST:
                os.utime(descriptor, (info.mtime, info.mtime))
        finally:
            os.close(descriptor)

    def _make_links(self) -> None:
        """The links, last of all; those that lead out of the session are taken away again."""
        for part, path, target in self._links:
            with _refused(f"{part}/{path}"):
                self._room.take(1)
                *names, name = path.split("/")
                folder = self._ground.enter(self._folder(part), names)
                os.symlink(target, name, dir_fd=folder)
        for part, path in [(p, path) for p, path, _ in self._links if self._leads_out(p, path)]:
            *names, name = path.split("/")
            os.unlink(name, dir_fd=self._ground.enter(self._folder(part), names))
            self.result.left_out[f"{part}/{path}"] = "the link leads out of the session"

    def _leads_out(self, part: str, path: str) -> bool:
        try:
            resolve(self._folder(part), path.split("/"), path, each=self._ground.step)
        except (SessionPathError, OSError):
            return True
        return False

    def _folder(self, part: str) -> int:
        return self._folders.seen_at(PARTS[part]).fd

    def close(self) -> None:
        """Closes what is open."""
        self._ground.close()
        if self._revival is not None:
            self._revival.close()

    def finish(self) -> str:
        """The session is whole: its memory becomes its history, and it gets its metadata.

        Returns:
            Its id.

        Raises:
            ArchiveError: a part of its memory is missing.
            OSError: it can't be written.
        """
        if self._revival is not None:
            note = self._revival.finish()
            self.result = replace(self.result, note=note, states=0 if note else self.result.states)
        name = self._folders.path.name
        inscribe(self._folders.workspace.fd, name)
        return name
