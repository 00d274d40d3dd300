"""A Jupyter kernel whose cells run inside a WebAssembly sandbox.

The public names are loaded at their first use: importing this package loads neither wasmtime nor
Jupyter.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # importing `typing` takes longer than all other work of a launcher
if TYPE_CHECKING:
    from wasm_kernel.errors import BundleError as BundleError
    from wasm_kernel.errors import CacheWarning as CacheWarning
    from wasm_kernel.errors import CellTimeout as CellTimeout
    from wasm_kernel.errors import CompileError as CompileError
    from wasm_kernel.errors import ForkError as ForkError
    from wasm_kernel.errors import FrameError as FrameError
    from wasm_kernel.errors import GuestClosed as GuestClosed
    from wasm_kernel.errors import GuestCrashed as GuestCrashed
    from wasm_kernel.errors import GuestExited as GuestExited
    from wasm_kernel.errors import GuestStopped as GuestStopped
    from wasm_kernel.errors import HistoryError as HistoryError
    from wasm_kernel.errors import HostFailed as HostFailed
    from wasm_kernel.errors import ImageError as ImageError
    from wasm_kernel.errors import Interrupted as Interrupted
    from wasm_kernel.errors import LimitReached as LimitReached
    from wasm_kernel.errors import NeverBegan as NeverBegan
    from wasm_kernel.errors import OutOfDescriptors as OutOfDescriptors
    from wasm_kernel.errors import OutOfFuel as OutOfFuel
    from wasm_kernel.errors import OutOfMemory as OutOfMemory
    from wasm_kernel.errors import PackageError as PackageError
    from wasm_kernel.errors import PolicyError as PolicyError
    from wasm_kernel.errors import SandboxClosed as SandboxClosed
    from wasm_kernel.errors import SessionInUse as SessionInUse
    from wasm_kernel.errors import StackExhausted as StackExhausted
    from wasm_kernel.errors import TravelError as TravelError
    from wasm_kernel.errors import WasmKernelError as WasmKernelError
    from wasm_kernel.errors import WorkerLost as WorkerLost
    from wasm_kernel.events import SandboxLogger as SandboxLogger
    from wasm_kernel.execution.interfaces import Listener as Listener
    from wasm_kernel.execution.interfaces import NoListener as NoListener
    from wasm_kernel.folders.hiding import OverlapError as OverlapError
    from wasm_kernel.folders.places import PrivateFolderError as PrivateFolderError
    from wasm_kernel.frontends.batch.grading import Grade as Grade
    from wasm_kernel.frontends.batch.grading import TestGrade as TestGrade
    from wasm_kernel.frontends.batch.grading import grade_notebooks as grade_notebooks
    from wasm_kernel.frontends.batch.outcome import BatchError as BatchError
    from wasm_kernel.frontends.batch.outcome import BatchStopped as BatchStopped
    from wasm_kernel.frontends.batch.outcome import Budgets as Budgets
    from wasm_kernel.frontends.batch.outcome import Outcome as Outcome
    from wasm_kernel.frontends.batch.runner import run_notebooks as run_notebooks
    from wasm_kernel.guests.protocol import Stream as Stream
    from wasm_kernel.linux.folders import PlantedLinkError as PlantedLinkError
    from wasm_kernel.policy import ExecutionPolicy as ExecutionPolicy
    from wasm_kernel.policy import Mount as Mount
    from wasm_kernel.policy import RuntimeType as RuntimeType
    from wasm_kernel.result import CellError as CellError
    from wasm_kernel.result import Checkpoint as Checkpoint
    from wasm_kernel.result import SandboxResult as SandboxResult
    from wasm_kernel.result import Travelled as Travelled
    from wasm_kernel.service.async_session import AsyncSession as AsyncSession
    from wasm_kernel.service.cell_future import CellFuture as CellFuture
    from wasm_kernel.service.create import create_sandbox as create_sandbox
    from wasm_kernel.service.create_session import create_session_sandbox as create_session_sandbox
    from wasm_kernel.service.create_session import get_session_sandbox as get_session_sandbox
    from wasm_kernel.service.host_function import HostFunction as HostFunction
    from wasm_kernel.service.limits import ServiceLimits as ServiceLimits
    from wasm_kernel.service.registry import SessionInfo as SessionInfo
    from wasm_kernel.service.sandbox import BaseSandbox as BaseSandbox
    from wasm_kernel.service.sandbox import Sandbox as Sandbox
    from wasm_kernel.service.service import AsyncService as AsyncService
    from wasm_kernel.service.service import Service as Service
    from wasm_kernel.sessions.archives import export_session as export_session
    from wasm_kernel.sessions.archives import import_session as import_session
    from wasm_kernel.sessions.files import delete_session_path as delete_session_path
    from wasm_kernel.sessions.files import list_session_files as list_session_files
    from wasm_kernel.sessions.files import read_session_file as read_session_file
    from wasm_kernel.sessions.files import write_session_file as write_session_file
    from wasm_kernel.sessions.ids import SessionIdError as SessionIdError
    from wasm_kernel.sessions.paths import SessionPathError as SessionPathError
    from wasm_kernel.sessions.pruning import NoWorkspaceRoot as NoWorkspaceRoot
    from wasm_kernel.sessions.pruning import PruneError as PruneError
    from wasm_kernel.sessions.pruning import PruneResult as PruneResult
    from wasm_kernel.sessions.pruning import prune_sessions as prune_sessions
    from wasm_kernel.sessions.removal import delete_session_workspace as delete_session_workspace
    from wasm_kernel.sessions.root import WorkspaceError as WorkspaceError
    from wasm_kernel.sessions.staging import SessionExists as SessionExists
    from wasm_kernel.state.archive_in import Imported as Imported
    from wasm_kernel.state.archive_out import Exported as Exported
    from wasm_kernel.state.tar import ArchiveError as ArchiveError

__version__ = "0.1.0"

_NAMES = {  # the public names by module
    "errors": (
        "BundleError CacheWarning CellTimeout CompileError ForkError FrameError GuestClosed "
        "GuestCrashed GuestExited GuestStopped HistoryError HostFailed ImageError Interrupted "
        "LimitReached NeverBegan OutOfDescriptors OutOfFuel OutOfMemory PackageError PolicyError "
        "SandboxClosed SessionInUse StackExhausted TravelError WasmKernelError WorkerLost"
    ),
    "events": "SandboxLogger",
    "execution.interfaces": "Listener NoListener",
    "folders.hiding": "OverlapError",
    "folders.places": "PrivateFolderError",
    "frontends.batch.grading": "Grade TestGrade grade_notebooks",
    "frontends.batch.outcome": "BatchError BatchStopped Budgets Outcome",
    "frontends.batch.runner": "run_notebooks",
    "guests.protocol": "Stream",
    "linux.folders": "PlantedLinkError",
    "policy": "ExecutionPolicy Mount RuntimeType",
    "result": "CellError Checkpoint SandboxResult Travelled",
    "service.async_session": "AsyncSession",
    "service.cell_future": "CellFuture",
    "service.sandbox": "BaseSandbox Sandbox",
    "service.registry": "SessionInfo",
    "service.host_function": "HostFunction",
    "service.limits": "ServiceLimits",
    "service.service": "AsyncService Service",
    "sessions.archives": "export_session import_session",
    "sessions.ids": "SessionIdError",
    "service.create": "create_sandbox",
    "service.create_session": "create_session_sandbox get_session_sandbox",
    "sessions.paths": "SessionPathError",
    "sessions.pruning": "NoWorkspaceRoot PruneError PruneResult prune_sessions",
    "sessions.removal": "delete_session_workspace",
    "sessions.root": "WorkspaceError",
    "sessions.staging": "SessionExists",
    "state.archive_in": "Imported",
    "state.archive_out": "Exported",
    "state.tar": "ArchiveError",
    "sessions.files": (
        "delete_session_path list_session_files read_session_file write_session_file"
    ),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_HOMES)  # noqa: PLE0605 - computed, so that no name is left out


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
