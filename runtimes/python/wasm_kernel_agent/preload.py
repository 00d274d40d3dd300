"""The packages and parts of IPython that each session finds loaded in memory."""

from __future__ import annotations

import importlib
import io
import json
import pkgutil
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from IPython.utils import PyColorize

from wasm_kernel_agent import completion

_WARM_SOURCE = "import wasm_kernel_agent as a\nfor b in range(3):\n    raise ValueError(b)\n"


class PreloadedPackage(MetaPathFinder, Loader):
    """A package that is imported with the base image, and hidden until a cell imports it.

    Its modules lie in the image's memory, shared and never saved again; importing it later costs
    only a look. Until then it is not in `sys.modules`, and nothing of it has run for a session.

    Args:
        name: The package, which is imported now.
        on_import: Called when a cell imports it.
    """

    def __init__(self, name: str, on_import: Callable[[ModuleType], Any]) -> None:
        importlib.import_module(name)
        inside = [n for n in sys.modules if n == name or n.startswith(f"{name}.")]
        self._modules = {each: sys.modules.pop(each) for each in inside}
        self._own_spec = self._modules[name].__spec__
        self._name = name
        self._on_import = on_import

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The package's own spec, with this as its loader; None once it was imported."""
        own = self._own_spec
        if fullname != self._name or not self._modules or own is None:
            return None
        spec = ModuleSpec(fullname, self, origin=own.origin, is_package=True)
        spec.submodule_search_locations = own.submodule_search_locations
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The module that was imported with the image."""
        return self._modules[self._name]

    def exec_module(self, module: ModuleType) -> None:
        """Makes the modules below it importable; its code has run already."""
        modules, self._modules = self._modules, {}
        for name, each in modules.items():
            sys.modules.setdefault(name, each)
        module.__spec__ = self._own_spec
        self._on_import(module)


def load_themes() -> None:
    """Fills IPython's table of colour themes from the zip that contains IPython.

    IPython would otherwise look for files beside its code.
    """
    modules: Any = PyColorize
    for name, stem in modules._BUILTIN_THEMES.items():
        data = pkgutil.get_data("IPython.utils", f"themes/{modules._theme_filename(stem)}")
        assert data is not None
        modules.theme_table._by_name[name] = modules.Theme.from_dict(json.loads(data))


def load_matplotlib() -> None:
    """Imports pyplot, and draws a figure so that first plots are quick."""
    from matplotlib import pyplot

    figure = pyplot.figure()
    figure.add_subplot().plot([0, 1], label="$x$")
    figure.savefig(io.BytesIO(), format="png", bbox_inches="tight")
    pyplot.close(figure)
    _forget_figure(pyplot)


def load_pandas() -> None:
    """Imports the parts of pandas that show, write and plot a table, and shows one.

    Otherwise pandas reads them from its zip in the first cell that shows or plots a table.
    """
    import pandas

    for name in ("pandas.io.formats.csvs", "pandas.plotting._matplotlib"):
        importlib.import_module(name)
    frame: Any = pandas.DataFrame({"a": [1, 2], "b": ["x", "y"]})
    frame._repr_html_()
    repr(frame)


def _forget_figure(pyplot: Any) -> None:
    """Forgets the figure of the boot, so that no first cell shows it."""
    from matplotlib_inline import backend_inline

    show: Any = backend_inline.show
    show._to_draw = []
    show._draw_called = False
    pyplot.draw_if_interactive.called = False


def preload_widgets(shell: Any) -> None:
    """Imports ipywidgets; as elsewhere, its comm targets exist once a cell has imported it."""
    preloaded = PreloadedPackage("ipywidgets", lambda package: package.register_comm_target())
    sys.meta_path.insert(0, preloaded)
    shell.kernel.comm_manager.targets.clear()


def preload_schemas() -> None:
    """Imports the modules that check figures of Plotly and Altair, which otherwise take a
    second.
    """
    for name in ("nbformat", "fastjsonschema", "jsonschema", "jsonschema_specifications"):
        sys.meta_path.insert(0, PreloadedPackage(name, lambda _: None))


def use_ipythons_debugger() -> None:
    """Makes `breakpoint()` and `pdb.set_trace()` open IPython's debugger, as under ipykernel.

    An interrupt ends it: Python's own would go on asking, and the cell would never end.
    """
    import pdb

    from IPython.core import debugger

    module: Any = pdb
    names: Any = debugger
    names.Pdb = module.Pdb = names.InterruptiblePdb
    module.set_trace = names.set_trace


def warm_up(shell: Any) -> None:
    """Does the work once, without a trace, for which a first cell would otherwise wait."""
    import IPython.core.oinspect
    import IPython.core.pylabtools  # noqa: F401

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
    completion.inspect_name(shell, {"code": "print", "cursor_pos": 5, "detail_level": 0})
    completion.is_complete(shell, {"code": "for x in y:"})
    shell.display_formatter.format(1)
