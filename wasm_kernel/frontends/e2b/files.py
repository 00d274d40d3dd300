"""The files of a sandbox: uploads and downloads, and the calls of E2B's file service.

The host does the work without a guest, by the same calls that a guest has.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import posixpath
import stat
import time
import zlib
from collections.abc import AsyncGenerator, Iterator
from datetime import UTC, datetime

from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from wasm_kernel.folders.folders import TMP
from wasm_kernel.frontends.e2b import messages
from wasm_kernel.frontends.e2b.sandbox import HOME
from wasm_kernel.frontends.http.limits import Refusal
from wasm_kernel.frontends.http.session_files import check_room, opened_folders
from wasm_kernel.linux.walks import FolderWalk
from wasm_kernel.policy import MIB
from wasm_kernel.service.async_session import AsyncSession
from wasm_kernel.sessions import entries
from wasm_kernel.sessions.paths import locate, split_path
from wasm_kernel.wasi_files.access import FileAccess, files_in
from wasm_kernel.wasi_files.path_walk import Follow
from wasm_kernel.wasi_files.preopens import APP

FILE_BYTES = 32 * MIB
"""The most bytes of a file in one request or answer."""
FILES_MOST = 100
"""The most files in one request."""
_GZIP = 31  # what zlib calls the format of gzip, with its largest window
_LEVELS_MOST = 100
_LIST_SECONDS = 10.0  # processor time; each link may lead through 40 others
_SLOW_LIST = "The folder has too many files, links or levels for one list. List its folders."
_YEAR_9999 = 253_370_764_800  # in seconds since 1970; cells can set any time
logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it tells of each broken upload
_KINDS = {stat.S_IFDIR: "FILE_TYPE_DIRECTORY", stat.S_IFREG: "FILE_TYPE_FILE"}
_LINK = "FILE_TYPE_SYMLINK"


def guest_path(path: str) -> str:
    """Returns a client's path as the guest has it; raises `Refusal` outside of its files."""
    plain = posixpath.normpath(posixpath.join(HOME, path))
    if not _parts(plain)[0]:
        words = f"A sandbox's files are in {HOME}, also called {APP}, and in {TMP}"
        raise Refusal(404, f"{words}; {path[:200]!r} is not.")
    return plain


def _parts(plain: str) -> tuple[str, str]:
    """Returns the folder that has the files of a guest's path, and the rest of the path.

    The folder is empty if the path leads to none.
    """
    root = next((each for each in (HOME, APP, TMP) if f"{plain}/".startswith(f"{each}/")), "")
    return root, plain[len(root) + 1 :]


@contextlib.contextmanager
def _open(session: AsyncSession) -> Iterator[FileAccess]:
    """Yields the files of a session, by the paths of its guest."""
    with (
        opened_folders(session.sync) as (folders, quota),
        files_in(folders, quota, home=HOME) as files,
    ):
        yield files


@contextlib.contextmanager
def _located(
    session: AsyncSession, path: str, *, follow: bool = True, size: int | None = None
) -> Iterator[tuple[FolderWalk, str]]:
    """Yields a walk to the folder of a client's path, and the name there, as `locate`.

    With `size`, that of a new file, checks that it fits and makes its folders.
    """
    root, rest = _parts(guest_path(path))
    with opened_folders(session.sync) as (folders, quota):
        folder = folders[root == TMP]
        if size is not None:
            check_room(folder, quota, rest or ".", size)
        parts, make = split_path(rest or "."), size is not None
        with locate(folder.folder.fd, parts, path, follow=follow, make=make) as found:
            yield found


# -- content


def read(session: AsyncSession, path: str) -> bytes:
    """Returns the content of a file."""
    with _located(session, path) as (walk, name):
        return entries.read(walk.fd, name, FILE_BYTES)


def write(session: AsyncSession, path: str, data: bytes) -> str:
    """Writes a file, with the folders on its way; returns its path in the guest."""
    with _located(session, path, size=len(data)) as (walk, name):
        entries.replace(walk.root, walk.fd, name, data, overwrite=True)
    return guest_path(path)


