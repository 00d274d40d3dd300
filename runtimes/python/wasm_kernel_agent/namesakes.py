"""Modules by which libraries recognize a notebook: `ipykernel`, as far as it makes sense here.

tqdm looks for `ipykernel.zmqshell` among the loaded modules; older libraries import the shell's
class or `Comm` from there. The package itself lies outside of the sandbox, with the kernel.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from typing import Any

from wasm_kernel_agent.comms import GuestComm, GuestCommManager

_VERSION = (7, 0, 0)  # whose interface this is a part of


def install(shell: Any) -> None:
    """Load the stand-ins; only in a guest, as elsewhere they would hide the package."""
    kernel = _module("ipykernel", version_info=_VERSION, __version__=".".join(map(str, _VERSION)))
    kernel.comm = _module("ipykernel.comm", Comm=GuestComm, CommManager=GuestCommManager)
    kernel.zmqshell = _module("ipykernel.zmqshell", ZMQInteractiveShell=type(shell))


def _module(name: str, **names: Any) -> Any:
    made = module_from_spec(ModuleSpec(name, None, is_package=name == "ipykernel"))
    vars(made).update(names)
    sys.modules[name] = made
    return made
