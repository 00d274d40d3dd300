"""What is in a session's variables: told by the guest after each cell, in the cell's own turn."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from wasm_kernel.policy import RuntimeType

NAME = "wasm_kernel_variables"
"""The name of the expression in a cell's request and reply."""

_MOST, _CHARACTERS = 100, 200
_PYTHON = f"""
def seen(shell):
    import sys
    from itertools import islice
    from types import BuiltinFunctionType, FunctionType, ModuleType
    hidden, found, modules = shell.user_ns_hidden, [], []
    for name, value in reversed(list(shell.user_ns.items())):
        if not isinstance(name, str) or name[:1] == "_" or name in hidden:
            continue
        if isinstance(value, ModuleType):
            modules.append(name)
            continue
        size = ""
        try:
            shape = getattr(value, "shape", None)
            if isinstance(shape, tuple):
                size = " x ".join(map(str, shape))
            elif isinstance(value, (str, bytes, bytearray, list, tuple, dict, set, frozenset)):
                size = f"{{len(value):,}}"
            elif isinstance(value, (bool, int, float, complex)):
                size = repr(value)
        except Exception:
            pass
        found.append([name[:{_CHARACTERS}], type(value).__name__[:{_CHARACTERS}], size[:40]])
    packages = []
    try:
        import os
        site = next(path for path in sys.path if path.endswith("/site-packages"))
        for entry in islice(os.scandir(site), 1000):
            if entry.name.endswith(".dist-info"):
                packages.append(entry.name[:-10][:{_CHARACTERS}])
    except (OSError, StopIteration):
        pass
    count = len(found)
    told = {{"variables": found[:{_MOST}], "count": count, "modules": modules[:{_MOST}],
            "packages": sorted(packages)[:{_MOST}]}}
    return Told(told)


class Told:
    def __init__(self, told):
        self.told = told

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {{"application/json": self.told}}
"""
_EXPRESSIONS = {  # the function is made once a session: compiling it takes some milliseconds
    RuntimeType.PYTHON.value: (
        f"(lambda shell: (shell.meta.get({NAME!r}) or (lambda d: (exec({_PYTHON!r}, d), "
        f"shell.meta.setdefault({NAME!r}, d['seen']))[1])({{}}))(shell))(get_ipython())"
    )
}

Text = Annotated[str, Meta(max_length=_CHARACTERS)]


class Seen(Struct, frozen=True):
    """What a session holds, as of a cell.

    Attributes:
        variables: Name, type, and size or value of variables, the newest first.
        count: How many variables there are.
        modules: The names of modules that were imported.
        packages: What was installed in the session, with versions.
        is_stale: Whether something happened since.
    """

    variables: Annotated[tuple[tuple[Text, Text, Text], ...], Meta(max_length=_MOST)] = ()
    count: int = 0
    modules: Annotated[tuple[Text, ...], Meta(max_length=_MOST)] = ()
    packages: Annotated[tuple[Text, ...], Meta(max_length=_MOST)] = ()
    is_stale: bool = False


NOTHING_SEEN = Seen()


def expressions(language: str) -> dict[str, str]:
    """Returns what a cell's request asks for, so that its reply says what the session holds."""
    code = _EXPRESSIONS.get(language)
    return {} if code is None else {NAME: code}


def read(reply: Mapping[str, Any], before: Seen) -> Seen:
    """Returns what a cell's reply says, which may be anything; if it is nothing, `before`."""
    with contextlib.suppress(KeyError, TypeError, AttributeError, msgspec.ValidationError):
        data = reply["user_expressions"][NAME]["data"]["application/json"]
        return msgspec.convert(data, Seen)
    return msgspec.structs.replace(before, is_stale=True)
