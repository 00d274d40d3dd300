"""The results of a notebook: its cells' files, collected in a folder beside the executed notebook.

Data files lie there by their names, as `%session_publish` copies them. The others are packed into
one archive: a notebook is untrusted, and tools that look into the folder could act on its files.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from msgspec import Struct

from wasm_kernel.errors import describe
from wasm_kernel.folders.hiding import MetadataAndPlacesHidden
from wasm_kernel.frontends.batch.batch_session import BatchSession
from wasm_kernel.frontends.batch.notebooks import Source, read_executed
from wasm_kernel.linux.files import FileCopier
from wasm_kernel.linux.folders import Folder, NotRegular, closing_fd
from wasm_kernel.policy import MIB
from wasm_kernel.publishing.names import PublishableNames, is_public
from wasm_kernel.publishing.tree import FileTree
from wasm_kernel.result import DATA_SUFFIXES, readable
from wasm_kernel.sessions.files import files_in

RESULTS_BYTES, RESULTS_FILES = 256 * MIB, 1_000
"""The most bytes collected from a notebook, unless `--disk` limits its files."""
SENT_BYTES = 64 * MIB
"""The most bytes of results that a cluster's worker sends, in one message."""

OTHERS = "others.zip"
"""The archive, in the folder of results, of files that are not data files."""

_NAMES = PublishableNames(DATA_SUFFIXES)
_LEVEL = 1
_BLOCK = 1024 * 1024
_MISREAD = re.compile(r"[\\:\x00-\x1f\x7f]")
_ODD = "some systems read a part of its name as a folder's, or as a command"
_NOT_A_FILE = "something that is not a file has its name there"
_TOO_MUCH = "the results of a notebook may be {files:,} files, of {bytes} together"


def folder_of(output: Path) -> Path:
    """Returns the folder for the results of the executed notebook `output`."""
    return output.with_suffix(".files")


class CollectedResults(Struct, frozen=True):
    """The outcome of collecting.

    Attributes:
        files: The collected files, by paths relative to the executed notebook.
        packed: The files in the archive, by their paths in the session.
        left: The reason for each file that stays in the session, by its path there.
    """

    files: tuple[str, ...]
    packed: tuple[str, ...]
    left: dict[str, str]


class ResultsFolder:
    """The folder for the results of one notebook; the first result makes it."""

    def __init__(self, output: Path) -> None:
        self._above, self.name = output.parent, folder_of(output).name

    def refusal(self, path: str, fill: Callable[[BinaryIO], object]) -> str:
        """Writes a file atomically; it may replace another file.

        Returns why it could not be written; empty if it was. No link is followed or replaced.
        """
        try:
            with self._entered(path, make=True) as (here, name):
                there = here.status(name)
                if there is not None and not stat.S_ISREG(there.st_mode):
                    return _NOT_A_FILE
                with here.replacing(name) as file:
                    fill(file)
        except OSError as problem:
            return f"it can't be written there: {describe(problem)}"
        return ""

    def remove(self, path: str) -> None:
        """Removes a file, and the folders that this leaves empty."""
        with suppress(OSError):
            with self._entered(path) as (here, name):
                here.remove(name)
            while path := path.rpartition("/")[0]:
                with self._entered(path) as (above, name):
                    os.rmdir(name, dir_fd=above.fd)

    @contextmanager
    def _entered(self, path: str, *, make: bool = False) -> Iterator[tuple[Folder, str]]:
        with (
            Folder.open(self._above) as top,
            FileTree(top).entered(f"{self.name}/{path}", make=make) as found,
        ):
            yield found


