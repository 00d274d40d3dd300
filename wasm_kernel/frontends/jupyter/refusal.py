"""The refusal of a kernel: the reason, and a sandbox without a worker, which says so in each cell.

If a kernel ends while it starts, its front end shows "Connecting" and starts it again; the user
never learns which setting was wrong. So the process stays, opens nothing, and answers.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Never

from traitlets import TraitError
from traitlets.config import Application

from wasm_kernel.errors import PolicyError, WasmKernelError, describe, out_of_threads
from wasm_kernel.events import SandboxLogger
from wasm_kernel.kernels import config_files
from wasm_kernel.kernels.settings import ROOT_ENVIRONMENT, SECTION, connection_path
from wasm_kernel.linux.confinement import OFF
from wasm_kernel.policy import ExecutionPolicy, RuntimeType
from wasm_kernel.service.open_message import Open, plain_policy
from wasm_kernel.service.sandbox import Sandbox
from wasm_kernel.service.sandbox_home import SandboxHome
from wasm_kernel.service.session_worker import SessionWorker

_UNREAD = (
    "a module can't be imported ({why}), and no kernel was started. Either the installation is not "
    "complete (`wasm-kernel doctor` says more), or the module lies beside the notebook or in your "
    "home folder, which the kernel gives up: then leave that folder out of PYTHONPATH, or start "
    "with WasmKernel.confinement=off."
)
_COMMAND_LINE = "The kernel's command line can't be read; its log says what is wrong with it."
_INTERNAL = "The kernel could not be started: internal error; its log says more."
_UNTIL_THEN = (
    " Until that is corrected, no cell runs. Then shut this kernel down and start it anew: a "
    "restart may keep the old command line."
)
_NAMED = re.compile(rf"{SECTION}\.(\w+)|'(\w+)' trait|(\w+_\w+)")


class KernelNotStarted(WasmKernelError):
    """No session was opened; the text says why, where the setting is, and what to do."""


# -- the reason


def reason(problem: BaseException, app: Application) -> str:
    """Returns sentences that say why a kernel could not be started."""
    match problem:
        case SystemExit():
            return _COMMAND_LINE
        case ImportError():
            return _UNREAD.format(why=str(problem).partition(" (/")[0])  # without its path
        case WasmKernelError() | TraitError():
            told = str(problem)
            return f"{told}{'' if told.endswith(('.', '?')) else '.'}{_where_set(problem, app)}"
        case OSError():
            return f"The kernel could not be started: {describe(problem)}."
        case RuntimeError() if "new thread" in str(problem):
            return str(out_of_threads())
    logging.getLogger("wasm_kernel").error("the kernel could not be started", exc_info=problem)
    return _INTERNAL


def _where_set(problem: BaseException, app: Application) -> str:
    """Returns a sentence on where the setting of an error was set; empty if it names none."""
    text = str(problem).replace("session id", "session_id")
    named = {"".join(found) for found in _NAMED.findall(text)}
    if isinstance(problem, PolicyError) and not problem.where:
        named.add(problem.field)
    if named & set(app.cli_config.get(SECTION, {})):
        return " The setting stands on the kernel's command line, the argv of its kernelspec."
    if there := named & set(app.config.get(SECTION, {})):
        place = config_files.place_of(there, app.loaded_config_files)
        return f" The setting stands in {place}."
    if "workspace_root" in named and ROOT_ENVIRONMENT in os.environ:
        return f" The setting comes from the environment variable {ROOT_ENVIRONMENT}."
    return ""


def waiting_for(arguments: Sequence[str]) -> Path | None:
    """Returns the connection file of a front end that waits for this process, if there is one."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-f", "--f", "--WasmKernelApp.connection_file", dest="file", default="")
    with suppress(SystemExit):
        path = connection_path(parser.parse_known_args(arguments)[0].file)
        return path if path.is_file() else None
    return None


# -- the sandbox


class RefusingHome(SandboxHome[Sandbox]):
    """The home of a sandbox that was not made: it has no worker, and each call's error says why."""

    def __init__(self, why: str) -> None:
        self._why = why + _UNTIL_THEN

    def sandbox(self) -> Sandbox:
        """Returns the sandbox."""
        policy = ExecutionPolicy()
        opened = Open(
            RuntimeType.PYTHON.value, "", "", None, plain_policy(policy), pip=False, confinement=OFF
        )
        worker = SessionWorker(opened, self, SandboxLogger(), queue=sys.maxsize, answer_seconds=0)
        return Sandbox(worker, self, Path(), policy)

    def _refuse(self, *_: object, **__: object) -> Never:
        raise KernelNotStarted(self._why)

    spawn = handlers = fork = exchanges = check_mounts = _refuse

    def release(self, session: SessionWorker) -> None:
        """Does nothing: no worker was in use."""
