"""Writing a session's files and variables into one archive, so that it can go on elsewhere.

The archive is a tar file that any tar can read: `manifest.json`, `files/` as in `/app`, `tmp/`,
`packages/`, `exchanges/` with recorded requests and, if there are variables, `memory/` with the
base image that they lie over, the records of the session's index, and the pages of its states.
`archive_in.py` reads it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from wasm_kernel.errors import HistoryError, ImageError, WasmKernelError, describe
from wasm_kernel.folders.folders import EXCHANGES, STATE, SandboxFolders
from wasm_kernel.folders.locks import Holder
from wasm_kernel.linux import walks
from wasm_kernel.linux.folders import READ, Folder, closing_fd
from wasm_kernel.state.commits import CONTENTS, ContentFile, missing_in
from wasm_kernel.state.fork import identity_in
from wasm_kernel.state.image import BaseImage, ImageRecord
from wasm_kernel.state.index import ID_MOST, Commit, ForkOrigin
from wasm_kernel.state.index import NAME as INDEX
from wasm_kernel.state.stored import OTHER_IMAGE, StoredState
from wasm_kernel.state.tar import NAME_MOST, ArchiveWriter
from wasm_kernel.state.tree import Tree, is_name
from wasm_kernel.wasi_files.file_history import is_unlinked_name
from wasm_kernel.wasi_files.preopens import is_hidden_name

MANIFEST, KIND, VERSION = "manifest.json", "wasm-kernel session", 3
FILES, SCRATCH, PACKAGES = "files", "tmp", "packages"
PARTS = (FILES, SCRATCH, PACKAGES, EXCHANGES)
"""The archive's folders for the session's own files."""

MEMORY, IMAGE, STATES = "memory", "image", "states.jsonl"
"""The folder of the variables, its base image, and its file of the index's records, one a line."""

STATES_MOST = 50_000
STATES_MOST_BYTES = 16 * 1024 * 1024  # it takes some ten times as much of this process's memory
_OPEN_FILES_MOST = 10_000
_OPEN_FILES_MOST_BYTES = 512 * 1024
_SHOWN = 200
_NO_IMAGE = (
    "The variables are not in the archive: the base image that they were saved over is not in this "
    "machine's cache any more."
)
_NO_VARIABLES = "The session has no variables that were kept."
_PARTLY = (
    "A part of the session's saved states is damaged or missing, and not in the archive: it may "
    "have the variables as they were after an earlier cell."
)
_TOO_MANY_PIECES = (
    "The variables are not in the archive: their memory is in too many pieces. Restart the kernel "
    "or export the files alone."
)

OpenPaths = Annotated[dict[str, tuple[str, str]], Meta(max_length=_OPEN_FILES_MOST)]
"""By identity, each file that states had open: the guest's folder, and the path in it."""


class ArchivedMemory(Struct, frozen=True):
    """The manifest's part about the variables.

    Attributes:
        artifact: The name of the guest, the agent and all else that memory depends on.
        facts: The record of the base image that the states were saved over.
        open_files: The places of the files that states had open.
    """

    artifact: str
    facts: str
    open_files: OpenPaths = field(default_factory=dict)

    def known(self) -> ImageRecord | None:
        """Returns the record of the image; None if `facts` can't be read."""
        try:
            return ImageRecord.load(self.facts)
        except ImageError:
            return None


class Manifest(Struct, frozen=True):
    """The first member, which describes the others; `kind` and `version` are the format's."""

    session_id: str
    memory: ArchivedMemory | None = None
    kind: str = KIND
    version: int = VERSION


class NoVariables(WasmKernelError):
    """No variables go into the archive; `str()` says why, as a sentence."""


class Variables(Struct, frozen=True):
    """The variables of a session that are going to be archived, with the manifest's part.

    `records` are those of the index, `contents` names the files with the pages of the `states`.
    `note` is a sentence about missing states; empty if none is missing.
    """

    memory: ArchivedMemory
    image: Path
    records: bytes
    states: int
    contents: frozenset[str]
    note: str


