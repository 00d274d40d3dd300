"""No file below a folder that others may change is opened by its path (F1, F11, case 40).

In the rooms below, a file is opened, inspected, made, renamed or removed by one plain name and the
descriptor of its folder: through `Folder`, `walks`, or a call with `dir_fd`. Exceptions are listed
with the reason why no other user can change the path.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache

import pytest

from tests.test_floors import PACKAGE, ROOT, python_files, tree_of

ROOMS = ["wasi_files", "state", "sessions", "publishing"]
"""The rooms that work in folders which others may change."""

BY_OS = {"open", "stat", "lstat", "unlink", "remove", "rename", "replace", "mkdir", "rmdir", "link"}
BY_OS |= {"symlink", "readlink", "chmod", "chown", "utime", "mkfifo", "mknod", "access", "truncate"}
BY_OS |= {"listdir", "scandir", "makedirs", "removedirs", "renames", "walk", "statvfs"}
BY_PATH = {"open", "read_bytes", "read_text", "write_bytes", "write_text", "glob", "rglob"}
BY_PATH |= {"iterdir"}
BY_PATH |= {"unlink", "mkdir", "touch", "exists", "is_dir", "is_file", "is_symlink", "is_fifo"}
BY_PATH |= {"stat", "lstat", "rmdir", "resolve", "symlink_to", "hardlink_to", "readlink", "chmod"}
BY_PATH |= {"samefile", "expanduser"}
OTHERS = {"open_folder", "summarize", "file_identity", "rmtree", "copyfile", "copytree", "move"}
DESCRIPTORS = {"dir_fd", "src_dir_fd", "dst_dir_fd"}
NO_PATHS = {"Folder", "walks", "tarfile", "gzip", "privates", "PrivateFolders", "OPEN_SANDBOXES"}
"""Names whose methods take no path, or one that the user chose."""

SYSTEM = "the system's own"
CACHE = "in the cache, which is this user's alone"
STATE = "in the state folder, which is this user's alone"
CHOSEN = "named by the caller, for his own use"
WORDS = "only for messages; a file is then opened without following links"
GUEST = "the guest's own path, which `FileOperations` walks by descriptor"
NO_PATH = "no path: an entry of a listing, a descriptor, or another kind of object"
KNOWN = {
    "wasi_files/changes.py:FileChanges.created": NO_PATH,
    "wasi_files/changes.py:FileChanges.wrote": NO_PATH,
    "wasi_files/content.py:ContentOperations.set_times_of_open": NO_PATH,
    "wasi_files/edits.py": NO_PATH,
    "wasi_files/listing.py": NO_PATH,
    "wasi_files/access.py:FileAccess._open": GUEST,
    "wasi_files/calls.py:WasiFiles._path_open": GUEST,
    "wasi_files/copy_up.py:_copy": NO_PATH,
    "wasi_files/opening.py:open_file": SYSTEM,
    "state/image.py": CACHE,
    "state/pages.py": SYSTEM,
    "state/file_restore.py": NO_PATH,
    "state/file_contents.py:FileContents._copy": NO_PATH,
    "state/session_state.py:SessionState.restore_files.changing": NO_PATH,
    "sessions/root.py:SessionsRoot.aliases": NO_PATH,
    "sessions/removal.py:Deleter._private_of": NO_PATH,
    "sessions/archives.py": CHOSEN,
    "state/archive_in.py:ArchiveReader._write": NO_PATH,
    "state/archive_in.py:_MemoryReader._rebased": CACHE,
    "state/archive_out.py:_add_memory": CACHE,
    "sessions/entries.py:remove_left_drafts": NO_PATH,
    "sessions/overview.py:_names": NO_PATH,
    "sessions/pruning.py:_Pruning._names": NO_PATH,
    "sessions/last_use.py:LastUse.executed": NO_PATH,
    "sessions/session.py:session_paths": CACHE,
    "sessions/session.py:_noted_places": STATE,
    "sessions/upkeep.py:_is_gone": WORDS,
    "publishing/writer.py:_copy": NO_PATH,
    "sessions/root.py:SessionsRoot.find": WORDS,
    "sessions/files.py:write_session_file": WORDS,
}
"""The uses of paths, by file or function, and why they are safe."""


def calls(tree: ast.AST, within: str = "") -> Iterator[tuple[str, ast.Call]]:
    """Every call with the name of the function that it stands in."""
    for node in ast.iter_child_nodes(tree):
        inside = within
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = f"{within}.{node.name}".strip(".")
        if isinstance(node, ast.Call):
            yield within, node
        yield from calls(node, inside)


def goes_by_path(call: ast.Call) -> bool:
    """True if a call may be given a path to open, inspect, make or remove."""
    if {keyword.arg for keyword in call.keywords} & DESCRIPTORS:
        return False
    match call.func:
        case ast.Attribute(value=ast.Name(id="os"), attr="listdir" | "scandir"):
            return not (call.args and getattr(call.args[0], "attr", "") == "fd")
        case ast.Attribute(value=ast.Name(id="os"), attr=name):
            return name in BY_OS
        case ast.Attribute(value=ast.Name(id=owner), attr=_) if owner in NO_PATHS:
            return False
        case ast.Attribute(value=ast.Call(func=ast.Name(id=owner))) if owner in NO_PATHS:
            return False
        case ast.Attribute(attr=name):
            return name in BY_PATH
        case ast.Name(id=name):
            return name in OTHERS | {"open"}
    return False


@cache
def by_path(room: str) -> list[tuple[str, str, str]]:
    """The calls by path in a room: the file, the function, and the words of each call."""
    return [
        (name, f"{name}:{function}", ast.unparse(call)[:90])
        for file in python_files(f"{PACKAGE}/{room}")
        for name in [str(file.relative_to(ROOT / PACKAGE))]
        for function, call in calls(tree_of(file))
        if goes_by_path(call)
    ]


@pytest.mark.parametrize("room", ROOMS)
def test_nothing_is_opened_by_path(room: str) -> None:
    found = [
        f"{place} {words}"
        for name, place, words in by_path(room)
        if not {name, place} & KNOWN.keys()
    ]
    assert not found, "\n" + "\n".join(found)


def test_the_check_sees_paths_and_known_uses_still_exist() -> None:
    found = {known for room in ROOMS for name, place, _ in by_path(room) for known in (name, place)}
    assert not KNOWN.keys() - found
    bad = ["os.open(p, 0)", "p.open()", "p.exists()", "open(p)", "os.rename(a, b)", "os.scandir(p)"]
    good = ["os.open(p, 0, dir_fd=3)", "Folder.open(p)", "os.scandir(here.fd)", "text.replace('a')"]
    seen = [goes_by_path(call) for code in bad + good for _, call in calls(ast.parse(code))]
    assert seen == [True] * len(bad) + [False] * len(good)
