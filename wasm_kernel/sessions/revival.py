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
from wasm_kernel.folders.folders import HISTORY, SandboxFolders
from wasm_kernel.folders.locks import note_forked
from wasm_kernel.guests.python.files import DATA_GUEST, LIB_GUEST
from wasm_kernel.linux.folders import Folder
from wasm_kernel.linux.task import CallbackTask
from wasm_kernel.sessions.handles import Handles, arrived
from wasm_kernel.sessions.manifest import Memory
from wasm_kernel.sessions.tarball import ArchiveError, Room, unpack
from wasm_kernel.state.bookmark import Bookmark
from wasm_kernel.state.commit import CommitFile
from wasm_kernel.state.found import name_of
from wasm_kernel.state.image import BaseImage, ImageRecord
from wasm_kernel.state.origin import Origin
from wasm_kernel.state.transplant import HEADER_MOST, Soil, transplant

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
        prepare_guest(PrepareGuest(metered=False), CallbackTask(progress, lambda: False))
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
        self._expected = {_IMAGE, *(name_of(one) for one in fitting.memory.states)}

    def take(self, name: str, info: tarfile.TarInfo, content: IO[bytes] | None) -> None:
        """Put a member of the archive aside.

        Raises:
            ArchiveError: it is none that belongs there.
            OSError: it can't be written.
        """
        if content is None or name not in self._expected:
            raise ArchiveError("The archive holds something in its memory that it does not name.")
        self._expected.discard(name)
        self._room.take(info.size)  # holes, too: all of it is going to be read
        descriptor = self._folder.open_regular(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            unpack(info, content, descriptor)
        finally:
            os.close(descriptor)

    def finish(self) -> str:
        """Make the session's history of what arrived; a sentence where it can't be.

        Raises:
            ArchiveError: a part of it is missing.
            OSError: it can't be written.
        """
        if self._expected:
            raise ArchiveError("The archive lacks a part of the memory that it names.")
        memory = self._fitting.memory
        files = arrived(self._folders, memory.handles)
        with self._private.enter(HISTORY, make=True) as history:
            try:
                self._settle(history, {one: memory.handles[one] for one in files})
            except HistoryError as problem:
                _empty(history)
                return _DAMAGED.format(why=problem)
            finally:
                _empty(self._folder)
                os.rmdir(_ARRIVING, dir_fd=self._private.fd)
            Bookmark(memory.at, memory.after, memory.names, memory.undone).write(history)
            Origin(max(memory.states), reseed=True, files=files).write(history)
        note_forked(self._private)
        return ""

    def close(self) -> None:
        """Closes its folder. Safe to call twice."""
        self._folder.close()

    def _settle(self, history: Folder, handles: Handles) -> None:
        fitting, known, beginnings = self._fitting, {0}, 0
        with (
            _mapped(self._folder.open_regular(_IMAGE)) as theirs,
            _mapped(os.open(fitting.image.path, os.O_RDONLY | os.O_CLOEXEC)) as ours,
        ):
            if len(theirs) != fitting.theirs.size:
                raise HistoryError("its base image is not complete")
            library = frozenset({LIB_GUEST, DATA_GUEST})
            soil = Soil(theirs, ours, fitting.image.id, library, handles)
            for one in fitting.memory.states:
                was, take = fitting.memory.image, self._room.take
                with CommitFile(self._folder, name_of(one), HEADER_MOST) as file:
                    commit = transplant(file, history, soil, was, take)
                if commit.id != one or commit.parent not in known:
                    raise HistoryError("a state stands on one that is not there")
                known.add(one)
                beginnings += commit.parent == 0
                if beginnings > _BEGINNINGS_MOST:
                    raise HistoryError("it begins too often")


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
