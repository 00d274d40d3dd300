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
"""First page, number of pages, and where they lie in the file; `_THEIRS` if in their image."""


@dataclass(frozen=True)
class ImagePair:
    """The base image that commits were made over, and the one that they are to lie over.

    `readable` are the guest's names of folders whose files are the same everywhere; `open_files`
    the session's own files that came along: folder and path, by identity there.
    """

    theirs: memoryview
    ours: memoryview
    readable: frozenset[str]
    open_files: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def rebase_commit(
    commit: Commit, source: Folder, target: Folder, images: ImagePair, take: Callable[[int], None]
) -> Commit:
    """Puts a commit of somebody else's into a history's folder, fitted to the image of here.

    `take` hears how many bytes are going to be written, and raises if they are too many. Raises
    `HistoryError` if the commit is damaged, or says what can't be.
    """
    commit = _checked(commit)
    pages, empty = _differing(commit, images) if commit.parent == 0 else ([], [])
    if bool(commit.runs) != bool(commit.content):
        raise HistoryError("a commit has no content, or no place for it")
    with ContentFile(source, commit) if commit.runs else contextlib.nullcontext() as file:
        if file is not None:
            file.verify()
        if not pages and not empty:
            return _taken_over(commit, source, target, images, take)
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


def _taken_over(
    commit: Commit, source: Folder, target: Folder, images: ImagePair, take: Callable[[int], None]
) -> Commit:
    """Puts a commit into a history's folder whose content stays as it is: the very file."""
    fitted = replace(commit, files=tuple(_file(each, images) for each in commit.files))
    take(len(msgspec.json.encode(fitted)))
    if commit.content:
        with contextlib.suppress(FileExistsError):  # another commit's pages are the same
            link_or_copy(source.fd, commit.content, commit.content, target.fd)
    return fitted


def _checked(commit: Commit) -> Commit:
    """Returns a commit with a label that can be shown; `HistoryError` if its number is too high."""
    if commit.id >= ID_MOST:
        raise HistoryError("a commit says of itself what can't be")
    label = "".join(c if c.isprintable() else "\ufffd" for c in commit.label[:_LABEL_MOST])
    return replace(commit, label=label, time=float(commit.time))


def _file(file: OpenFile, images: ImagePair) -> OpenFile:
    """Fits what was open: a file of the guest's library is opened again, to be read, and one of the
    session's own that came along; of others the number is kept.
    """
    path = file.path
    known = path is not None and len(path.encode("utf-8", "replace")) <= _PATH_MOST
    fitted = replace(
        file,
        flags=file.flags & abi.O_DIRECTORY,
        rights=file.rights & abi.FILE_RIGHTS,
        inheriting=file.inheriting & abi.FILE_RIGHTS,
        fdflags=file.fdflags & (abi.FD_APPEND | abi.FD_NONBLOCK),
    )
    if images.open_files.get(file.identity) == (file.guest, path):
        return fitted
    if file.guest not in images.readable or not known:
        return OpenFile(file.fd, "/", None, 0, 0, 0, 0, 0)
    rights, inheriting = fitted.rights & ~_CHANGING, fitted.inheriting & ~_CHANGING
    return replace(fitted, rights=rights, inheriting=inheriting, fdflags=0, identity="")


def _differing(commit: Commit, images: ImagePair) -> tuple[list[Run], list[Run]]:
    """Returns the pages that the commit lacks and the images have differently: full and empty."""
    cover = PageSet(commit.size // PAGE)
    list(cover.take((*commit.runs, *commit.zeros)))
    full: list[Run] = []
    empty: list[Run] = []
    longest = -(-max(len(images.theirs), len(images.ours)) // PAGE)  # beyond, both are zeros
    for start, end, _ in cover.take([(0, min(commit.size // PAGE, longest))]):
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
    """Returns a page of an image's memory; beyond its end a guest's memory holds zeros."""
    return memory[page * PAGE : (page + 1) * PAGE] if (page + 1) * PAGE <= len(memory) else _ZERO


def _content(
    file: ContentFile | None, theirs: memoryview, pieces: Iterable[Piece]
) -> Iterator[memoryview | bytes]:
    """Yields the content of pieces, in their order and in steps; each is good until the next."""
    buffer = memoryview(bytearray(_STEP_PAGES * PAGE))
    for first, pages, at in pieces:
        if at == _THEIRS:
            yield _page(theirs, first)
        elif file is not None:
            for done in range(0, pages, _STEP_PAGES):
                step = buffer[: min(_STEP_PAGES, pages - done) * PAGE]
                file.read(at + done * PAGE, step)
                yield step
