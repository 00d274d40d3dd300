"""The variables of a session: the guest reports them after each cell, in the cell's own turn."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import unquote

import msgspec
from msgspec import Meta, Struct

from wasm_kernel.guests.javascript.files import LIBRARY_GUEST
from wasm_kernel.kernels.messages import Expression
from wasm_kernel.policy import RuntimeType

NAME = "wasm_kernel_variables"
"""The name of the expression in a cell's request and reply."""

_MOST, _CHARACTERS = 100, 200
_TEXT_CHARACTERS = 200_000  # the most of a guest's report
_PYTHON = f"""
def seen(shell):
    import json, os, sys
    from itertools import islice
    from types import ModuleType
    from urllib.parse import quote
    hidden, found, modules, packages = shell.user_ns_hidden, [], [], []
    for name, value in reversed(list(shell.user_ns.items())):
        if not isinstance(name, str) or name[:1] == "_" or name in hidden:
            continue
        if isinstance(value, ModuleType):
            real = getattr(value, "__name__", name)
            whole = name if real == name or not isinstance(real, str) else f"{{real}} as {{name}}"
            modules.append(whole[:{_CHARACTERS}])
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
    try:
        site = next(path for path in sys.path if path.endswith("/site-packages"))
        names = [entry.name for entry in islice(os.scandir(site), 1000)]
        packages = sorted(name[:-10] for name in names if name.endswith(".dist-info"))
    except (OSError, StopIteration):
        pass
    told = {{"variables": found[:{_MOST}], "count": len(found), "modules": modules[:{_MOST}],
            "packages": [name[:{_CHARACTERS}] for name in packages[:{_MOST}]]}}
    return quote(json.dumps(told))
"""
_JAVASCRIPT = """
(() => {
  const found = [];
  for (const name of Object.keys(globalThis).reverse()) {
    let kind = "", size = "";
    try {
      const value = globalThis[name];
      kind = typeof value;
      if (kind === "object") kind = value === null ? "null" : value.constructor.name;
      if (["number", "boolean", "bigint"].includes(kind)) size = String(value);
      else size = String(value?.length ?? value?.size ?? "");
    } catch {}
    found.push([name.slice(0, 60), String(kind).slice(0, 60), size.slice(0, 40)]);
  }
  let packages = [];
  try {
    const listed = require("node:fs").readFileSync("PACKAGES", "utf8");
    packages = Object.values(JSON.parse(listed)).slice(0, 30);
  } catch {}
  const told = { variables: found.slice(0, 30), count: found.length, packages };
  return encodeURIComponent(JSON.stringify(told)).replaceAll("'", "%27");
})()
"""
_EXPRESSIONS = {
    # the function is made once per session: compiling it takes some milliseconds
    RuntimeType.PYTHON.value: (
        f"(lambda shell: (shell.meta.get({NAME!r}) or (lambda d: (exec({_PYTHON!r}, d), "
        f"shell.meta.setdefault({NAME!r}, d['seen']))[1])({{}}))(shell))(get_ipython())"
    ),
    RuntimeType.JAVASCRIPT.value: _JAVASCRIPT.replace("PACKAGES", f"{LIBRARY_GUEST}/npm.json"),
}

Text = Annotated[str, Meta(max_length=_CHARACTERS)]


class SessionContents(Struct, frozen=True):
    """The content of a session after a cell; it `is_stale` if something happened since.

    `variables` has the name, type, and size or value of the newest of `count` variables, newest
    first. `packages` were installed in the session, with versions.
    """

    variables: Annotated[tuple[tuple[Text, Text, Text], ...], Meta(max_length=_MOST)] = ()
    count: int = 0
    modules: Annotated[tuple[Text, ...], Meta(max_length=_MOST)] = ()
    packages: Annotated[tuple[Text, ...], Meta(max_length=_MOST)] = ()
    is_stale: bool = False


NOTHING_SEEN = SessionContents()


def expressions(language: str) -> dict[str, str]:
    """Returns expressions for a cell's request, whose reply then reports the variables."""
    return {NAME: _EXPRESSIONS[language]}


def read(reply: Mapping[str, Any], before: SessionContents) -> SessionContents:
    """Returns the report in a cell's reply, which is untrusted; if there is none, `before`."""
    with contextlib.suppress(KeyError, ValueError):  # a DecodeError is a ValueError
        text = Expression.found(reply, NAME).data.text  # a text in quotes
        return msgspec.json.decode(unquote(text[1:-1][:_TEXT_CHARACTERS]), type=SessionContents)
    return msgspec.structs.replace(before, is_stale=True)
