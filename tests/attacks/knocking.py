"""Commands that only workers of tests have: `%knock` leaves a line in `/app/knocked`, and `%wait`
takes some seconds. `%ask` makes that many requests to the owner. No cell begins while there is a
file `/app/busy`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

from tests.faults import Fault
from wasm_kernel.errors import WasmKernelError
from wasm_kernel.execution.session_guest import SessionGuest
from wasm_kernel.guests.base import ActionContext, CommandContext, CommandLine
from wasm_kernel.guests.broker_handlers import PrepareCodec
from wasm_kernel.linux.broker import EmptyReply
from wasm_kernel.linux.task import Cancelled
from wasm_kernel.service.worker import _Worker

MAGICS = """
from IPython.core.magic import no_var_expand, register_line_magic
from wasm_kernel_agent.host import run_host_command
@register_line_magic
@no_var_expand
def knock(line):
    return run_host_command(get_ipython(), "knock", line)
@register_line_magic
def wait(line):
    return run_host_command(get_ipython(), "wait", line)
@register_line_magic
def ask(line):
    return run_host_command(get_ipython(), "ask", line)
del knock, wait, ask  # they would hide the magics where these stand without a percent sign
"""


class _Busy:
    """Lets a cell wait while there is a file, until it is cancelled."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def cell_begins(self, context: ActionContext) -> None:
        while self._file.exists() and not context.cancelled:
            time.sleep(0.001)

    def files_changed(self, paths: Collection[str], context: ActionContext) -> None:
        """Does nothing."""


def add_commands(guest: SessionGuest) -> None:
    """Adds the commands to a worker's guest; a cell with `MAGICS` adds the magics."""

    def knock(line: CommandLine, context: CommandContext) -> int:
        with (guest.folders.real / "knocked").open("a+") as lines:
            lines.write(f"{line.line}\n")
            lines.seek(0)
            context.say(f"knocked {line.line}\n")
            return len(lines.readlines())

    def wait(line: CommandLine, context: CommandContext) -> None:
        end = time.monotonic() + float(line.line)
        while time.monotonic() < end:
            if context.cancelled:
                raise Cancelled
            time.sleep(0.01)

    def ask(line: CommandLine, context: CommandContext) -> list[str]:
        told: Counter[str] = Counter()
        for _ in range(int(line.line)):
            try:
                context.broker.call(PrepareCodec("none", "unchecked"), EmptyReply, context)
            except WasmKernelError as problem:
                told[str(problem)] += 1
        return [f"{count} times: {why}" for why, count in told.items()]

    guest.commands.add("ask", ask)
    guest.commands.add("knock", knock)
    guest.commands.add("wait", wait)
    guest.commands.listener = _Busy(guest.folders.real / "busy")


def arm(fault: Fault) -> None:
    """Lets workers have the commands."""
    patched: Any = _Worker
    before = patched._add_commands

    def add(worker: _Worker, *args: Any) -> None:
        before(worker, *args)
        add_commands(worker._guest)

    patched._add_commands = add
