"""Programs that run in this interpreter, with the state that they do not share with cells."""

from __future__ import annotations

import atexit
import builtins
import gc
import io
import logging
import operator
import os
import random
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from wasm_kernel_agent.shell_options import Kept

_SESSION = ("/app/", "/home/user/", "/tmp/", "/notebook/")


class Streams:
    """The standard streams of a program, in place of the cell's."""

    def __init__(self, stdin: bytes) -> None:
        self.stdin = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8", errors="replace")
        self.out, self.err = Kept(), Kept()
        self.stdout = io.TextIOWrapper(self.out, encoding="utf-8", write_through=True)
        self.stderr = io.TextIOWrapper(
            self.err, encoding="utf-8", errors="backslashreplace", write_through=True
        )


class Left(BaseException):
    """The end of a program by `os._exit`, with its status."""


class ShellProcess:
    """A command's streams, folder and environment, in place of the cell's for its time."""

    def __init__(self) -> None:
        self._streams = sys.stdin, sys.stdout, sys.stderr
        self._cwd, self._environ, self._variables = Path.cwd(), os.environ, dict(os.environ)

    def begin(self, streams: Streams, folder: str, env: Mapping[str, str]) -> None:
        """Puts the command's streams, folder and environment in place."""
        sys.stdin, sys.stdout, sys.stderr = streams.stdin, streams.stdout, streams.stderr
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(env)

    def call_exit_functions(self) -> None:
        """Does nothing: a command registers no functions for its exit."""

    def end(self) -> None:
        """Gives the cell its own streams, folder and environment back. Safe to call twice: the
        first call may be interrupted.
        """
        sys.stdin, sys.stdout, sys.stderr = self._streams
        os.environ = self._environ  # noqa: B003 - a program may have set another
        os.environ.clear()
        os.environ.update(self._variables)
        os.chdir(next(filter(Path.is_dir, (self._cwd, *self._cwd.parents))))  # it may be removed


class PythonProcess(ShellProcess):
    """A program of Python, which also has modules and arguments of its own.

    It has its own loggers, built-in names, hooks, finders of modules, random numbers, filters of
    warnings and functions at exit, too. Its interrupts and limits end with it.
    """

    def __init__(self) -> None:
        super().__init__()
        names = ("argv", "path", "displayhook", "excepthook")
        self._kept = {name: getattr(sys, name) for name in names}
        self._modules, self._builtins = dict(sys.modules), dict(vars(builtins))
        self._recursion_limit, self._collects = sys.getrecursionlimit(), gc.isenabled()
        self._trace, self._profile = sys.gettrace(), sys.getprofile()
        self._interrupted_by = signal.getsignal(signal.SIGINT)
        self._finders = sys.meta_path, [*sys.meta_path]
        self._leave = os._exit
        self._register, self._unregister = atexit.register, atexit.unregister
        self._at_exit: list[tuple[Any, Callable[[], object]]] = []
        self._root = logging.root
        self._loggers = {logger: dict(vars(logger)) for logger in _loggers()}
        self._silenced = logging.root.manager.disable
        self._draw_on = _draws()
        self._warnings: Any = warnings.catch_warnings()
        self._warnings.__enter__()

    def begin(self, streams: Streams, folder: str, env: Mapping[str, str]) -> None:
        """Puts the program's streams, folder, environment and modules in place."""
        super().begin(streams, folder, env)
        sys.displayhook, sys.excepthook = sys.__displayhook__, sys.__excepthook__
        sys.path = list(sys.path)
        builtins.input = _ask
        _leave_out_session_modules({})
        self._give_loggers({})
        _forget_patterns_of_tests()
        module: Any = atexit
        module.register, module.unregister = self._register_own, self._unregister_own
        module = os
        module._exit = _leave
        _draw_anew()

    def _give_loggers(self, states: Mapping[logging.Logger, Mapping[str, Any]]) -> None:
        """Gives loggers their states; those without one are as new."""
        for logger in _loggers():
            vars(logger).update(states.get(logger) or _new_state(logger))
        logging.disable(0)  # also forgets which loggers were on

    def _give_finders(self) -> None:
        """Gives the cell its finders back, beside those of modules that stay, such as `six`."""
        added = [each for each in sys.meta_path if each not in self._finders[1]]
        stay = [each for each in added if type(each).__module__ in sys.modules]
        sys.meta_path = self._finders[0]
        sys.meta_path[:] = [*self._finders[1], *stay]

    def _register_own(self, function: Any, /, *args: Any, **named: Any) -> Any:
        caller = sys._getframe(1).f_globals
        is_own = caller.get("__name__") == "__main__"
        if not is_own and not str(caller.get("__file__")).startswith(_SESSION):
            return self._register(function, *args, **named)  # its module stays
        self._at_exit.append((function, lambda: function(*args, **named)))
        return function

    def _unregister_own(self, function: Any, /) -> None:
        self._at_exit = [pair for pair in self._at_exit if pair[0] != function]
        self._unregister(function)

    def call_exit_functions(self) -> None:
        """Calls the functions that the program registered for its exit, the latest first."""
        while self._at_exit:
            try:
                self._at_exit.pop()[1]()
            except (KeyboardInterrupt, Left):
                raise
            except BaseException:  # such as `SystemExit`, which would end the cell
                traceback.print_exc()

    def end(self) -> None:
        """Gives the cell its own modules back, too."""
        for name, value in self._kept.items():
            setattr(sys, name, value)
        for name in vars(builtins).keys() - self._builtins.keys():
            delattr(builtins, name)
        vars(builtins).update(self._builtins)
        sys.setrecursionlimit(self._recursion_limit)
        sys.settrace(self._trace)
        sys.setprofile(self._profile)
        (gc.enable if self._collects else gc.disable)()
        signal.signal(signal.SIGINT, self._interrupted_by)
        module: Any = atexit
        module.register, module.unregister = self._register, self._unregister
        module = os
        module._exit = self._leave
        self._warnings.__exit__()
        logging.root = self._root
        self._give_loggers(self._loggers)
        logging.disable(self._silenced)
        _forget_patterns_of_tests()
        _leave_out_session_modules(self._modules)
        self._give_finders()
        sys.modules.update(self._modules)
        self._draw_on()
        super().end()


