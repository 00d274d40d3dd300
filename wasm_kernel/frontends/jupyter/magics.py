"""What a kernel does for the magics of its session: say where files lie and which walls stand,
prune other sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.events import SandboxLogger
from wasm_kernel.execution.errands import Caller, switched_off
from wasm_kernel.linux.broker import Duty, Porter, Stopped, Tell
from wasm_kernel.linux.confinement import ConfinementState
from wasm_kernel.sessions.prune_errand import OFF, Prune, pruner, pruning

if TYPE_CHECKING:
    from wasm_kernel.execution.face import Sandbox

PRUNE = "prune sessions"


def offer(
    sandbox: Sandbox,
    walls: Callable[[], ConfinementState],
    prune: Prune | None,
    logger: SandboxLogger,
) -> None:
    """Let the kernel's cells ask.

    Args:
        sandbox: The kernel's own.
        walls: The walls around the kernel's process, as they stand now.
        prune: Prunes sessions; None where the kernel was told not to.
        logger: Hears of the pruning.
    """
    sandbox.facts.add(lambda: {"confinement": _told(walls())})
    sandbox.errands.offer("session_path", lambda _, caller: _say_path(sandbox.workspace, caller))
    errand = switched_off(OFF) if prune is None else pruning(prune, logger)
    sandbox.errands.offer("prune_sessions", errand)


def _say_path(workspace: Path, caller: Caller) -> None:
    """The host tells its user; what the guest gets back is nothing."""
    caller.say(f"{workspace}\n")


def _told(walls: ConfinementState) -> str:
    return f"files: {walls.files}; system calls: {walls.calls}"


def prune_duty(root: Path, private_root: Path | None = None) -> Duty:
    """The porter's duty: prune the sessions in `root`, and none elsewhere."""

    def duty(fields: Mapping[str, Any], tell: Tell, stopped: Stopped) -> Mapping[str, Any]:
        hours = fields.get("hours")
        if not isinstance(hours, int | float) or isinstance(hours, bool):
            raise WasmKernelError("there is no number of hours. Nothing was deleted.")
        prune = pruner(root, private_root)
        return prune(hours, fields.get("dry_run") is not False, tell, stopped)

    return duty


def through(porter: Porter) -> Prune:
    """A `Prune` that has the porter do it."""

    def prune(hours: float, dry_run: bool, tell: Tell, stopped: Stopped) -> Mapping[str, Any]:
        return porter.ask(PRUNE, {"hours": hours, "dry_run": dry_run}, tell, stopped)

    return prune