async def uploaded(
    headers: Headers, path: str | None, content: bytearray
) -> list[tuple[str, bytes]]:
    """Returns the paths and contents of the files in an upload; raises `Refusal`."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        return await _uploads(headers, path, content)
    if not path:
        raise Refusal(400, "An upload names its path: ?path=...")
    if headers.get("content-encoding", "") == "gzip":
        return [(path, _unpacked(content))]
    return [(path, bytes(content))]


async def _uploads(
    headers: Headers, path: str | None, content: bytearray
) -> list[tuple[str, bytes]]:
    async def stream() -> AsyncGenerator[bytes, None]:
        yield bytes(content)

    parser = MultiPartParser(headers, stream(), max_files=FILES_MOST, max_fields=1)
    parser.spool_max_size = len(content) + 1  # it would write files of its own
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError) as problem:
        raise Refusal(400, f"The upload can't be read: {problem}") from None
    parts = [each for each in form.getlist("file") if isinstance(each, UploadFile)]
    found = [(path or each.filename or "", await each.read()) for each in parts]
    await form.close()
    if not found or not all(name for name, _ in found) or (path and len(found) > 1):
        raise Refusal(400, "An upload has parts called file, each with its path.")
    return found


def _unpacked(content: bytearray) -> bytes:
    unpacking = zlib.decompressobj(_GZIP)
    try:
        data = unpacking.decompress(content, FILE_BYTES + 1)
    except zlib.error as problem:
        raise Refusal(400, f"The upload can't be unpacked: {problem}") from None
    if len(data) > FILE_BYTES:
        raise too_large()
    if not unpacking.eof:
        raise Refusal(400, "The upload ends before its content does.")
    return data


def too_large() -> Refusal:
    """Returns the refusal of a file that is too large for one request."""
    words = f"One request takes {FILE_BYTES // MIB} MiB of files. Cells can read and write more."
    return Refusal(413, words, "request_bytes")


# -- names


def describe(session: AsyncSession, asked: messages.StatRequest) -> messages.StatResponse:
    """Describes a file, a folder or a link."""
    with _open(session) as files:
        return messages.StatResponse(_entry(files, guest_path(asked.path)))


def list_folder(session: AsyncSession, asked: messages.ListDirRequest) -> messages.ListDirResponse:
    """Lists the files and folders in a folder."""
    with _open(session) as files:
        levels, end = min(asked.depth, _LEVELS_MOST) or 1, time.thread_time() + _LIST_SECONDS
        return messages.ListDirResponse([*_listed(files, guest_path(asked.path), levels, end)])


def _listed(files: FileAccess, path: str, depth: int, end: float) -> Iterator[messages.EntryInfo]:
    for name, kind in files.list(path):
        if time.thread_time() > end:
            raise Refusal(413, _SLOW_LIST, "request_seconds")
        with contextlib.suppress(OSError):  # it is gone
            yield _entry(files, f"{path}/{name}")
            if kind == "folder" and depth > 1:
                yield from _listed(files, f"{path}/{name}", depth - 1, end)


def _entry(files: FileAccess, path: str) -> messages.EntryInfo:
    at = files.at(path)
    status = files.operations.status(at, Follow.NEVER)
    target, kind = "", _KINDS.get(stat.S_IFMT(status.st_mode), "FILE_TYPE_UNSPECIFIED")
    if stat.S_ISLNK(status.st_mode):
        target = posixpath.join(posixpath.dirname(path), files.operations.read_link(at))
        kind = _LINK
        with contextlib.suppress(OSError):
            kind = _KINDS.get(stat.S_IFMT(files.operations.status(at).st_mode), _LINK)
    changed = datetime.fromtimestamp(min(max(int(status.st_mtime), 0), _YEAR_9999), UTC)
    return messages.EntryInfo(
        name=posixpath.basename(path),
        type=kind,
        path=path,
        size=str(status.st_size),
        mode=stat.S_IMODE(status.st_mode),
        permissions=stat.filemode(status.st_mode),
        owner="user",
        group="user",
        modified_time=changed.strftime("%Y-%m-%dT%H:%M:%SZ"),
        symlink_target=target,
    )


def make_folder(session: AsyncSession, asked: messages.StatRequest) -> messages.StatResponse:
    """Makes a folder and its missing parents; raises `FileExistsError` if it exists."""
    plain = guest_path(asked.path)
    with _open(session) as files:
        _make_way(files, posixpath.dirname(plain))
        if not _parts(plain)[1]:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), plain)
        files.operations.make_folder(files.at(plain))
        return messages.StatResponse(_entry(files, plain))


def _make_way(files: FileAccess, path: str) -> None:
    """Makes the folder at `path`, and its missing parents."""
    folder, rest = _parts(path)
    for name in rest.split("/") if rest else ():
        folder = f"{folder}/{name}"
        try:
            files.operations.make_folder(files.at(folder))
        except OSError as problem:
            if problem.errno != errno.EEXIST:
                raise


def move(session: AsyncSession, asked: messages.MoveRequest) -> messages.StatResponse:
    """Renames a file or folder, and makes the folders on the way of its new path."""
    old, new = guest_path(asked.source), guest_path(asked.destination)
    if not (_parts(old)[1] and _parts(new)[1]):
        words = f"{HOME} and {TMP} themselves can't be moved or replaced. Nothing was changed."
        raise Refusal(400, words)
    with _open(session) as files:
        files.operations.status(files.at(old), Follow.NEVER)
        _make_way(files, posixpath.dirname(new))
        files.operations.rename(files.at(old), files.at(new))
        return messages.StatResponse(_entry(files, new))


def remove(session: AsyncSession, asked: messages.StatRequest) -> messages.Nothing:
    """Deletes a file, or a folder with everything in it; nothing if it does not exist."""
    with (
        contextlib.suppress(FileNotFoundError),
        _located(session, asked.path, follow=False) as (walk, name),
    ):
        if name == ".":
            raise Refusal(400, f"{HOME} and {TMP} themselves can't be deleted.")
        entries.delete(walk.fd, name, recursive=True)
    return messages.Nothing()
