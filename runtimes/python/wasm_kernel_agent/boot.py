"""The boot turn, which makes the base image: everything slow, and nothing of a session."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import sys
from typing import Any

from IPython.core.magics import execution
from traitlets import TraitType
from traitlets.config import Config

from wasm_kernel_agent import (
    comms,
    event_loop,
    image_tuning,
    module_names,
    package_hooks,
    preload,
    stdlib_patches,
    tracebacks,
)
from wasm_kernel_agent.display import Outbox
from wasm_kernel_agent.host import FrameChannel
from wasm_kernel_agent.notebook_face import KernelFace, stand_in_for_ipykernel
from wasm_kernel_agent.shell import GuestShell

_SETTINGS = {
    "IPYTHONDIR": "/tmp/ipython",
    "MPLCONFIGDIR": "/tmp/matplotlib",
}
_COMMANDS = ("ls", "cat", "mkdir", "rmdir", "rm", "cp", "mv")  # magics, too
_FOLDERS = (
    "/usr/local/lib/wasm-kernel",
    "/usr/local/lib/python{}.{}/site-packages",
    "/usr/local/lib/wasm-kernel.zip/wasm_kernel_agent/stand_ins",
)


def make_shell(channel: FrameChannel) -> GuestShell:
    """Makes the one shell of this interpreter."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    event_loop.install()
    preload.load_themes()
    outbox = Outbox(channel)
    shell: GuestShell = GuestShell.instance(outbox=outbox, config=configuration())
    shell.kernel = KernelFace(shell, comms.install(outbox.send_comm))
    return shell


def configuration() -> Config:
    """Returns IPython's settings in the guest: history in memory, no thread, no banner."""
    config = Config()
    config.HistoryManager.hist_file = ":memory:"
    config.HistoryAccessor.hist_file = ":memory:"
    config.InteractiveShell.colors = "neutral"
    config.Completer.use_jedi = False
    config.ScriptMagics.script_magics = []
    config.AliasManager.default_aliases = [("ll", "ls -l"), *((name, name) for name in _COMMANDS)]
    config.IPKernelApp.connection_file = ""  # tqdm and others recognize a notebook by this
    return config


def prepare_guest(shell: GuestShell) -> None:
    """Changes packages and modules of notebooks so that they work in a guest."""
    stdlib_patches.install()
    tracebacks.find_classes_of_cells()
    tracebacks.know_frames_of_cells()
    tracebacks.read_grammar_once()
    _read_traits_in_one_call()
    _run_modules_without_source()
    _extend_path()
    package_hooks.install()
    stand_in_for_ipykernel(type(shell), comms.GuestComm, comms.GuestCommManager)
    preload.use_ipythons_debugger()
    # An interrupt while IPython loads a magic would leave that magic unusable in the session.
    shell.magics_manager.load_all_lazy_magics()
    module_names.install(shell)


def _read_traits_in_one_call() -> None:
    """Makes reading a trait quicker: a small cell reads fifty of IPython's."""
    kind: Any = TraitType
    whole, get = kind.__get__, kind.get

    def quick(self: Any, obj: Any, cls: Any = None) -> Any:
        try:
            if type(self).get is get:
                return obj._trait_values[self.name]
        except (AttributeError, KeyError):  # read from the class, or not set yet
            pass
        return whole(self, obj, cls)

    kind.__get__ = quick


def _run_modules_without_source() -> None:
    """Lets `%run -m` run the guest's own modules; IPython refuses those without a .py file."""
    module: Any = execution
    find_module, find_file = module.find_mod, module.get_py_filename

    def find_mod(name: str) -> Any:
        spec = importlib.util.find_spec(name)
        compiled = spec is not None and str(spec.origin).endswith(".pyc")
        return spec.origin if spec and compiled else find_module(name)

    def find(name: str) -> Any:
        return name if name.endswith(".pyc") else find_file(name)

    module.find_mod = find_mod
    module.ExecutionMagics.run.__defaults__ = (None, find)


def preload_packages(shell: GuestShell) -> None:
    """Imports the packages of everyday notebooks, so that each session finds them in memory."""
    importlib.import_module("tqdm")
    with shell.builtin_trap:  # pandas asks where it runs, to know how wide a table is
        preload.load_pandas()
        preload.load_matplotlib()
    preload.preload_widgets(shell)
    preload.preload_schemas()
    preload.warm_up(shell)


def lay_out_memory(agent: Any) -> None:
    """Lays the booted guest's memory out for the sessions that begin with it."""
    filling = image_tuning.fill_holes()
    image_tuning.gather_code(agent)
    filling.clear()
    image_tuning.send_immortals(agent.channel)
    image_tuning.filled_for_good.append(image_tuning.fill_holes())
    gc.freeze()


def _extend_path() -> None:
    """Makes %pip's packages and, as in every notebook, modules in the working folder importable."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    sys.path += [each.format(*sys.version_info) for each in _FOLDERS]
    sys.argv = [""]
