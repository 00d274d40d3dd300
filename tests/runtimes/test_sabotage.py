"""Whatever a cell breaks, the next one runs with the variables it had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.sampled import sampled

Serve = Callable[..., list[Any]]

SABOTAGE = [
    "import sys\nfor name in list(sys.modules):\n    if 'agent' in name: del sys.modules[name]",
    "import sys; sys.modules.clear()",
    "import sys; del sys.modules['__main__']",
    "import sys; sys.stdout = None",
    "import sys; del sys.stdout",
    "import sys; sys.stdout.close()",
    "import sys; sys.displayhook = None",
    "import builtins; builtins.print = None",
    "import builtins; builtins.__import__ = None",
    "import builtins; builtins.isinstance = None",
    "import builtins; builtins.len = lambda *_: 1/0",
    "import builtins; del builtins.len",
    "__builtins__ = None",
    "import json; json.dumps = json.JSONEncoder = None; import sys; sys.modules['json'] = None",
    "get_ipython = None",
    "ip = get_ipython(); ip.run_cell = ip.events = ip.display_pub = None",
    "get_ipython().history_manager = None",
    "get_ipython()._user_ns = {}",
    "type(get_ipython()).run_cell = None",
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)",
    "import asyncio; asyncio.get_event_loop().close()",
]


@pytest.mark.parametrize("code", sampled({code: code for code in SABOTAGE}, 2))
def test_the_cell_after_the_next_runs_as_before(serve: Serve, code: str) -> None:
    turns = serve(
        "x = 41", code, "None", "x + 1", "print(1)\nawait __import__('asyncio').sleep(0, 2)"
    )
    assert all(turn.ends_with_done for turn in turns)
    assert turns[3].text == "42"
    assert turns[4].text == "2"


def test_a_cleared_namespace_works_again(serve: Serve) -> None:
    assert serve("globals().clear()", "1 + 1", "_ + 1")[2].text == "3"


def test_a_print_of_the_users_own_is_kept(serve: Serve) -> None:
    code = "import builtins; mine = lambda *_: 5; builtins.print = mine"
    assert serve(code, "print is mine")[1].text == "True"


def test_names_that_ipython_adds_may_be_gone_when_it_takes_them_away(serve: Serve) -> None:
    """As if an interrupt came between two of them."""
    turn = serve("import builtins; del builtins.get_ipython; kept = 1")[0]
    assert turn.reply["status"] == "ok"
