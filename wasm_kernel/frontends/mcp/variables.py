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
    RuntimeType.PYTHON.value: (
        "__import__('wasm_kernel_agent.variables').variables.overview(get_ipython())"
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
