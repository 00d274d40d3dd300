"""Which files a session's workspace holds."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from wasm_kernel.linux import walks
from wasm_kernel.sessions.globbing import Pattern
from wasm_kernel.sessions.paths import SessionPathError, entered, resolve
from wasm_kernel.wasi_files.names import is_hidden


def files(workspace: Path, wanted: Pattern | None) -> Iterator[str]:
    """The paths of the files in a workspace that a pattern fits."""
    with walks.opened_folder(workspace) as root:
        for found in walks.entries(root):
            if found.is_folder or is_hidden(found.top) or found.is_deep:
                continue
            parts = (*found.path, found.name)
            if wanted is not None and not wanted.matches(parts):
                continue
            if _is_file(workspace, found.folder, parts):
                yield "/".join(parts)


def _is_file(workspace: Path, folder: int, parts: tuple[str, ...]) -> bool:
    """Whether a name is a file of the session, or a link that leads to one."""
    try:
        mode = os.stat(parts[-1], dir_fd=folder, follow_symlinks=False).st_mode
        if not stat.S_ISLNK(mode):
            return stat.S_ISREG(mode)
        *folders, name = resolve(workspace, parts, "/".join(parts)) or (".",)
        with entered(workspace, folders) as way:
            return stat.S_ISREG(os.stat(name, dir_fd=way.fd, follow_symlinks=False).st_mode)
    except (OSError, SessionPathError):
        return False  # gone meanwhile, or leading nowhere that is the session's
