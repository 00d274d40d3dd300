"""Rebasing: checks untrusted commits of another machine, and fits them to the base image here.

Commits hold the pages of a guest's memory that differ from its base image, and the bytes of two
base images always differ, even if they were built from the same parts. So the first commit of a
history also gets every page in which its old image differs from the image here. The commits that
stand on it need no change.

A header is untrusted: the size of memory, the pages, the open files. Commits that do not fit are
refused. The session's own files have other identities here; only those are opened again that came
with the archive.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from wasm_kernel.engine import abi
from wasm_kernel.errors import HistoryError
from wasm_kernel.linux.files import link_or_copy
from wasm_kernel.linux.folders import Folder
from wasm_kernel.state.commits import ContentFile, places, write_content
from wasm_kernel.state.index import ID_MOST, Commit
from wasm_kernel.state.pages import PAGE, PageSet, Run, joined
from wasm_kernel.wasi_files.open_files import OpenFile

_LABEL_MOST = 200
_STEP_PAGES = 256
_PATH_MOST = 1024
_CHANGING = sum(1 << bit for bit in (3, 6, *range(8, 13), 16, 17, 19, 20, *range(22, 27)))
"""WASI's rights to write, make, link, rename and remove, and to set flags, lengths and times."""

_ZERO = bytes(PAGE)
_THEIRS = -1

Piece = tuple[int, int, int]
"""First page, number of pages, and their position in the file; `_THEIRS` if in their image."""


@dataclass(frozen=True)
class ImagePair:
    """The base image that commits were made over (`theirs`), and the one of this machine (`ours`).

    `readable` are the guest's names of folders whose files are the same everywhere; `open_files`
    gives the folder and the path of each imported file of the session's own, by its identity on the
    other machine.
    """

    theirs: memoryview
    ours: memoryview
    readable: frozenset[str]
    open_files: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def rebase_commit(
    commit: Commit, source: Folder, target: Folder, images: ImagePair, take: Callable[[int], None]
) -> Commit:
    """Puts an untrusted commit into a history's folder, fitted to the base image here.

    `take` is called with the number of bytes before they are written, and raises if they are too
    many. Raises `HistoryError` if the commit is damaged or impossible.
    """
    commit = _checked(commit)
    pages, empty = _differing(commit, images) if commit.parent == 0 else ([], [])
    if bool(commit.runs) != bool(commit.content):
        raise HistoryError("a commit has no content, or no place for it")
    with ContentFile(source, commit) if commit.runs else contextlib.nullcontext() as file:
        if file is not None:
            file.verify()
        if not pages and not empty:
            return _take_over(commit, source, target, images, take)
        pieces = sorted([*places(commit), *((first, count, _THEIRS) for first, count in pages)])
        fitted = replace(
            commit,
            files=tuple(_file(each, images) for each in commit.files),
            runs=joined((first, count) for first, count, _ in pieces),
            zeros=joined(sorted([*commit.zeros, *empty])),
        )
        take(fitted.page_bytes + len(msgspec.json.encode(fitted)))
        name, _ = write_content(target, _content(file, images.theirs, pieces))
    return replace(fitted, content=name)


def _take_over(
    commit: Commit, source: Folder, target: Folder, images: ImagePair, take: Callable[[int], None]
) -> Commit:
    """Puts a commit into a history's folder with its content's file unchanged."""
    fitted = replace(commit, files=tuple(_file(each, images) for each in commit.files))
    take(len(msgspec.json.encode(fitted)))
    if commit.content:
        with contextlib.suppress(FileExistsError):  # another commit's pages are the same
            link_or_copy(source.fd, commit.content, commit.content, target.fd)
    return fitted


def _checked(commit: Commit) -> Commit:
    """Returns a commit with a label that can be shown; `HistoryError` if its number is too high."""
    if commit.id >= ID_MOST:
        raise HistoryError("the record of a commit is impossible")
    label = "".join(c if c.isprintable() else "\ufffd" for c in commit.label[:_LABEL_MOST])
    return replace(commit, label=label, time=float(commit.time))


def _file(file: OpenFile, images: ImagePair) -> OpenFile:
    """Converts an open-file record.

    Library files can be opened again for reading, and the session's own files that were imported as
    before. Other files only keep their numbers.
    """
    path = file.path
    known = path is not None and len(path.encode("utf-8", "replace")) <= _PATH_MOST
    fitted = replace(
        file,
        flags=file.flags & abi.O_DIRECTORY,
        rights=file.rights & abi.FILE_RIGHTS,
        fdflags=file.fdflags & (abi.FD_APPEND | abi.FD_NONBLOCK),
    )
    if images.open_files.get(file.identity) == (file.guest, path):
        return fitted
    if file.guest not in images.readable or not known:
        return OpenFile(file.fd, "/", None, 0, 0, 0, 0)
    return replace(fitted, rights=fitted.rights & ~_CHANGING, fdflags=0, identity="")


def _differing(commit: Commit, images: ImagePair) -> tuple[list[Run], list[Run]]:
    """Returns the full and the empty pages that differ between the images outside the commit."""
    cover = PageSet(commit.size // PAGE)
    list(cover.cover((*commit.runs, *commit.zeros)))
    full: list[Run] = []
    empty: list[Run] = []
    longest = -(-max(len(images.theirs), len(images.ours)) // PAGE)  # beyond, both are zeros
    for start, end, _ in cover.cover([(0, min(commit.size // PAGE, longest))]):
        for first in range(start, end, _STEP_PAGES):
            last = min(first + _STEP_PAGES, end)
            step = slice(first * PAGE, last * PAGE)
            if bytes(images.theirs[step]) == bytes(images.ours[step]):  # views take far longer
                continue
            for page in range(first, last):
                theirs = _page(images.theirs, page)
                if theirs != _page(images.ours, page):
                    (full if theirs != _ZERO else empty).append((page, 1))
    return full, empty


def _page(memory: memoryview, page: int) -> memoryview | bytes:
    """Returns a page of an image's memory; zeros beyond its end, as in a guest's memory."""
    return memory[page * PAGE : (page + 1) * PAGE] if (page + 1) * PAGE <= len(memory) else _ZERO


def _content(
    file: ContentFile | None, theirs: memoryview, pieces: Iterable[Piece]
) -> Iterator[memoryview | bytes]:
    """Yields the content of pieces, in order and in steps; each is valid until the next."""
    buffer = memoryview(bytearray(_STEP_PAGES * PAGE))
    for first, pages, at in pieces:
        if at == _THEIRS:
            yield _page(theirs, first)
        elif file is not None:
            for done in range(0, pages, _STEP_PAGES):
                step = buffer[: min(_STEP_PAGES, pages - done) * PAGE]
                file.read(at + done * PAGE, step)
                yield step
