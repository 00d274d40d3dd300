"""Sandboxes for Inspect: `Task(..., sandbox="wasm")`, with one for each sample.

`wasm-kernel` registers it with Inspect as a plug-in, so that nothing has to be imported.
"""

from __future__ import annotations

import posixpath
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import anyio
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import override

from wasm_kernel import ExecutionPolicy, Sandbox, Service, WasmKernelError
from wasm_kernel.integrations.guest_commands import GuestCommands, TooLarge, on_thread
from wasm_kernel.integrations.results import error_text

_FOLDER, _PREPARED = "/app", "as the sample began"
T = TypeVar("T")


class WasmSandboxConfig(BaseModel, frozen=True):
    """The sandboxes of a task: `SandboxEnvironmentSpec("wasm", WasmSandboxConfig(...))`.

    Attributes:
        prepare: A cell of Python that runs once. Each sample's sandbox begins with its files.
        policy: Fields of `ExecutionPolicy` by name, such as `memory_bytes`.
    """

    model_config = ConfigDict(extra="forbid")
    prepare: str = ""
    policy: dict[str, Any] = Field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(self.model_dump_json())


class _Prepared:
    """The service of a configuration, with the session that samples' sessions are forked from."""

    def __init__(self, config: WasmSandboxConfig) -> None:
        self.users = 0
        policy = ExecutionPolicy(**config.policy)
        self._folder = tempfile.mkdtemp(prefix="wasm-kernel-inspect-")
        # within the folder, as private state may lie beside the sessions
        self.service = Service(Path(self._folder, "sessions"), policy=policy)
        self._parent = self.service.create()
        if (failed := self._parent.execute(config.prepare)).error is not None:
            self.close()
            raise RuntimeError(f"the cell that prepares sandboxes failed: {error_text(failed)}")
        self._parent.checkpoint(_PREPARED)

    def fork(self) -> Sandbox:
        """Returns the sandbox of a new sample."""
        return self._parent.fork()[0]

    def close(self) -> None:
        """Ends all sandboxes, and deletes their folder."""
        self.service.close()
        shutil.rmtree(self._folder, ignore_errors=True)


_prepared: dict[WasmSandboxConfig, _Prepared] = {}
_preparing = anyio.Lock()


@sandboxenv(name="wasm")
class WasmSandboxEnvironment(SandboxEnvironment):
    """The sandbox of a sample, whose commands run in the shell of a WebAssembly guest.

    Each command finds the session's files, and a Python in which nothing has run but the cell that
    prepared it: what an agent's code changes in the interpreter reaches no later command.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        super().__init__()
        self.sandbox = sandbox
        self._commands = GuestCommands(sandbox, _PREPARED)

    @override
    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Runs a command; it is not tried again after a timeout.

        Raises:
            TimeoutError: it takes longer than `timeout`.
            OutputLimitExceededError: it prints more than Inspect allows.
            SandboxUserUnsupportedError: there is a `user`; a sandbox has one alone.
            SandboxUnavailableError: the sandbox can't be started.
        """
        if user is not None:
            raise SandboxUserUnsupportedError(f"this sandbox has one user, and no {user!r}")
        most = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        given = input.encode() if isinstance(input, str) else input or b""

        def run() -> ExecResult[str]:
            ran = self._commands.run(
                cmd,
                stdin=given,
                folder=posixpath.join(_FOLDER, cwd or ""),
                environment=env,
                seconds=timeout or None,
                most_bytes=most,
            )
            stdout, stderr = (each.decode(errors="replace") for each in (ran.stdout, ran.stderr))
            return ExecResult(ran.returncode == 0, ran.returncode, stdout, stderr)

        return await self._call(run, SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Writes a file, and makes the folders that are missing."""
        content = contents.encode() if isinstance(contents, str) else contents
        path = posixpath.join(_FOLDER, file)
        await self._call(lambda: self._commands.write(path, content))

    async def read_file(self, file: str, text: bool = True) -> Any:
        """Reads a file, as text or bytes."""
        path, most = posixpath.join(_FOLDER, file), SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR
        content = await self._call(lambda: self._commands.read(path, most), limit)
        return content.decode() if text else content

    async def _call(self, work: Callable[[], T], limit: str = "") -> T:
        """Does work on a thread of its own; cancelling it interrupts its command."""
        try:
            return await on_thread(work)
        except TooLarge as problem:
            begin = problem.begin.decode(errors="replace")
            raise OutputLimitExceededError(limit, begin) from None
        except WasmKernelError as problem:
            raise SandboxUnavailableError(str(problem)) from problem

    async def connection(self, *, user: str | None = None) -> Any:
        """Raises `NotImplementedError`: there is nothing to log in to."""
        raise NotImplementedError("a WebAssembly sandbox has no terminal; use exec and read_file")

    @override
    @classmethod
    async def task_init(cls, task_name: str, config: Any) -> None:
        """Prepares the session from which the samples' sessions are forked."""
        async with _preparing:
            settings = _settings(config)
            if settings not in _prepared:
                _prepared[settings] = await on_thread(_Prepared, settings)
            _prepared[settings].users += 1

    @override
    @classmethod
    async def sample_init(
        cls, task_name: str, config: Any, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Returns the sandbox of a sample: a fork of the prepared session."""
        prepared = _prepared[_settings(config)]
        return {"default": cls(await on_thread(prepared.fork))}

    @override
    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: Any,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Deletes the sandbox of a sample."""
        prepared = _prepared[_settings(config)]
        for each in environments.values():
            name = cast(WasmSandboxEnvironment, each).sandbox.session_id
            await on_thread(prepared.service.delete, name)

    @override
    @classmethod
    async def task_cleanup(cls, task_name: str, config: Any, cleanup: bool) -> None:
        """Ends the sandboxes of a task, and deletes their files, also without `cleanup`."""
        async with _preparing:
            key = _settings(config)
            _prepared[key].users -= 1
            if _prepared[key].users == 0:
                await on_thread(_prepared.pop(key).close)

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """Returns the configuration that a log holds."""
        return WasmSandboxConfig(**config)


def _settings(config: Any) -> WasmSandboxConfig:
    """Returns a configuration; a text is the name of a file with the cell that prepares."""
    if isinstance(config, str):
        return WasmSandboxConfig(prepare=Path(config).read_text(encoding="utf-8"))
    return config or WasmSandboxConfig()
