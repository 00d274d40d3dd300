"""The memory in an archive: whether it fits this machine, and becoming a session's history."""

from __future__ import annotations

import mmap
import os
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from wasm_kernel.errors import HistoryError
from wasm_kernel.folders.folders import STATE, SandboxFolders
from wasm_kernel.folders.locks import note_forked
from wasm_kernel.guests.python.files import DATA_GUEST, LIB_GUEST
from wasm_kernel.linux.folders import Folder, TooLong
from wasm_kernel.linux.task import Reporting
from wasm_kernel.sessions.handles import Handles, arrived
from wasm_kernel.sessions.manifest import STATES, STATES_MOST, STATES_MOST_BYTES, Memory
from wasm_kernel.sessions.tarball import ArchiveError, Room, unpack
from wasm_kernel.state.commits import CONTENTS
from wasm_kernel.state.image import BaseImage, ImageRecord
from wasm_kernel.state.index import Commit, Origin, decode
from wasm_kernel.state.stored import Position, records_of, write_state
from wasm_kernel.state.transplant import Soil, transplant

Progress = Callable[[str], None]
_ARRIVING = "arriving"
_IMAGE = "image"
_BEGINNINGS_MOST = 64  # each is completed with what is different in the images
_OTHER = (
    "The variables were not imported: they were saved by another version of the sandbox, or of a "
    "package in it. The files are all there."
)
_ELSEWHERE = (
    "The variables were not imported: memory is laid out in another way on this machine. The files "
    "are all there."
)
_DAMAGED = "The variables were not imported: {why}. The files are all there."


@dataclass(frozen=True)
class Fitting:
    """Memory that fits this machine, and the base image that it is to lie over."""

    memory: Memory
    theirs: ImageRecord
    image: BaseImage


def fitting(memory: Memory, progress: Progress) -> Fitting | str:
    """How memory fits here, or a sentence on why it does not.

    Raises:
        WasmKernelError: this machine's own base image is missing, and can't be built.
    """
    from wasm_kernel.guests.python.language import shared_language
    from wasm_kernel.guests.python.outer import PrepareGuest, prepare_guest

    language = shared_language()
    theirs = memory.known()
    if memory.artifact != language.image_name or theirs is None:
        return _OTHER
    if language.image_at_hand() is None:
        prepare_guest(PrepareGuest(metered=False), Reporting(progress))
    image = language.image_at_hand()
    if image is None:
        return _OTHER
    if image.record.extra != theirs.extra:
        return _ELSEWHERE
    return Fitting(memory, theirs, image)


class Revival:
    """The memory of a session that arrives; one thread's own.

    Args:
        folders: The folders that become the session's.
        fitting: What arrives.
        room: How much it may become on disk.
    """

    def __init__(self, folders: SandboxFolders, fitting: Fitting, room: Room) -> None:
        self._folders = folders
        self._fitting = fitting
        self._room = room
        self._private = folders.private
        self._folder = self._private.enter(_ARRIVING, make=True)
        self._expected = {_IMAGE, STATES}
        self._commits: list[Commit] = []
        self._problem = ""

    def take(self, name: str, info: tarfile.TarInfo, content: IO[bytes] | None) -> None:
        """Put a member of the archive aside.

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
        if tuple(one.id for one in self._commits) != self._fitting.memory.states:
            raise HistoryError("the record of its states is damaged")
        self._expected |= {one.content for one in self._commits} - {""}

    def finish(self) -> str:
        """Make the session's history of what arrived; a sentence where it can't be.

        Raises:
            ArchiveError: a part of it is missing.
            OSError: it can't be written.
        """
        if self._expected and not self._problem:
            raise ArchiveError("The archive lacks a part of the memory that it names.")
        memory = self._fitting.memory
        files = arrived(self._folders, memory.handles)
        with self._private.enter(STATE, make=True) as state:
            try:
                with state.enter(CONTENTS, make=True) as contents:
                    commits = self._fitted(contents, {one: memory.handles[one] for one in files})
            except HistoryError as problem:
                with state.enter(CONTENTS) as contents:
                    _empty(contents)
                os.rmdir(CONTENTS, dir_fd=state.fd)
                return _DAMAGED.format(why=problem)
            finally:
                _empty(self._folder)
                os.rmdir(_ARRIVING, dir_fd=self._private.fd)
            position = Position(memory.at, memory.after, memory.names, memory.undone)
            origin = Origin(max(memory.states), reseed=True, files=files)
            write_state(state, self._fitting.image.id, records_of(origin, commits, position))
        note_forked(self._private)
        return ""

    def close(self) -> None:
        """Closes its folder. Safe to call twice."""
        self._folder.close()

    def _fitted(self, contents: Folder, handles: Handles) -> dict[int, Commit]:
        if self._problem:
            raise HistoryError(self._problem)
        fitting, fitted = self._fitting, dict[int, Commit]()
        with (
            _mapped(self._folder.open_regular(_IMAGE)) as theirs,
            _mapped(os.open(fitting.image.path, os.O_RDONLY | os.O_CLOEXEC)) as ours,
        ):
            if len(theirs) != fitting.theirs.size:
                raise HistoryError("its base image is not complete")
            soil = Soil(theirs, ours, frozenset({LIB_GUEST, DATA_GUEST}), handles)
            for commit in self._commits:
                if commit.parent and commit.parent not in fitted:
                    raise HistoryError("a state stands on one that is not there")
                take = self._room.take
                fitted[commit.id] = transplant(commit, self._folder, contents, soil, take)
                if sum(not one.parent for one in fitted.values()) > _BEGINNINGS_MOST:
                    raise HistoryError("it begins too often")
        return fitted


def _empty(folder: Folder) -> None:
    for name in folder.names():
        folder.remove(name)


@contextmanager
def _mapped(descriptor: int) -> Iterator[memoryview]:
    """The bytes of a file, read as they are needed; the descriptor is closed afterwards."""
    with os.fdopen(descriptor, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise HistoryError("its base image is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as held, memoryview(held) as view:
            yield view