def _leave(status: int) -> NoReturn:
    """`os._exit` of a program: ends the program alone."""
    raise Left(operator.index(status) & 0xFF)


def _leave_out_session_modules(others: Mapping[str, ModuleType]) -> None:
    """Forgets modules of session files except `others`: a process reads files as they are now."""
    found = [pair for pair in sys.modules.items() if pair[1] is not others.get(pair[0])]
    for name, module in found:
        file = getattr(module, "__file__", None)
        if name == "__main__" or (isinstance(file, str) and file.startswith(_SESSION)):
            del sys.modules[name]


def _loggers() -> list[logging.Logger]:
    named = logging.root.manager.loggerDict.values()
    return [logging.root, *(each for each in named if isinstance(each, logging.Logger))]


def _new_state(logger: logging.Logger) -> dict[str, Any]:
    """The state of a new logger, with the handlers that keep a library silent."""
    silent = [each for each in logger.handlers if isinstance(each, logging.NullHandler)]
    level = logging.WARNING if logger is logging.root else logging.NOTSET
    return {"handlers": silent, "filters": [], "level": level, "propagate": True, "disabled": False}


def _draw_anew() -> None:
    """Lets the functions of `random` and `numpy.random` draw as in a new process."""
    random.seed()
    _draw_anew_in_numpy()


def _draw_anew_in_numpy() -> None:
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.set_bit_generator(numpy_random.MT19937())


def _draws() -> Callable[[], None]:
    """Returns a function that sets the random numbers of both modules back to this state."""
    state, numpy_random = random.getstate(), sys.modules.get("numpy.random")
    if numpy_random is not None:
        bits, drawn = numpy_random.get_bit_generator(), numpy_random.get_state(legacy=False)

    def draw_on() -> None:
        random.setstate(state)
        if numpy_random is None:
            _draw_anew_in_numpy()  # a program may have been the first to import it
        else:
            numpy_random.set_bit_generator(bits)
            numpy_random.set_state(drawn)

    return draw_on


def _forget_patterns_of_tests() -> None:
    """Makes `unittest` look for all tests, although a program before had `-k`."""
    if loader := sys.modules.get("unittest.loader"):
        loader.defaultTestLoader.testNamePatterns = None


def _ask(prompt: object = "", /) -> str:
    """`input()` of a program: a line of its standard input."""
    sys.stdout.write(str(prompt))
    line = sys.stdin.readline()
    if not line:
        raise EOFError("EOF when reading a line")
    return line.removesuffix("\n")
