"""The files that a session's states had open, in an archive: open again where it arrives.

A state names a file by what the system calls it (`linux/files.py`), which is another
name on every disk. So the archive says where each of them lies in it, and they get the names of the
files that were unpacked there. That is a stranger's word: only a file that is reached by its plain
path, without a link and past the session's own names, is opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from wasm_kernel.folders.folders import APP, TMP, SandboxFolders
from wasm_kernel.linux.files import file_identity_below
from wasm_kernel.state.index import Commit, Origin
from wasm_kernel.wasi_files.preopens import is_hidden_name

HANDLES_MOST = 10_000
_TEXT_MOST = 512 * 1024
_PLACES = (APP, TMP)

Handles = Mapping[str, tuple[str, str]]
"""Guest folder and path of each file, by what the states call it."""


def standing(folders: SandboxFolders, commits: Iterable[Commit], origin: Origin) -> Handles:
    """The files that were open at any commit and are still where they were."""
    found: dict[str, tuple[str, str]] = {}
    length = 0
    for commit in commits:
        for written, known in zip(commit.files, origin.files_of(commit), strict=True):
            if not written.identity or known.path is None or written.identity in found:
                continue
            length += len(known.path)
            if len(found) == HANDLES_MOST or length > _TEXT_MOST:
                return found
            there = _named(folders, known.guest, known.path)
            if there and there == known.identity:
                found[written.identity] = (known.guest, known.path)
    return found


def arrived(folders: SandboxFolders, handles: Handles) -> dict[str, str]:
    """What those of the files are called that are in a session in which nobody works yet."""
    named = {one: _named(folders, guest, path) for one, (guest, path) in handles.items()}
    return {one: here for one, here in named.items() if here}


def _named(folders: SandboxFolders, guest: str, path: str) -> str:
    """What the system calls a file of the guest's; empty where it is not to be opened."""
    if guest not in _PLACES or (guest == APP and is_hidden_name(path.partition("/")[0])):
        return ""
    return file_identity_below(folders.seen_at(guest).fd, path)