def variables_of(folders: SandboxFolders | None, images: Sequence[BaseImage]) -> Variables:
    """Returns a session's variables for an archive, or raises `NoVariables`.

    The folders must not be in use. `images` are this machine's base images of all languages.
    """
    if folders is None or Holder.of(folders.private).anew:
        raise NoVariables(_NO_VARIABLES)
    try:
        with folders.private.enter(STATE) as state:
            if state.status(INDEX) is None:
                raise NoVariables(_NO_VARIABLES)
            if not images:
                raise NoVariables(_NO_IMAGE)
            return _variables(folders, state, images)
    except FileNotFoundError:
        raise NoVariables(_NO_VARIABLES) from None
    except (HistoryError, OSError) as problem:
        words = f"The variables are not in the archive: {describe(problem)}."
        raise NoVariables(words) from problem


def _variables(folders: SandboxFolders, state: Folder, images: Sequence[BaseImage]) -> Variables:
    stored = StoredState.read(state)
    image = next((one for one in images if one.id == stored.image), None)
    if image is None:
        raise HistoryError(OTHER_IMAGE)
    usable = stored.usable(_unreadable(state, stored.tree.commits.values()))
    commits = usable.tree.commits.values()
    if not commits:
        raise NoVariables(_NO_VARIABLES)
    open_files = _open_files(folders, commits, usable.tree.origin)
    head = usable.tree.head or max(usable.tree.commits)
    names = {name: one for name, one in usable.tree.names.items() if is_name(name)}
    tree = replace(usable.tree, head=head, names=names, origin=ForkOrigin())
    check_states(tree)
    records = b"\n".join(map(msgspec.json.encode, tree.records()))
    if len(records) > STATES_MOST_BYTES:
        raise NoVariables(_TOO_MANY_PIECES)
    return Variables(
        ArchivedMemory(image.name, image.record.dump(), open_files),
        image.path,
        records,
        len(commits),
        frozenset(commit.content for commit in commits) - {""},
        "" if usable.is_certain and not usable.is_damaged else _PARTLY,
    )


def check_states(tree: Tree) -> None:
    """Raises `HistoryError` if an archive can't have these states."""
    if tree.last >= ID_MOST:
        raise HistoryError("the number of a state is out of bounds")
    if not 0 < len(tree.commits) <= STATES_MOST:
        raise HistoryError(f"there are more than {STATES_MOST:,} states, or none")
    if not all(map(is_name, tree.names)):
        raise HistoryError("a name of a state is not valid")


def _unreadable(state: Folder, commits: Collection[Commit]) -> set[int]:
    """Returns the states whose pages are missing or damaged."""
    with state.enter(CONTENTS) as contents:
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


def _open_files(
    folders: SandboxFolders, commits: Iterable[Commit], origin: ForkOrigin
) -> dict[str, tuple[str, str]]:
    """Returns the files that were open at any commit and are still where they were.

    A state names a file by its identity, which differs on every disk. So the archive notes the
    path of each of these files.
    """
    paths: dict[str, tuple[str, str]] = {}
    length = 0
    for commit in commits:
        for written, known in zip(commit.files, origin.files_of(commit), strict=True):
            if not written.identity or known.path is None or written.identity in paths:
                continue
            if is_unlinked_name(known.path):
                continue  # it is not in the archive
            length += len(known.path)
            if len(paths) == _OPEN_FILES_MOST or length > _OPEN_FILES_MOST_BYTES:
                return paths
            there = identity_in(folders, known.guest, known.path)
            if there and there == known.identity:
                paths[written.identity] = (known.guest, known.path)
    return paths


def identities_here(
    folders: SandboxFolders, open_files: Mapping[str, tuple[str, str]]
) -> dict[str, str]:
    """Returns the identities in this session, by those in the archive, of files that exist here."""
    here = {one: identity_in(folders, *where) for one, where in open_files.items()}
    return {one: identity for one, identity in here.items() if identity}


