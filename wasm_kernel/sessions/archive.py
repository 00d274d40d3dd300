"""One file that holds a session: its files and its variables, to go on with them elsewhere.

The archive is a tar file that any tar can read: `manifest.json`, `files/` as in `/app`, `tmp/`,
`packages/` and, where there are variables, `memory/` with the base image that they lie over and
the states of the history. `sessions/arrival.py` reads it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from wasm_kernel import events
from wasm_kernel.errors import HistoryError, SessionInUse
from wasm_kernel.events import SandboxLogger, heard_by
from wasm_kernel.folders.folders import APP, STATE, TMP, SandboxFolders
from wasm_kernel.folders.locks import begins_anew, exclusively
from wasm_kernel.folders.places import PrivateFolders
from wasm_kernel.guests.python.files import PACKAGES_GUEST
from wasm_kernel.linux import walks
from wasm_kernel.linux.folders import Folder
from wasm_kernel.sessions import manifest
from wasm_kernel.sessions.files import folder_of
from wasm_kernel.sessions.handles import standing
from wasm_kernel.sessions.manifest import STATES, STATES_MOST_BYTES, Manifest, Memory
from wasm_kernel.sessions.paths import WORKSPACE_ROOT
from wasm_kernel.sessions.tarball import NAME_MOST, ArchiveError, Packing, open_target
from wasm_kernel.state import told as texts
from wasm_kernel.state.commits import CONTENTS, ContentFile, missing_in
from wasm_kernel.state.index import NAME as INDEX
from wasm_kernel.state.index import Commit
from wasm_kernel.state.stored import OTHER_IMAGE, StoredState
from wasm_kernel.wasi_files.preopens import is_hidden_name

FILES, MEMORY, IMAGE = "files", "memory", "memory/image"
PARTS = {FILES: APP, "tmp": TMP, "packages": PACKAGES_GUEST}
"""The archive's folders, and the guest's."""

_SHOWN = 200
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_IN_USE = (
    "This session is open, in this process or in another one, and its variables may change at any "
    "moment. Nothing was exported. Shut its kernel down or close its sandbox, or export the files "
    "alone."
)
_NO_IMAGE = (
    "The variables are not in the archive: the base image that they were saved over is not in this "
    "machine's cache any more."
)
_NO_VARIABLES = "The session has no variables that were kept."
_TOO_MANY_PIECES = (
    "The variables are not in the archive: their memory is in too many pieces. Restart the kernel "
    "or export the files alone."
)
_FILES_ONLY = "The archive holds the files alone, as it was asked for."


@dataclass(frozen=True)
class Exported:
    """What an archive was made of.

    Attributes:
        session_id: The session.
        files: How many files are in it.
        states: How many states of the memory.
        left_out: What is not in it, and why, by path.
        note: Why there are no variables in it, as a sentence; empty where there are.
    """

    session_id: str
    files: int
    states: int
    left_out: dict[str, str]
    note: str


def export_session(
    session_id: str,
    target: Path | str,
    workspace_root: Path | str = WORKSPACE_ROOT,
    *,
    files_only: bool = False,
    logger: SandboxLogger | None = None,
    private_root: Path | str | None = None,
) -> Exported:
    """Write a session into one file, which `import_session` brings back to life elsewhere.

    The session stays as it is. Links are kept as links, holes as holes; what is neither file,
    folder nor link is left out, and so are earlier versions of files.

    Args:
        session_id: The session. A link to one in the same root is that session.
        target: The archive, which must not be there yet; a `.tar.gz`.
        workspace_root: The folder that holds the sessions' folders.
        files_only: Leave the variables out; the session may then be in use.
        logger: Hears of it; silent by default.
        private_root: The folder that holds private folders; one of the user's by default.

    Raises:
        SessionIdError: `session_id` is none (a `ValueError`).
        FileNotFoundError: there is no such session.
        FileExistsError: `target` is there already.
        ArchiveError: `target` lies in the session itself (a `ValueError`).
        SessionInUse: somebody has the session open.
        OSError: the archive can't be written; nothing of it is left.
    """
    workspace, path = folder_of(session_id, workspace_root), Path(target).absolute()
    told = heard_by(logger)
    if path.resolve().is_relative_to(workspace):
        raise ArchiveError("The archive can't lie in the session that it is made of.")
    if not path.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "There is no such folder", str(Path(target).parent))
    with ExitStack() as held:
        folder = held.enter_context(walks.opened_folder(workspace))
        folders = _folders(held, workspace, folder, private_root)
        found: _Variables | str = _FILES_ONLY
        history = None if files_only else _history_folder(held, folders)
        if not files_only:
            found = _variables(folders, history)
        memory = None if isinstance(found, str) else found.memory
        note = found if isinstance(found, str) else ""
        with open_target(path) as file:
            try:
                packing = Packing(file)
                packed = _Packed(packing)
                packing.text(manifest.NAME, Manifest(workspace.name, memory, note).dump())
                packed.parts(folder, folders)
                if not isinstance(found, str) and history is not None:
                    packed.memory(history, found)
                packing.close()
            except BaseException:
                with suppress(OSError):
                    path.unlink()
                raise
    states = len(memory.states) if memory else 0
    told.log_event(
        events.SESSION_EXPORTED, session_id=workspace.name, files=packed.files, states=states
    )
    return Exported(workspace.name, packed.files, states, packed.left_out, note)


def _folders(
    held: ExitStack, workspace: Path, folder: int, private_root: Path | str | None
) -> SandboxFolders | None:
    """The session's folders; None if it has no private one."""
    own = Folder(folder)
    found = PrivateFolders(workspace.parent, private_root).find(workspace.name, own)
    if found is None:
        return None
    folders = SandboxFolders(workspace, workspace, own.enter(), found, private_root)
    held.callback(folders.close)
    return folders


