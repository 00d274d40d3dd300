"""The kernel's interface inside the guest, for libraries that look for one, and `%notebook`."""

from __future__ import annotations

import json
import platform
import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from typing import Any, NoReturn

_IPYKERNEL = (7, 0, 0)  # the version whose interface this is a part of
_INFO = {
    "name": "python",
    "version": platform.python_version(),
    "mimetype": "text/x-python",
    "codemirror_mode": {"name": "ipython", "version": 3},
    "pygments_lexer": "ipython3",
    "nbconvert_exporter": "python",
    "file_extension": ".py",
}
_SPEC = {"name": "wasm-python", "display_name": "Python (wasm)", "language": "python"}


class KernelFace:
    """`get_ipython().kernel`: the part of a kernel that libraries look for inside the guest.

    Attributes:
        shell: IPython's shell.
        comm_manager: Every open comm.
    """

    implementation = "wasm-kernel"

    def __init__(self, shell: Any, comm_manager: Any) -> None:
        self.shell = shell
        self.comm_manager = comm_manager
        self.language_info = _INFO

    def get_parent(self, channel: str | None = None) -> dict[str, Any]:
        """Returns the request that is being served, with the fields that the guest knows."""
        parent: dict[str, Any] = self.shell.get_parent()
        return parent

    @property
    def _parent_header(self) -> dict[str, Any]:
        return self.get_parent()

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"the kernel lies outside of the sandbox: {name!r} can't be reached from a cell"
        )


def parent_of(request: dict[str, Any]) -> dict[str, Any]:
    """Returns the front end's message behind a request, with the fields that the guest knows."""
    header = dict(request.get("parent") or {})
    return {
        "header": header,
        "msg_id": header.get("msg_id", ""),
        "msg_type": header.get("msg_type", ""),
        "parent_header": {},
        "metadata": {},
        "content": {},
        "buffers": [],
    }


def stand_in_for_ipykernel(shell_class: type, comm_class: type, manager_class: type) -> None:
    """Loads modules by which libraries recognize a notebook: a small part of `ipykernel`.

    tqdm looks for `ipykernel.zmqshell` among the loaded modules; older libraries import the shell's
    class or `Comm` from there. Only for a guest: elsewhere they would hide the package.
    """
    kernel = _module(
        "ipykernel", version_info=_IPYKERNEL, __version__=".".join(map(str, _IPYKERNEL))
    )
    kernel.comm = _module("ipykernel.comm", Comm=comm_class, CommManager=manager_class)
    kernel.zmqshell = _module("ipykernel.zmqshell", ZMQInteractiveShell=shell_class)


def _module(name: str, **names: Any) -> Any:
    made = module_from_spec(ModuleSpec(name, None, is_package=name == "ipykernel"))
    vars(made).update(names)
    sys.modules[name] = made
    return made


def notebook_of(manager: Any) -> dict[str, Any]:
    """Returns this session's inputs, results and errors as a notebook of format 4.5.

    The last input is left out: it is the cell that asks. IPython would sign the
    notebook, by packages that the sandbox does not have.
    """
    cells = []
    for _, number, source in list(manager.get_range())[:-1]:
        outputs = [_result(each, number) for each in manager.outputs.get(number, ())]
        if number in manager.exceptions:
            outputs.append({"output_type": "error", **manager.exceptions[number]})
        cells.append(
            {
                "cell_type": "code",
                "id": f"in-{number}",
                "metadata": {},
                "execution_count": number,
                "source": source,
                "outputs": [each for each in outputs if each],
            }
        )
    metadata = {"kernelspec": _SPEC, "language_info": _INFO}
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": cells}


def _result(output: Any, number: int) -> dict[str, Any]:
    if output.output_type not in ("execute_result", "display_data"):
        return {}
    shown = {"output_type": output.output_type, "data": dict(output.bundle), "metadata": {}}
    return shown | ({"execution_count": number} if output.output_type == "execute_result" else {})


def write_notebook(book: dict[str, Any], path: Path) -> None:
    """Writes a notebook to a file."""
    path.write_text(json.dumps(book, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
