"""The magics at top level of a cell are those that IPython finds in the same text."""

from __future__ import annotations

import ast
import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given, reject
from hypothesis import strategies as st
from IPython.core.inputtransformer2 import TransformerManager

from wasm_kernel.guests.base import CommandLine
from wasm_kernel.guests.python.cell_reader import commands_in

NAMES = {"fork", "pip"}
FORK = [CommandLine("fork", "")]

COUNT: dict[str, tuple[str, list[CommandLine]]] = {
    "alone": ("%fork", FORK),
    "with words": ("%pip  install 'a b'  ", [CommandLine("pip", "install 'a b'")]),
    "a comment is part of the line": ("%fork # now", [CommandLine("fork", "# now")]),
    "variables stand for themselves": (
        "%pip install {x} $y",
        [CommandLine("pip", "install {x} $y")],
    ),
    "between statements": ("a = 1\n%fork\nb = 2", FORK),
    "after words that are not Python": ("%cd it's (\n!echo \"\n%fork", FORK),
    "after a function": ("def f():\n    pass\n%fork", FORK),
    "after a triple string": ("'''\n%pip\n'''\n%fork", FORK),
    "twice": ("%fork\n%fork", FORK * 2),
    "common indent": ("\n\n    x = 1\n    %fork", FORK),
    "joined lines": ("%pip install \\\n  a", [CommandLine("pip", "install    a")]),
    "windows line ends": ("x = 1\r\n%fork\r\n", FORK),
    "assigned": ("x = %fork", FORK),
    "assigned to several": ("a, b[1:2] = %fork", FORK),
    "assigned and annotated": ("x: int = %fork", FORK),
    "assigned behind a semicolon": ("print(1); x = %fork", FORK),
    "assigned, in brackets before": ("f(a=1); x = %fork", FORK),
    "as a command": ("!pip install a", [CommandLine("pip", "install a")]),
    "as another name of the command": ("!pip3 install a", [CommandLine("pip", "install a")]),
    "as a module": ("!python3 -m pip  install a", [CommandLine("pip", "install a")]),
    "as a module of this Python": (
        "import sys\n!{sys.executable} -m pip install a",
        [CommandLine("pip", "install a")],
    ),
    "assigned as a command": ("x = !pip list", [CommandLine("pip", "list")]),
    "cell magic": ("%%fork a\nx\ny\n", [CommandLine("fork", "a", "x\ny")]),
    "below %%time": ("%%time\nx = 1\n%fork", FORK),
    "below two": ("%%capture out\n%%time\n%fork", FORK),
    "behind %time": ("%time %fork", FORK),
    "automagic": ("pip install a\n", [CommandLine("pip", "install a")]),
    "a bare name": ("fork", FORK),
    "no help on what has no name": ("%fork a=?", [CommandLine("fork", "a=?")]),
    "no help on a number": ("%fork 5?", [CommandLine("fork", "5?")]),
    "no help by three marks": ("%fork a???", [CommandLine("fork", "a???")]),
    "no help on a text for an item": ("%fork a['b']?", [CommandLine("fork", "a['b']?")]),
    "after an f-string": ("f'{a!r:>{w}}{{'\n%fork", FORK),
    "after nested quotes": ("f'{x['a']}'\n%fork", FORK),
    "after a raw f-string": ("rf'\\{a}'\n%fork", FORK),
    "after a named character": ("f'\\N{DASH}'\n%fork", FORK),
    "after a string that never ends": ("x = 'abc\n%fork", FORK),
}

