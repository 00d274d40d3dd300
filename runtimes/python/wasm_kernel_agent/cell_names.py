"""The names that code in a cell finds before the cell ran: for completion.

IPython's completer evaluates the statements of a cell, but neither its imports nor the inside of
its functions, for which ipykernel asks jedi. Nothing here runs a module's or the user's code.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from IPython.core.guarded_eval import EvaluationContext, eval_node

_IMPORT = re.compile(r"^[ \t]*((?:from\s+[\w.]+\s+)?import\s+(?:\([^)]*\)|[^\n;#]+))", re.MULTILINE)
_MAGIC = re.compile(r"^[ \t]*[%!?].*", re.MULTILINE)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_MISSING = object()


def names_in_cell(before: str, variables: dict[str, Any], evaluation: Any) -> dict[str, Any]:
    """Returns the names that the end of `before` finds, with their values as far as they are known.

    Args:
        before: The cell's text up to the cursor.
        variables: The names that exist.
        evaluation: What IPython may evaluate: the completer's setting.
    """
    names = {**variables, **dict(_imported(before))}
    head, _, last = before.rpartition("\n")
    indentation = last[: len(last) - len(last.lstrip())]
    if not indentation:  # IPython knows what a cell's own statements define
        return names
    try:
        tree = ast.parse(_MAGIC.sub("", f"{head}\n") + f"{indentation}pass")
    except (SyntaxError, ValueError):
        return names
    end = before.count("\n") + 1
    around = [n for n in ast.walk(tree) if isinstance(n, _FUNCTIONS) and n.end_lineno == end]
    if around:
        context = EvaluationContext(
            globals={}, locals=names, evaluation=evaluation, transient_locals={}
        )
        statements = [each for each in tree.body if not isinstance(each, _FUNCTIONS)]
        for function in around:
            statements += [*_parameters(function.args), *_instance(tree, function), *function.body]
        for each in statements:
            names.update({name: names.get(name) for name in _assigned(each)})
            with suppress(Exception):  # it depends on what is not known
                eval_node(each, context)
        names.update(context.transient_locals)
    return names


def _parameters(arguments: ast.arguments) -> Iterator[ast.stmt]:
    """Yields an assignment for each parameter: of its default, or of its annotation alone."""
    plain = [*arguments.posonlyargs, *arguments.args]
    undefined: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults))
    defaults = [*undefined, *arguments.defaults, *arguments.kw_defaults]
    more = [each for each in (arguments.vararg, arguments.kwarg) if each]
    every = [*plain, *arguments.kwonlyargs]
    for each, default in zip([*every, *more], [*defaults, *[None] * len(more)], strict=True):
        target = ast.Name(each.arg, ast.Store())
        if each.annotation is not None:
            yield ast.AnnAssign(target, each.annotation, None, simple=1)
        else:
            yield ast.Assign([target], default or ast.Constant(None))


def _instance(tree: ast.Module, method: Any) -> Iterator[ast.stmt]:
    """Yields an assignment of an instance of its class to the first parameter of a method."""
    for each in ast.walk(tree):
        if isinstance(each, ast.ClassDef) and method in each.body and method.args.args:
            made = ast.Call(ast.Name(each.name, ast.Load()), [], [])
            yield ast.Assign([ast.Name(method.args.args[0].arg, ast.Store())], made)


def _assigned(statement: ast.stmt) -> Iterator[str]:
    for each in ast.walk(statement):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            yield each.id


def _imported(code: str) -> Iterator[tuple[str, Any]]:
    """Yields what the imports in a cell bring in, if their module is loaded."""
    for text in _IMPORT.findall(code):
        try:
            statement: Any = ast.parse(text).body[0]
        except (SyntaxError, ValueError):  # the user is still writing this import
            continue
        for each in statement.names:
            top = each.name.partition(".")[0]
            if isinstance(statement, ast.ImportFrom):
                module = sys.modules.get(statement.module or "")
                value = vars(module).get(each.name, _MISSING) if module else _MISSING
            else:
                value = sys.modules.get(each.name if each.asname else top, _MISSING)
            if value is not _MISSING:
                yield each.asname or top, value