def _be_alone(held: ExitStack, private: Folder) -> None:
    try:
        held.enter_context(exclusively(private))
    except SessionInUse:
        raise SessionInUse(_IN_USE) from None


def _history_folder(held: ExitStack, folders: SandboxFolders | None) -> Folder | None:
    """The folder of a session's history, open as long as `held` is; None if nobody is to use it.

    Nobody changes it meanwhile.
    """
    if folders is None:
        return None
    _be_alone(held, folders.private)
    if begins_anew(folders.private):
        return None
    try:
        return held.enter_context(folders.private.enter(STATE))
    except OSError:
        return None


@dataclass(frozen=True)
class _Variables:
    """A history that is going to be exported.

    Attributes:
        memory: What the manifest says of it.
        image: The base image that it lies over.
        commits: Its states, oldest first.
    """

    memory: Memory
    image: Path
    commits: tuple[Commit, ...]

    def dump(self) -> bytes:
        """The records of the states, one a line."""
        return b"\n".join(map(msgspec.json.encode, self.commits))


def _variables(folders: SandboxFolders | None, folder: Folder | None) -> _Variables | str:
    """The history that can be exported, or why there is none."""
    from wasm_kernel.guests.python.language import shared_language

    if folders is None or folder is None or folder.status(INDEX) is None:
        return _NO_VARIABLES
    image = shared_language().image_at_hand()
    if image is None:
        return _NO_IMAGE
    try:
        stored = StoredState.read(folder)
        if stored.image != image.id:
            raise HistoryError(OTHER_IMAGE)
        usable = stored.usable(_unreadable(folder, stored.commits.values()))
    except (HistoryError, OSError) as problem:
        return f"The variables are not in the archive: {texts.why(problem)}."
    if not usable.commits:
        return _NO_VARIABLES
    commits = tuple(commit for _, commit in sorted(usable.commits.items()))
    memory = Memory(
        image.name,
        image.id,
        image.record.dump(),
        tuple(usable.commits),
        usable.position.at,
        usable.position.after,
        usable.position.names,
        usable.position.undone,
        standing(folders, commits, stored.origin),
    )
    found = _Variables(memory, image.path, commits)
    return found if len(found.dump()) <= STATES_MOST_BYTES else _TOO_MANY_PIECES


def _unreadable(folder: Folder, commits: Collection[Commit]) -> set[int]:
    """The states whose pages are not there, or not as they were written."""
    with folder.enter(CONTENTS) as contents:
        gone = missing_in(contents, commits)
        for commit in commits:
            if commit.id in gone or not commit.content:
                continue
            try:
                with ContentFile(contents, commit) as file:
                    file.verify()
            except (OSError, HistoryError):
                gone.add(commit.id)
    return gone


class _Packed:
    """What of a session is in an archive by now."""

    def __init__(self, packing: Packing) -> None:
        self._packing = packing
        self.files = 0
        self.left_out: dict[str, str] = {}

    def parts(self, workspace: int, folders: SandboxFolders | None) -> None:
        """The files of the session, of its `/tmp`, and its packages."""
        self._part(FILES, workspace, is_hidden_name)
        for name, guest in PARTS.items():
            if folders is not None and guest != APP:
                self._part(name, folders.seen_at(guest).fd, lambda name: False)

    def _part(self, part: str, folder: int, hidden: Callable[[str], bool]) -> None:
        for found in walks.entries(folder):
            if hidden(found.top):
                continue
            if found.is_deep:
                self.left_out[f"{part}/…"] = f"it lies in more than {walks.DEEPEST:,} folders"
                continue
            path = "/".join((part, *found.path, found.name))
            if len(os.fsencode(path)) > NAME_MOST:
                self.left_out[f"{path[:_SHOWN]}…"] = "its path is too long"
            else:
                self._entry(path, found.folder, found.name)

    def _entry(self, path: str, folder: int, name: str) -> None:
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                self._packing.folder(path, status)
            elif stat.S_ISLNK(status.st_mode):
                self._packing.link(path, os.readlink(name, dir_fd=folder), status)
            elif stat.S_ISREG(status.st_mode):
                self._file(path, folder, name)
            else:
                self.left_out[path] = "it is neither a file nor a folder"
        except FileNotFoundError:
            return  # somebody removed it meanwhile
        except PermissionError as problem:
            self.left_out[path] = problem.strerror or "it can't be read"
        except OSError as problem:
            if problem.errno not in {errno.ELOOP, errno.ENOTDIR, errno.EINVAL}:
                raise
            self.left_out[path] = "something else took its place meanwhile"

    def _file(self, path: str, folder: int, name: str) -> None:
        descriptor = os.open(name, _READ, dir_fd=folder)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                self.left_out[path] = "it is no file any more"
                return
            self._packing.file(path, descriptor)
            self.files += path.startswith(f"{FILES}/")
        finally:
            os.close(descriptor)

    def memory(self, state: Folder, found: _Variables) -> None:
        """The base image, the records of the states, and what they hold."""
        self._opened(IMAGE, os.open(found.image, _READ))
        self._packing.text(f"{MEMORY}/{STATES}", found.dump())
        with state.enter(CONTENTS) as contents:
            for name in sorted({commit.content for commit in found.commits} - {""}):
                self._opened(f"{MEMORY}/{name}", contents.open_regular(name))

    def _opened(self, name: str, descriptor: int) -> None:
        try:
            self._packing.file(name, descriptor)
        finally:
            os.close(descriptor)
