"""A Jupyter kernel whose cells run inside a WebAssembly sandbox.

The public names, each loaded when it is first asked for: importing this package loads neither
wasmtime nor Jupyter.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wasm_kernel.errors import (
        BundleError,
        CacheWarning,
        CellTimeout,
        CompileError,
        ForkError,
        FrameError,
        GuestClosed,
        GuestCrashed,
        GuestExited,
        GuestStopped,
        HistoryError,
        HostFailed,
        ImageError,
        Interrupted,
        NeverBegan,
        OutOfFuel,
        PackageError,
        PolicyError,
        SandboxClosed,
        SessionInUse,
        StackExhausted,
        TravelError,
        WasmKernelError,
    )
    from wasm_kernel.events import SandboxLogger
    from wasm_kernel.execution.create import create_sandbox
    from wasm_kernel.execution.offer import offer_pip
    from wasm_kernel.execution.sandbox import BaseSandbox
    from wasm_kernel.folders.claim import Resume
    from wasm_kernel.folders.overlap import OverlapError
    from wasm_kernel.folders.private import PrivateFolderError
    from wasm_kernel.linux.folders import PlantedLinkError
    from wasm_kernel.policy import ExecutionPolicy, Mount, RuntimeType
    from wasm_kernel.result import (
        CellError,
        Checkpoint,
        PruneResult,
        SandboxResult,
        Travelled,
    )
    from wasm_kernel.sessions.archive import Exported, export_session
    from wasm_kernel.sessions.arrival import Imported, SessionExists, import_session
    from wasm_kernel.sessions.ids import SessionIdError
    from wasm_kernel.sessions.lifecycle import (
        create_session_sandbox,
        delete_session_workspace,
        get_session_sandbox,
    )
    from wasm_kernel.sessions.paths import SessionPathError
    from wasm_kernel.sessions.pruning import NoWorkspaceRoot, PruneError, prune_sessions
    from wasm_kernel.sessions.session import WorkspaceError
    from wasm_kernel.sessions.tarball import ArchiveError
    from wasm_kernel.sessions.workspace import (
        delete_session_path,
        list_session_files,
        read_session_file,
        write_session_file,
    )

__version__ = "0.1.0"

__all__ = [
    "ArchiveError",
    "BaseSandbox",
    "BundleError",
    "CacheWarning",
    "CellError",
    "CellTimeout",
    "Checkpoint",
    "CompileError",
    "ExecutionPolicy",
    "Exported",
    "ForkError",
    "FrameError",
    "GuestClosed",
    "GuestCrashed",
    "GuestExited",
    "GuestStopped",
    "HistoryError",
    "HostFailed",
    "ImageError",
    "Imported",
    "Interrupted",
    "Mount",
    "NeverBegan",
    "NoWorkspaceRoot",
    "OutOfFuel",
    "OverlapError",
    "PackageError",
    "PlantedLinkError",
    "PolicyError",
    "PrivateFolderError",
    "PruneError",
    "PruneResult",
    "Resume",
    "RuntimeType",
    "SandboxClosed",
    "SandboxLogger",
    "SandboxResult",
    "SessionExists",
    "SessionIdError",
    "SessionInUse",
    "SessionPathError",
    "StackExhausted",
    "TravelError",
    "Travelled",
    "WasmKernelError",
    "WorkspaceError",
    "create_sandbox",
    "create_session_sandbox",
    "delete_session_path",
    "delete_session_workspace",
    "export_session",
    "get_session_sandbox",
    "import_session",
    "list_session_files",
    "offer_pip",
    "prune_sessions",
    "read_session_file",
    "write_session_file",
]

_HOMES = {
    "ArchiveError": "wasm_kernel.sessions.tarball",
    "BaseSandbox": "wasm_kernel.execution.sandbox",
    "CellError": "wasm_kernel.result",
    "Checkpoint": "wasm_kernel.result",
    "ExecutionPolicy": "wasm_kernel.policy",
    "Exported": "wasm_kernel.sessions.archive",
    "Imported": "wasm_kernel.sessions.arrival",
    "Mount": "wasm_kernel.policy",
    "OverlapError": "wasm_kernel.folders.overlap",
    "PlantedLinkError": "wasm_kernel.linux.folders",
    "PrivateFolderError": "wasm_kernel.folders.private",
    "NoWorkspaceRoot": "wasm_kernel.sessions.pruning",
    "PruneError": "wasm_kernel.sessions.pruning",
    "PruneResult": "wasm_kernel.result",
    "Resume": "wasm_kernel.folders.claim",
    "RuntimeType": "wasm_kernel.policy",
    "SandboxLogger": "wasm_kernel.events",
    "SandboxResult": "wasm_kernel.result",
    "SessionExists": "wasm_kernel.sessions.arrival",
    "SessionIdError": "wasm_kernel.sessions.ids",
    "SessionPathError": "wasm_kernel.sessions.paths",
    "WorkspaceError": "wasm_kernel.sessions.session",
    "Travelled": "wasm_kernel.result",
    "create_sandbox": "wasm_kernel.execution.create",
    "create_session_sandbox": "wasm_kernel.sessions.lifecycle",
    "delete_session_path": "wasm_kernel.sessions.workspace",
    "delete_session_workspace": "wasm_kernel.sessions.lifecycle",
    "export_session": "wasm_kernel.sessions.archive",
    "get_session_sandbox": "wasm_kernel.sessions.lifecycle",
    "import_session": "wasm_kernel.sessions.arrival",
    "list_session_files": "wasm_kernel.sessions.workspace",
    "offer_pip": "wasm_kernel.execution.offer",
    "prune_sessions": "wasm_kernel.sessions.pruning",
    "read_session_file": "wasm_kernel.sessions.workspace",
    "write_session_file": "wasm_kernel.sessions.workspace",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES.get(name, "wasm_kernel.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