@dataclass(frozen=True)
class Exported:
    """The outcome of an export.

    Attributes:
        session_id: The session.
        files: How many files are in it.
        states: How many states of the memory.
        left_out: Why files are not in it, by path.
        note: Why the variables or a part of their states are not in it, as a sentence; empty if all
            are in it.
    """

    session_id: str
    files: int
    states: int
    left_out: dict[str, str]
    note: str


def write_archive(
    target: BinaryIO,
    session_id: str,
    workspace: Folder,
    folders: SandboxFolders | None,
    variables: Variables | None,
    *,
    why_not: str = "",
) -> Exported:
    """Writes a session into a file; without variables, `why_not` is a sentence."""
    memory, note = None, why_not
    if variables is not None:
        memory, note = variables.memory, variables.note
    writer = ArchiveWriter(target)
    manifest = msgspec.json.encode(Manifest(session_id, memory))
    writer.text(MANIFEST, msgspec.json.format(manifest, indent=1))
    files = _ArchivedFiles(writer)
    files.add(FILES, workspace, is_hidden_name)
    if folders is not None:
        files.add(SCRATCH, folders.scratch)
        files.add(PACKAGES, folders.packages)
        with suppress(FileNotFoundError), folders.private.enter(EXCHANGES) as exchanges:
            files.add(EXCHANGES, exchanges)
    if variables is not None and folders is not None:
        _add_memory(writer, folders.private, variables)
    writer.close()
    states = variables.states if variables is not None else 0
    return Exported(session_id, files.count, states, files.left_out, note)


class _ArchivedFiles:
    """Adds files to an archive, and counts them."""

    def __init__(self, writer: ArchiveWriter) -> None:
        self._writer = writer
        self.count = 0
        self.left_out: dict[str, str] = {}

    def add(
        self, part: str, folder: Folder, hidden: Callable[[str], bool] = lambda name: False
    ) -> None:
        """Adds everything in a folder, except hidden names at its top."""
        for entry in walks.entries(folder.fd):
            if hidden(entry.top):
                continue
            if entry.is_deep:
                self.left_out[f"{part}/…"] = f"it lies in more than {walks.DEEPEST:,} folders"
                continue
            path = "/".join((part, *entry.path, entry.name))
            if len(os.fsencode(path)) > NAME_MOST:
                self.left_out[f"{path[:_SHOWN]}…"] = "its path is too long"
            else:
                self._entry(path, entry.folder, entry.name)

    def _entry(self, path: str, folder: int, name: str) -> None:
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                self._writer.folder(path, status)
            elif stat.S_ISLNK(status.st_mode):
                self._writer.link(path, os.readlink(name, dir_fd=folder), status)
            elif stat.S_ISREG(status.st_mode):
                self._file(path, folder, name)
            else:
                self.left_out[path] = "it is neither a file nor a folder"
        except FileNotFoundError:
            return  # it was removed during the export
        except PermissionError as problem:
            self.left_out[path] = problem.strerror or "it can't be read"
        except OSError as problem:
            if problem.errno not in {errno.ELOOP, errno.ENOTDIR, errno.EINVAL}:
                raise
            self.left_out[path] = "something else has taken its place"

    def _file(self, path: str, folder: int, name: str) -> None:
        with closing_fd(os.open(name, READ, dir_fd=folder)) as descriptor:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                self.left_out[path] = "it is not a file any more"
                return
            self._writer.file(path, descriptor)
            self.count += path.startswith(f"{FILES}/")


def _add_memory(writer: ArchiveWriter, private: Folder, variables: Variables) -> None:
    """Adds the base image, the records of the states, and their pages."""

    def add(name: str, descriptor: int) -> None:
        with closing_fd(descriptor):
            writer.file(f"{MEMORY}/{name}", descriptor)

    add(IMAGE, os.open(variables.image, READ))
    writer.text(f"{MEMORY}/{STATES}", variables.records)
    with private.enter(STATE, CONTENTS) as contents:
        for name in sorted(variables.contents):
            add(name, contents.open_regular(name))