def collect(
    session: BatchSession, source: Source, inputs: Sequence[Path], most: int
) -> CollectedResults:
    """Copies the files that a notebook's cells wrote; returns what happened to each.

    Together the files take at most `most` bytes. Links and unchanged `inputs` are not results.
    """
    into, left = ResultsFolder(source.output), dict[str, str]()
    files, packed, total = list[str](), list[str](), 0
    known = {each.name: each for each in inputs}
    with Folder.open(session.root.path) as top, top.enter(session.id) as folder:
        workspace = FileTree(folder, MetadataAndPlacesHidden(folder))
        for path in filter(is_public, sorted(files_in(session.path, None))):
            with (
                suppress(NotRegular),
                closing_fd(workspace.open_regular(path)) as fd,
            ):  # a link is skipped: its target in the session is collected itself
                size = os.fstat(fd).st_size
                if path in known and _is_same(fd, known[path]):
                    continue
                if total + size > most or len(files) + len(packed) == RESULTS_FILES:
                    left[path] = _TOO_MUCH.format(files=RESULTS_FILES, bytes=readable(most))
                    continue
                if _MISREAD.search(path):
                    left[path] = _ODD
                    continue
                total += size
                if _NAMES.refusal(path):
                    packed.append(path)
                elif why := into.refusal(path, partial(_copy, fd, size)):
                    left[path] = why
                else:
                    files.append(f"{into.name}/{path}")
        if packed and (why := into.refusal(OTHERS, partial(_pack, workspace, packed))):
            left |= dict.fromkeys(packed, why)
        elif packed:
            files.append(f"{into.name}/{OTHERS}")
    return CollectedResults(tuple(files), tuple(each for each in packed if each not in left), left)


def _pack(workspace: FileTree, paths: Sequence[str], file: BinaryIO) -> None:
    """Writes an archive of files; its bytes depend only on their names and contents."""
    with ZipFile(file, "w", ZIP_DEFLATED, compresslevel=_LEVEL) as archive:
        for path in paths:
            with os.fdopen(workspace.open_regular(path), "rb") as source:
                about = ZipInfo(path)
                about.compress_type = ZIP_DEFLATED
                with archive.open(about, "w") as target:
                    shutil.copyfileobj(source, target, _BLOCK)


def _copy(fd: int, size: int, file: BinaryIO) -> None:
    FileCopier().copy(fd, file.fileno(), size)


def _is_same(fd: int, file: Path) -> bool:
    """Returns whether an open file has the same content as a file of the user."""
    with suppress(OSError), file.open("rb") as other:
        if os.fstat(fd).st_size != os.fstat(other.fileno()).st_size:
            return False
        while block := other.read(_BLOCK):
            if os.read(fd, len(block)) != block:
                return False
        return True
    return False


def read_results(output: Path, files: Sequence[str]) -> dict[str, bytes]:
    """Returns the collected files of an executed notebook, by paths in the folder of results."""
    return {each.partition("/")[2]: (output.parent / each).read_bytes() for each in files}


def write_results(output: Path, results: Mapping[str, bytes]) -> tuple[str, ...]:
    """Writes the permitted results that a worker has sent; returns their paths."""
    into, files, left = ResultsFolder(output), list[str](), SENT_BYTES
    for path, data in results.items():
        left -= len(data)
        may_be = left >= 0 and len(files) < RESULTS_FILES and _is_result(path)
        if may_be and not into.refusal(path, partial(_write, data)):
            files.append(f"{into.name}/{path}")
    return tuple(files)


def _write(data: bytes, file: BinaryIO) -> None:
    file.write(data)


def _is_result(path: str) -> bool:
    return path == OTHERS or not _NAMES.refusal(path)


def remove_earlier(output: Path, earlier: Sequence[str], files: Sequence[str]) -> None:
    """Removes the files that an earlier run had collected, and this one has not."""
    folder = ResultsFolder(output)
    for each in {*earlier} - {*files}:
        above, _, path = each.partition("/")
        if above == folder.name and _is_result(path):
            folder.remove(path)


def earlier_files(output: Path) -> tuple[str, ...]:
    """Returns the files that an earlier run has collected for the executed notebook at `output`."""
    found = read_executed(output) if folder_of(output).is_dir() else None
    files = found[1].get("files") if found is not None else None
    return tuple(each for each in files or () if isinstance(each, str))
