"""Sessions: their folders, their files, their lifecycle.

The public functions can be imported from here as well as from `wasm_kernel`; each is loaded at its
first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wasm_kernel import create_session_sandbox, get_session_sandbox
    from wasm_kernel.sessions.archives import export_session, import_session
    from wasm_kernel.sessions.files import (
        delete_session_path,
        list_session_files,
        read_session_file,
        write_session_file,
    )
    from wasm_kernel.sessions.pruning import PruneResult, prune_sessions
    from wasm_kernel.sessions.removal import delete_session_workspace

__all__ = [
    "PruneResult",
    "create_session_sandbox",
    "delete_session_path",
    "delete_session_workspace",
    "export_session",
    "get_session_sandbox",
    "import_session",
    "list_session_files",
    "prune_sessions",
    "read_session_file",
    "write_session_file",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module("wasm_kernel"), name)
    globals()[name] = value
    return value
