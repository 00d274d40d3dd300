"""A sandbox for AG2's tools: `SandboxCodeTool(WasmEnvironment())`, `SandboxShellTool(...)`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import PurePosixPath
from typing import Any

from ag2.tools.sandbox import ExecResult, SandboxBase

from wasm_kernel import Sandbox
from wasm_kernel.integrations.agent_sandbox import AgentSandbox
from wasm_kernel.integrations.guest_commands import TooLarge, on_thread

_TIMED_OUT = 124  # the exit status that AG2 asks for


class WasmEnvironment(SandboxBase):
    """Runs the code and the commands of an agent's tools; files last from call to call.

    Use it as an `async with` block, or await `aclose`. AG2 runs each piece of code as a program of
    its own, so variables end with it.

    `sandbox` and `options` are those of `AgentSandbox`.
    """

    def __init__(self, sandbox: Sandbox | None = None, **options: Any) -> None:
        self._agent = AgentSandbox(sandbox, options)
        self._commands = self._agent.commands()

    def __deepcopy__(self, memo: object) -> WasmEnvironment:
        """Returns itself: AG2 copies the tools of an agent."""
        return self

    @property
    def workdir(self) -> PurePosixPath:
        """The folder that commands run in."""
        return PurePosixPath("/app")

    @property
    def host_workdir(self) -> None:
        """None: AG2 would otherwise read the folder's files, and follow their links."""
        return None

    @asynccontextmanager
    async def open(self, context: object = None) -> AsyncIterator[WasmEnvironment]:
        """Gives a tool the sandbox for a call; it stays open."""
        yield self

    async def exec(
        self, argv: list[str], *, env: dict[str, str] | None = None, timeout: float | None = None
    ) -> ExecResult:
        """Runs a command, whose errors follow its output."""
        try:
            run = self._commands.run
            ran = await on_thread(run, argv, environment=env, seconds=timeout)
        except TimeoutError as problem:
            return ExecResult(str(problem), _TIMED_OUT)
        except TooLarge as problem:
            return ExecResult(f"{problem.begin.decode(errors='replace')}\n[{problem}]", 1)
        shown = (ran.stdout + ran.stderr).decode(errors="replace")
        return ExecResult(shown.strip(), ran.returncode)

    async def put_file(self, path: PurePosixPath, content: bytes) -> None:
        """Writes a file below the folder that commands run in."""
        if path.is_absolute():
            raise ValueError(f"the path is relative to {self.workdir}, not {path}")
        place = str(self.workdir / path)
        await on_thread(self._commands.write, place, content)

    async def aclose(self) -> None:
        """Closes a sandbox of its own, and deletes its folder. Safe to call twice."""
        await asyncio.to_thread(self._agent.close)
