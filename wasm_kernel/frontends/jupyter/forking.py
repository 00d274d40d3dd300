"""`%fork`: another session that begins where the running cell ends.

Memory can't be kept in the midst of a cell. So the cell is told the new session's id at once, and
the fork is made when it is over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wasm_kernel.errors import WasmKernelError
from wasm_kernel.execution.errands import Caller, Errand, ErrandRefused
from wasm_kernel.guests.base import CommandLine
from wasm_kernel.linux.task import QUIET, CallbackTask, Task
from wasm_kernel.sessions import ids

if TYPE_CHECKING:
    from wasm_kernel.execution.sandbox import BaseSandbox
    from wasm_kernel.execution.wishes import Say
    from wasm_kernel.linux.broker import Duty, Porter, Stopped, Tell
    from wasm_kernel.sessions.founding import Founding

FORK = "fork"
Made = Callable[[str], None]
_SAID = (
    "Session {id} begins with the variables and files that this cell leaves.\n"
    "Open it as a kernel with --WasmKernel.session_id={id}\n"
    "or from Python with get_session_sandbox({id!r}, workspace_root=...), which takes the folder "
    "in WasmKernel.workspace_root.\n"
)
_NOT_MADE = "[wasm-kernel] Session {id} was not made: {why}\n"
_LOST = "the cell did not come to its end."


class PromisedFork:
    """A fork that is made when the cell is over. The guest's thread owns it."""

    def __init__(
        self, sandbox: BaseSandbox, founding: Founding, made: Made, *, deterministic: bool
    ) -> None:
        self._sandbox = sandbox
        self._founding = founding
        self._made = made
        self._deterministic = deterministic
        self.id = ids.new()

    def keep(self, say: Say, stopped: Stopped) -> None:
        """Make it; `say` tells what went wrong."""
        try:
            with self._sandbox.plan_fork(deterministic=self._deterministic) as plan:
                say(self._founding.fork(self.id, plan.as_json(), CallbackTask(say, stopped)))
                self._made(self.id)
        except WasmKernelError as problem:
            say(_NOT_MADE.format(id=self.id, why=problem))

    def break_off(self, say: Say) -> None:
        """The guest was lost: there is no end of the cell to begin at."""
        say(_NOT_MADE.format(id=self.id, why=_LOST))


def fork_errand(sandbox: BaseSandbox, founding: Founding, made: Made) -> Errand:
    """What `%fork [--deterministic]` does: the new session's id, and words for the cell's author.

    Args:
        sandbox: The kernel's.
        founding: Who makes the session.
        made: Hears of its id when it is made.
    """

    def fork(order: CommandLine, _: Caller) -> Mapping[str, str]:
        words = order.line.split()
        if words not in ([], ["--deterministic"]):
            raise ErrandRefused(
                "%fork takes no words but --deterministic, which keeps the state of generators of "
                "random numbers."
            )
        sandbox.check_fork()
        promised = PromisedFork(sandbox, founding, made, deterministic=bool(words))
        sandbox.promise(promised)
        return {"id": promised.id, "said": _SAID.format(id=promised.id)}

    return fork


class Outside:
    """Has sessions made by the porter, from within the walls."""

    def __init__(self, porter: Porter) -> None:
        self._porter = porter

    def fork(self, session_id: str, plan: Mapping[str, Any], task: Task = QUIET) -> str:
        """As `Founding` has it."""
        fields = {"id": session_id, "plan": plan}
        return str(self._porter.ask(FORK, fields, stopped=lambda: task.cancelled)["told"])


def forking(root: Path, parent: str, private_root: Path | None = None) -> Duty:
    """The porter's duty: to fork one session, which is named from outside.

    Whoever asks can have copies made of it, and of nothing else.
    """

    def fork(fields: Mapping[str, Any], _: Tell, stopped: Stopped) -> Mapping[str, Any]:
        from wasm_kernel.sessions.founding import Founder

        founder = Founder(root, parent, private_root=private_root)
        return {
            "told": founder.fork(
                str(fields["id"]), fields["plan"], CallbackTask(lambda text: None, stopped)
            )
        }

    return fork
