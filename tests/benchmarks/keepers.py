"""Keeping a session's variables without wasm-kernel: `python keepers.py KEEPER STATE STEPS`.

Run by the environment that is compared with, which knows nothing of this project. It runs cells in
IPython, keeps the variables after each with dill, cloudpickle or Kishu, and brings them back in the
end. What came of it is printed as JSON.
"""

from __future__ import annotations

import io
import json
import os
import sys
import tempfile
import time
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any


class Shell:
    """IPython in this process, whose cells are timed from the outside."""

    def __init__(self) -> None:
        from IPython.core.interactiveshell import InteractiveShell

        self.ip: Any = InteractiveShell.instance()
        self.ip.user_module = sys.modules["__main__"]

    def run(self, code: str) -> tuple[str, float]:
        """What a cell prints, and its milliseconds."""
        printed = io.StringIO()
        begun = time.perf_counter()
        with redirect_stdout(printed):
            result = self.ip.run_cell(code, store_history=True)
        taken = (time.perf_counter() - begun) * 1000
        problem = result.error_before_exec or result.error_in_exec
        if problem:
            raise problem
        return printed.getvalue().strip(), taken


class Dill:
    """`dill.dump_session`, which keeps `__main__`."""

    def __init__(self, shell: Shell, folder: Path) -> None:
        self._path = folder / "session"
        self._dill: Any = import_module("dill")

    def keep(self) -> None:
        self._dill.dump_session(self._path)

    def bring_back(self) -> None:
        self._dill.load_session(self._path)


class Cloudpickle:
    """`cloudpickle` of everything in the namespace but modules and IPython's own."""

    def __init__(self, shell: Shell, folder: Path) -> None:
        self._names = shell.ip.user_ns
        self._hidden = shell.ip.user_ns_hidden
        self._cloudpickle: Any = import_module("cloudpickle")
        self._path = folder / "session"

    def keep(self) -> None:
        kept = {
            name: value
            for name, value in self._names.items()
            if not (name.startswith("_") or name in self._hidden or name in ("In", "Out"))
            and not isinstance(value, ModuleType)
        }
        with self._path.open("wb") as file:
            self._cloudpickle.dump(kept, file)

    def bring_back(self) -> None:
        with self._path.open("rb") as file:
            self._names.update(self._cloudpickle.load(file))


class Kishu:
    """Kishu, which keeps what a cell changed by itself, after each cell."""

    def __init__(self, shell: Shell, folder: Path) -> None:
        os.environ["ENV_KISHU_TEST_MODE"] = "1"
        os.environ["KISHU_PATH_ROOT"] = str(folder)
        interface = import_module("kishu.jupyterint")
        identity = import_module("kishu.notebook_id").NotebookId
        path = folder / "book.ipynb"
        path.write_text('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}')
        self._kishu = interface.KishuForJupyter(identity("bench", path, "kernel"), ip=shell.ip)
        self._kishu.install_kishu_hooks()

    def keep(self) -> None:
        """It did already; only where that is."""
        self._newest = self._kishu._kishu_branch.get_head().commit_id

    def bring_back(self) -> None:
        self._kishu.checkout(self._newest, skip_notebook=True)


KEEPERS: dict[str, Any] = {"dill": Dill, "cloudpickle": Cloudpickle, "kishu": Kishu}


def measured(keeper_name: str, state: dict[str, str], steps: int, folder: Path) -> dict[str, Any]:
    """Milliseconds that each cell cost beside its own code, that keeping took, and coming back."""
    shell = Shell()
    os.chdir(folder)
    keeper = KEEPERS[keeper_name](shell, folder)
    shell.run(state["made"])
    keeper.keep()
    cells, kept = [], []
    for step in range(steps):
        inside, outside = shell.run(state["step"].format(step=step))
        begun = time.perf_counter()
        keeper.keep()
        kept.append((time.perf_counter() - begun) * 1000)
        cells.append(outside + kept[-1] - float(inside))
    told = shell.run(state["told"])[0]
    keeper.keep()
    shell.run(state["spoilt"])
    begun = time.perf_counter()
    keeper.bring_back()
    back = (time.perf_counter() - begun) * 1000
    again = shell.run(state["told"])[0]
    return {"cells": cells, "kept": kept, "back": back, "right": again == told}


def main() -> None:
    keeper, state, steps = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = measured(keeper, state, steps, Path(folder))
        except BaseException as problem:
            found = {"refused": f"{type(problem).__name__}: {problem}"[:200]}
        print("\n" + json.dumps(found), flush=True)
        os._exit(0)  # whatever was left half-open


if __name__ == "__main__":
    main()
