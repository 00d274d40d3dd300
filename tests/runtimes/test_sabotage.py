"""Whatever a cell breaks, the cell after the next runs with the variables it had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Serve = Callable[..., list[Any]]


@pytest.mark.parametrize(
    "code",
    [
        "__builtins__ = None",
        "import builtins; builtins.len = lambda *_: 1/0",
        "import sys; sys.modules.clear()",
        "import sys; del sys.modules['__main__']",
        "get_ipython()._user_ns = {}",
        "get_ipython().run_line_magic = None",
        "type(get_ipython()).run_cell = None",
        "import asyncio; asyncio.get_event_loop().close()",
    ],
)
def test_the_cell_after_the_next_runs_as_before(serve: Serve, code: str) -> None:
    last = "import __main__\nhere = %pwd\nprint(x)\nawait __import__('asyncio').sleep(0, 2)"
    turns = serve("x = 41", code, "None", "x + 1", last)
    assert [turn.text for turn in turns[3:]] == ["42", "2"]


def test_a_cleared_namespace_works_again_and_a_print_of_the_users_own_stays(serve: Serve) -> None:
    mine = "import builtins; builtins.print = mine = lambda *_: 5"
    turns = serve("globals().clear()", "1 + 1", "_ + 1", mine, "print is mine")
    assert (turns[2].text, turns[4].text) == ("3", "True")
