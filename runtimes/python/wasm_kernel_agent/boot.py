"""The one turn in which the base image is made: everything slow, and nothing of a session."""

from __future__ import annotations

import gc
import importlib
import os
import sys
from typing import Any

from traitlets.config import Config

from wasm_kernel_agent import (
    ballast,
    comms,
    completion,
    dormant,
    executors,
    folders,
    immortal,
    loop,
    modules,
    namesakes,
    neighbours,
    plots,
    queries,
    refusals,
    sources,
    themes,
)
from wasm_kernel_agent.door import Door
from wasm_kernel_agent.kernel import KernelFace
from wasm_kernel_agent.outbox import Outbox
from wasm_kernel_agent.shell import GuestShell

_SETTINGS = {
    "IPYTHONDIR": "/tmp/ipython",
    "MPLCONFIGDIR": "/tmp/matplotlib",
}
_FOLDERS = ("/usr/local/lib/wasm-kernel", "/usr/local/lib/python{}.{}/site-packages")
_WARM_SOURCE = "import wasm_kernel_agent as a\nfor b in range(3):\n    raise ValueError(b)\n"


def make_shell(door: Door) -> GuestShell:
    """The shell of this interpreter, made once."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    loop.install()
    themes.load()
    outbox = Outbox(door)
    shell: GuestShell = GuestShell.instance(outbox=outbox, config=configuration())
    shell.kernel = KernelFace(shell, comms.install(outbox.comm))
    return shell


def configuration() -> Config:
    """IPython's settings in the guest: history in memory, no thread, no banner."""
    config = Config()
    config.HistoryManager.hist_file = ":memory:"
    config.HistoryAccessor.hist_file = ":memory:"
    config.InteractiveShell.colors = "neutral"
    config.Completer.use_jedi = False
    config.ScriptMagics.script_magics = []
    config.AliasManager.default_aliases = []
    config.IPKernelApp.connection_file = ""  # tqdm and others take a notebook to be where it stands
    return config


def prepare_guest(shell: GuestShell) -> None:
    """Import what notebooks use, so that each session finds it in memory."""
    refusals.install()
    executors.install()
    folders.install()
    sources.install()
    _path()
    namesakes.install(shell)
    with shell.builtin_trap:  # pandas asks where it is, to know how wide a table is
        import numpy  # noqa: F401
        import pandas  # noqa: F401

    progress: Any = importlib.import_module("tqdm").tqdm
    progress.monitor_interval = 0  # its monitor would be a thread

    plots.prepare(shell)
    _widgets(shell)
    _debugger()
    warm(shell)
    modules.list_once(shell)


def finish(agent: Any) -> None:
    """Lay the booted guest's memory out for the sessions that begin with it."""
    held = ballast.fill()
    neighbours.settle(agent)
    held.clear()
    immortal.tell(agent.door)
    ballast.fill_for_good()
    gc.freeze()


def _widgets(shell: GuestShell) -> None:
    """Have ipywidgets at hand; its targets are there from its first import on, as elsewhere."""
    dormant.put_aside("ipywidgets", lambda package: package.register_comm_target())
    shell.kernel.comm_manager.targets.clear()


def _debugger() -> None:
    """`breakpoint()` and `pdb.set_trace()` open IPython's debugger, as under ipykernel.

    An interrupt ends it: Python's own would go on asking, and the cell would never end.
    """
    import pdb

    from IPython.core import debugger

    places: Any = pdb
    names: Any = debugger
    names.Pdb = places.Pdb = names.InterruptiblePdb
    places.set_trace = names.set_trace


def _path() -> None:
    """Modules in the working folder can be imported, as in every notebook, and %pip's packages."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    sys.path += [each.format(*sys.version_info) for each in _FOLDERS]
    sys.argv = [""]


def warm(shell: Any) -> None:
    """Do once, without a trace, what a first cell would otherwise wait for."""
    import IPython.core.oinspect
    import IPython.core.pylabtools  # noqa: F401

    # An interrupt while IPython loads a magic would leave that magic unusable in the session.
    shell.magics_manager.load_all_lazy_magics()
    name = shell.compile.cache(_WARM_SOURCE, 0)
    try:
        exec(compile(_WARM_SOURCE, name, "exec"), {"__name__": "__main__"})
    except ValueError as error:
        trace: Any = error.__traceback__
        shell.InteractiveTB.structured_traceback(type(error), error, trace, tb_offset=1)
    try:
        compile("1 +* 1", name, "exec")
    except SyntaxError as error:
        shell.SyntaxTB.structured_traceback(type(error), error, [])
    shell.transform_cell("%time 1\n")
    shell.logger.log_active = False
    completion.complete(shell, {"code": "pri", "cursor_pos": 3})
    queries.inspect(shell, {"code": "print", "cursor_pos": 5, "detail_level": 0})
    queries.is_complete(shell, {"code": "for x in y:"})
    shell.display_formatter.format(1)
