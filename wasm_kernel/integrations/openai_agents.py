"""A sandbox client for OpenAI's Agents SDK: `SandboxRunConfig(client=WasmSandboxClient())`."""

from __future__ import annotations

import asyncio
import io
import uuid
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, Literal

from agents.sandbox import (
    ExecResult,
    ExecTimeoutError,
    Manifest,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    resolve_snapshot,
)
from agents.sandbox.session import (
    BaseSandboxClient,
    BaseSandboxSession,
    SandboxSession,
    SandboxSessionState,
)

from wasm_kernel.integrations.agent_sandbox import AgentSandbox
from wasm_kernel.integrations.guest_commands import TooLarge, on_thread

_ROOT, _DEFAULT_ROOT = "/app", "/workspace"
_ARCHIVE = "/tmp/.openai-agents.tar"  # noqa: S108 - the guest's folder, not the machine's
_FAILED = 1


class WasmSandboxSessionState(SandboxSessionState):
    """The kept parts of a session: its manifest, and its snapshot, if the run has one."""

    type: Literal["wasm"] = "wasm"


class WasmSandboxSession(BaseSandboxSession):
    """A session of an agent, in a sandbox of its own."""

    def __init__(self, state: WasmSandboxSessionState, agent: AgentSandbox) -> None:
        self.state = state
        self._agent = agent
        self._commands = agent.commands()

    async def _exec_internal(
        self, *command: str | Path, timeout: float | None = None
    ) -> ExecResult:
        words = [str(each) for each in command]
        try:
            run, folder = self._commands.run, self.state.manifest.root
            ran = await on_thread(run, words, folder=folder, seconds=timeout)
        except TimeoutError as problem:
            raise ExecTimeoutError(command=words, timeout_s=timeout, cause=problem) from problem
        except TooLarge as problem:
            ran = CompletedProcess(words, _FAILED, problem.begin, f"{problem}\n".encode())
        return ExecResult(stdout=ran.stdout, stderr=ran.stderr, exit_code=ran.returncode)

    async def read(self, path: Path, *, user: Any = None) -> io.IOBase:
        """Reads a file. Ignores `user`: a sandbox has only one."""
        place = await self._validate_path_access(path)
        try:
            content = await on_thread(self._commands.read, place.as_posix())
        except FileNotFoundError as problem:
            raise WorkspaceReadNotFoundError(path=place, cause=problem) from problem
        except (OSError, TooLarge) as problem:
            raise WorkspaceArchiveReadError(path=place, cause=problem) from problem
        return io.BytesIO(content)

    async def write(self, path: Path, data: io.IOBase, *, user: Any = None) -> None:
        """Writes a file. Ignores `user`: a sandbox has only one."""
        place = await self._validate_path_access(path, for_write=True)
        content = data.read()
        given = content.encode() if isinstance(content, str) else bytes(content)
        try:
            await on_thread(self._commands.write, place.as_posix(), given)
        except OSError as problem:
            raise WorkspaceArchiveWriteError(path=place, cause=problem) from problem

    async def running(self) -> bool:
        """Returns whether the sandbox is open."""
        return not self._agent.sandbox.closed

    async def persist_workspace(self) -> io.IOBase:
        """Returns the files of the session as a tar archive."""
        skipped = [
            f"--exclude=./{each.as_posix()}" for each in self._persist_workspace_skip_relpaths()
        ]
        packed = await self.exec("tar", "cf", _ARCHIVE, *skipped, ".", shell=False)
        if not packed.ok():
            raise WorkspaceArchiveReadError(
                path=self._workspace_root_path(), context={"stderr": packed.stderr.decode()}
            )
        return io.BytesIO(await on_thread(self._commands.read, _ARCHIVE))

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Unpacks an archive of `persist_workspace`."""
        content = data.read()
        await on_thread(self._commands.write, _ARCHIVE, content)
        unpacked = await self.exec("tar", "xf", _ARCHIVE, shell=False)
        if not unpacked.ok():
            raise WorkspaceArchiveWriteError(
                path=self._workspace_root_path(), context={"stderr": unpacked.stderr.decode()}
            )

    async def _shutdown_backend(self) -> None:
        await asyncio.to_thread(self._agent.close)


class WasmSandboxClient(BaseSandboxClient[None]):
    """Makes a sandbox for each session of an agent; its files lie in `/app`.

    Args:
        options: The options of `create_sandbox` for each, such as `policy`.
    """

    backend_id = "wasm"
    supports_default_options = True

    def __init__(self, **options: Any) -> None:
        self._options = options

    async def create(
        self, *, snapshot: Any = None, manifest: Manifest | None = None, options: None = None
    ) -> SandboxSession:
        """Makes a session."""
        found = self._validate_manifest_for_create(manifest or Manifest(root=_ROOT))
        if found.root == _DEFAULT_ROOT:
            found = found.model_copy(update={"root": _ROOT})
        name = uuid.uuid4()
        state = WasmSandboxSessionState(
            session_id=name, manifest=found, snapshot=resolve_snapshot(snapshot, str(name))
        )
        return await self._open(state)

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """Makes a session with the files of an earlier one's snapshot."""
        assert isinstance(state, WasmSandboxSessionState)
        state.assert_path_grants_rebound()
        state.workspace_root_ready = False
        return await self._open(state)

    async def _open(self, state: WasmSandboxSessionState) -> SandboxSession:
        agent = await asyncio.to_thread(AgentSandbox, None, self._options)
        return self._wrap_session(WasmSandboxSession(state, agent))

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """Ends a session, and deletes its files."""
        await session._inner.shutdown()
        return session

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        """Returns the state of a session that was kept as JSON."""
        return self._deserialize_session_state_payload(payload, WasmSandboxSessionState)