COUNT_NOT = {
    "in a string": "'%fork'",
    "in a triple string": '"""\n%fork\n"""',
    "in a raw string": 'r"""\\"""\n%fork\n"""',
    "in an f-string": "f'''\n%fork\n'''",
    "in an f-string's field": "f'''{\n%fork\n}'''",
    "in a string in an f-string's field": "f'''{'''\n%fork\n'''}'''",
    "in an f-string's format": "f'''{a:\n%fork\n}'''",
    "in a template string": 't"""\n%fork\n"""',
    "in a comment": "# %fork",
    "in a function": "def f():\n    %fork",
    "in a block": "if x:\n    %fork",
    "in a block on one line": "if x: y = %fork",
    "in a loop on one line": "for i in y: x = %fork",
    "in brackets": "f(\n%fork\n)",
    "in brackets that never close": "f(\n%fork",
    "on a joined line": "x = 1 + \\\n%fork",
    "help": "%fork?",
    "more help": "%pip install??",
    "help on an item": "%fork a.b[0][-1]?",
    "help before": "?fork",
    "a call": ",fork a",
    "another's": "%forks",
    "another module": "!python -m pipx install a",
    "through get_ipython": "get_ipython().run_line_magic('fork', '')",
    "remainder": "x %fork",
    "comparison": "x == %fork",
    "augmented": "x += %fork",
    "keyword": "f(x=%fork)",
    "second assignment": "a = b = %fork",
    "below another cell magic": "%%writefile a\n%fork",
    "below %%timeit": "%%timeit\n%fork",
    "behind %timeit": "%timeit %fork",
    "a variable of its name": "pip = 3",
    "an attribute": "pip.main()",
    "automagic among others": "pip list\nx = 1",
    "nothing": "",
}


@pytest.mark.parametrize(("code", "expected"), COUNT.values(), ids=COUNT)
def test_a_magic_at_top_level_counts(code: str, expected: list[CommandLine]) -> None:
    assert commands_in(code, NAMES) == expected


@pytest.mark.parametrize("code", COUNT_NOT.values(), ids=COUNT_NOT)
def test_a_magic_elsewhere_does_not_count(code: str) -> None:
    assert commands_in(code, NAMES) == []


PIECES = [
    *("%fork", "%fork a", "x = %fork", "x: y = %pip b", "!pip c", "z = !pip", "    %fork"),
    *("%cd it's", "x", "=", "'a'", "'", '"', "'''", '"""', "f'''", "f'{", "rb'", "{", "}"),
    *("(", ")", "[", "]", "\n", "\n", "\n", "\n    ", "\\\n", "\\", "# ", " ", ":", ";"),
    *("if x:", "def f():\n", "%", "!", "%%time\n", "%%capture\n", "%%writefile a\n", "lambda"),
    *("\t", "for i in x:", "?", ",", "5", "[0]"),
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)


def as_ipython(code: str) -> list[tuple[str, str]] | None:
    """The magics that IPython's transformation finds at top level; None if it is not Python."""
    try:
        manager: Any = TransformerManager
        tree = ast.parse(manager().transform_cell(code))
    except (SyntaxError, ValueError, IndexError):
        return None
    found = []
    for statement in tree.body:
        match statement:
            case ast.Expr(value=call) | ast.Assign(value=call) | ast.AnnAssign(value=call):
                found += called(call)
    return found


def below(body: str) -> list[tuple[str, str]]:
    found = as_ipython(body)
    if found is None:
        reject()
    return found


def called(node: ast.expr | None) -> list[tuple[str, str]]:
    match node:
        case ast.Call(
            func=ast.Attribute(value=ast.Call(func=ast.Name(id="get_ipython")), attr=method),
            args=[ast.Constant(value=str(name)), *rest],
        ):
            words = [each.value for each in rest if isinstance(each, ast.Constant)]
            if method == "run_line_magic":
                return [(name, str(words[0]).strip())]
            if method in ("system", "getoutput"):
                command, _, line = name.strip().partition(" ")
                return [(command, line.strip())]
            if method == "run_cell_magic" and name in ("time", "capture"):
                return below(str(words[1]))
            if method == "run_cell_magic":
                return [(name, str(words[0]).strip())]
    return []


@example("\\\n%forkx = %fork")
@given(TEXTS)
def test_the_reader_agrees_with_ipython_on_every_cell_that_runs(code: str) -> None:
    theirs = as_ipython(code)
    if theirs is not None:
        ours = [(order.name, order.line) for order in commands_in(code, NAMES)]
        expected = [each for each in theirs if each[0] in NAMES]
        assert not Counter(ours) - Counter(expected)
        # a line that continues nothing is left out here, as only IPython makes sense of it
        assert "\\" in code or ours == expected


@pytest.mark.parametrize("words", ["[0]" * 100_000, "[0" * 100_000 + "]", "9" * 300_000])
def test_no_question_takes_long(words: str) -> None:
    begun = time.process_time()
    commands_in(f"%fork {words}?", NAMES)
    assert time.process_time() - begun < 3  # hundredths of a second if each character is read once
