"""Commits that come from another machine: checked as a stranger's, and fitted to the image of here.

Commits hold what changed in a guest's memory since its base image, and no two base images are alike
in their bytes, though they are built of the same things. So the first commit of a history is
completed: it also gets every page in which the image it was made over differs from the one that it
is to lie over from now on. All that follows stands on it and needs no change.

A header is a stranger's word: how much memory, which pages, which files were open. What does not
fit is refused; files of the session itself are other files here, and only those are opened again
that are known to have come along.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from wasm_kernel.engine import abi
from wasm_kernel.engine.files.descriptors import OpenFile
from wasm_kernel.engine.memory import commit as commits
from wasm_kernel.engine.memory.commit import Commit, CommitFile, Run
from wasm_kernel.engine.memory.cover import Cover
from wasm_kernel.engine.memory.found import name_of
from wasm_kernel.engine.memory.pages import PAGE
from wasm_kernel.errors import HistoryError

_MEMORY_MOST = 4 << 30
_NUMBER_MOST = 1 << 31
_CLOCK_MOST = 1 << 63
_LABEL_MOST = 200
_RUNS_MOST = _MEMORY_MOST // PAGE
_FILES_MOST = 256
_DESCRIPTOR_MOST = 4096
_PATH_MOST = 1024
_ZERO = bytes(PAGE)


@dataclass(frozen=True)
class Soil:
    """The base image that commits were made over, and the one that they are to lie over.

    Attributes:
        theirs: The memory of the one.
        ours: The memory of the other.
        image: What ours is called.
        readable: The guest's names of the folders whose files are the same everywhere.
        handles: The session's own files that came along: the guest's folder and the path of each,
            by its identity there.
    """

    theirs: memoryview
    ours: memoryview
    image: str
    readable: frozenset[str]
    handles: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def transplant(source: Path, folder: Path, soil: Soil, was: str) -> Commit:
    """Put a commit's file of somebody else's into a history's folder, fitted to the image of here.

    Args:
        source: The file.
        folder: The history's folder.
        soil: The two images.
        was: What the image was called where the commit was made.

    Raises:
        HistoryError: it is none, is damaged, or says what can't be.
        OSError: it can't be read, or the new one not be written.
    """
    with CommitFile(source) as file:
        file.verify()
        commit = _checked(file.commit, was)
        fitted = replace(commit, image=soil.image, files=_files(commit.files, soil))
        pages, zeros = _differing(commit, soil) if commit.parent == 0 else ([], [])
        runs = _merged([*commit.runs, *pages])
        fitted = replace(fitted, runs=runs, zeros=_merged([*commit.zeros, *zeros]))
        content = _content(file, soil.theirs, pages)
        commits.write(folder / name_of(commit.id), fitted, content)
    return fitted


def _checked(commit: Commit, was: str) -> Commit:
    """A commit, where every field of it is what it should be.

    Raises:
        HistoryError: one is not.
    """
    numbers = (commit.cell, commit.count, commit.cells)
    good = (
        _is_number(commit.id, _NUMBER_MOST)
        and _is_number(commit.parent, _NUMBER_MOST)
        and commit.parent < commit.id
        and all(_is_number(number, _NUMBER_MOST) for number in numbers)
        and _is_number(commit.size, _MEMORY_MOST + 1)
        and commit.size % PAGE == 0
        and _is_number(commit.clock, _CLOCK_MOST)
        and type(commit.time) in (int, float)
        and math.isfinite(commit.time)
        and isinstance(commit.label, str)
        and commit.image == was
    )
    if not good or not _are_runs([*commit.runs], commit.size) or len(commit.files) > _FILES_MOST:
        raise HistoryError("a commit says of itself what can't be")
    if not _are_runs([*commit.zeros], commit.size):
        raise HistoryError("a commit says of itself what can't be")
    label = "".join(c if c.isprintable() else "\ufffd" for c in commit.label[:_LABEL_MOST])
    return replace(commit, label=label, time=float(commit.time))


def _is_number(value: object, most: int) -> bool:
    return type(value) is int and 0 <= value < most


def _are_runs(runs: Sequence[Run], size: int) -> bool:
    """Whether runs are in order, apart from each other, and inside the memory."""
    at = 0
    for first, pages in runs:
        if first < at or pages < 1 or first + pages > size // PAGE:
            return False
        at = first + pages
    return len(runs) <= _RUNS_MOST


def _files(files: Iterable[OpenFile], soil: Soil) -> tuple[OpenFile, ...]:
    """What was open: files of the guest's library are opened again, and the session's own that came
    along; of others the number is kept.

    Raises:
        HistoryError: one of them can't be.
    """
    return tuple(_file(each, soil) for each in files)


def _file(file: OpenFile, soil: Soil) -> OpenFile:
    flags = (file.flags, file.rights, file.inheriting, file.fdflags, file.offset)
    if not (
        _is_number(file.fd, _DESCRIPTOR_MOST)
        and all(_is_number(flag, _CLOCK_MOST) for flag in flags)
        and isinstance(file.guest, str)
    ):
        raise HistoryError("a commit names an open file that can't be")
    path = file.path
    known = isinstance(path, str) and len(path.encode("utf-8", "replace")) <= _PATH_MOST
    if isinstance(file.identity, str) and soil.handles.get(file.identity) == (file.guest, path):
        return replace(file, flags=file.flags & abi.O_DIRECTORY)
    if file.guest not in soil.readable or not known:
        return replace(file, guest="/", path=None, identity="")
    return replace(file, identity="")


def _differing(commit: Commit, soil: Soil) -> tuple[list[Run], list[Run]]:
    """The pages that neither the commit has nor both images have alike: with content, and empty."""
    pages = commit.size // PAGE
    cover = Cover(pages)
    for first, count in (*commit.runs, *commit.zeros):
        list(cover.free(first, count))
    full: list[Run] = []
    empty: list[Run] = []
    for start, end in cover.free(0, pages):
        for page in range(start, end):
            theirs = _page(soil.theirs, page)
            if theirs != _page(soil.ours, page):
                (empty if theirs == _ZERO else full).append((page, 1))
    return full, empty


def _page(memory: memoryview, page: int) -> memoryview | bytes:
    """A page of an image's memory; beyond its end a guest's memory holds zeros."""
    return memory[page * PAGE : (page + 1) * PAGE] if (page + 1) * PAGE <= len(memory) else _ZERO


def _merged(runs: Iterable[Run]) -> tuple[Run, ...]:
    """The same pages in order, neighbours in one run."""
    merged: list[list[int]] = []
    for first, pages in sorted(runs):
        if merged and merged[-1][0] + merged[-1][1] == first:
            merged[-1][1] += pages
        else:
            merged.append([first, pages])
    return tuple((first, pages) for first, pages in merged)


def _content(file: CommitFile, theirs: memoryview, added: Sequence[Run]) -> Iterator[memoryview]:
    """The content of the commit's own runs and of the added ones, in the order of their pages."""
    own = [(first, pages, at) for first, pages, at in file.places()]
    for first, pages, at in sorted([*own, *((first, pages, -1) for first, pages in added)]):
        if at < 0:
            yield memoryview(_page(theirs, first))
            continue
        block = bytearray(pages * PAGE)
        file.read_into(memoryview(block), at)
        yield memoryview(block)
