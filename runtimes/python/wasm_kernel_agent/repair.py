"""Repairs objects that a cell needs to run, after an earlier cell broke them.

Users may replace much of this on purpose (a `print` of their own, another traceback printer), so a
thing is put back only if it can't do its work: missing, not callable, or of another type.
"""

from __future__ import annotations

import builtins
import sys
from operator import is_ as _is
from typing import Any

_words = str.split
_ATTRIBUTES = _words("""
    alias_manager builtin_trap compile Completer display_formatter display_pub display_trap
    displayhook events extension_manager history_manager hooks input_transformer_manager inspector
    InteractiveTB kernel loop_runner magics_manager outbox awaiter payload_manager prefilter_manager
    SyntaxTB user_module user_ns_hidden ast_transformers meta
    """)
_MODULES = ("sys", "builtins", "os", "os.path", "IPython", "wasm_kernel_agent", "traitlets")
_METHODS = frozenset(
    _words("""
    run_cell _run_cell run_cell_async run_ast_nodes run_code transform_cell transform_ast
    should_run_async showtraceback _showtraceback showsyntaxerror push system getoutput
    run_line_magic run_cell_magic user_expressions object_inspect_mime get_ipython var_expand
    find_magic find_line_magic _get_exc_info excepthook
    """)
)
_setattr, _callable, _isinstance, _type = setattr, callable, isinstance, type
_all, _map = all, map


class ShellRepair:
    """Repairs the shell, the builtins and the modules from a record made after boot."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._own = dict(vars(shell))
        self._builtins = dict(vars(builtins))
        self._names = vars(builtins)
        self._attributes = {name: getattr(shell, name) for name in _ATTRIBUTES}
        self._classes = [(kind, dict(vars(kind))) for kind in type(shell).__mro__[:2]]
        self._modules = dict(sys.modules)
        self._namespace = shell.user_ns

    def repair(self) -> None:
        """Puts back whatever can't work any more. Cheap if nothing is broken.

        Done after each cell rather than before the next: the interpreter itself needs
        `builtins.__import__` to begin a turn.
        """
        names, record = self._names, self._builtins
        try:
            intact = names == record  # compared in C: a loop would take a tenth of a small cell
        except Exception:  # an error of something that a cell put there
            intact = False
        if not intact:
            for name, value in record.items():
                if name not in names or (_callable(value) and not _callable(names[name])):
                    names[name] = value
        shell = self._shell
        own, attributes = shell.__dict__, self._attributes
        present = {**shell._trait_values, **own}
        if not _all(_map(_is, _map(present.get, attributes), attributes.values())):
            for name, value in attributes.items():
                if not _isinstance(present.get(name), _type(value)):
                    _setattr(shell, name, value)
        for name in own.keys() & _METHODS:
            if not _callable(own[name]):
                del own[name]
        self._repair_namespace()
        modules = sys.modules
        modules["__main__"] = shell.user_module
        for name in _MODULES:
            if modules.get(name) is None:
                self._repair_modules()

    def repair_everything(self) -> None:
        """Puts back everything, replaced on purpose or not, after the agent itself has failed."""
        self._names.update(self._builtins)
        for name, value in self._own.items():
            vars(self._shell).setdefault(name, value)
        for kind, record in self._classes:
            for name, value in record.items():
                if kind.__dict__.get(name) is not value and not name.startswith("__"):
                    _setattr(kind, name, value)
        own = self._shell.__dict__
        for name in _METHODS:
            own.pop(name, None)
        for name, value in self._attributes.items():
            _setattr(self._shell, name, value)
        self._repair_namespace()
        self._repair_modules()

    def _repair_namespace(self) -> None:
        """Gives the shell its one dict of variables back, with IPython's names in it."""
        shell, names = self._shell, self._namespace
        if shell._user_ns is not names or shell.user_module.__dict__ is not names:
            shell._user_ns = names
            shell.user_module = self._attributes["user_module"]
        if not _isinstance(names.get("__builtins__"), (_type(builtins), dict)):
            names["__builtins__"] = builtins
        if "_oh" not in names:
            shell.init_user_ns()

    def _repair_modules(self) -> None:
        for name, module in self._modules.items():
            if sys.modules.get(name) is None:
                sys.modules[name] = module
