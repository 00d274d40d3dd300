"""The magics of a session in kernels started by Jupyter: tables, and work of the host."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.aged import aged_session
from tests.end_to_end.conftest import Starting, starting_in
from tests.end_to_end.real_kernel import RealKernel

APPLY = "'prune_sessions', '--older-than 0h --apply'"
NOT_ASKED_FOR = [
    f"get_ipython().run_line_magic({APPLY})",
    "def f():\n    %prune_sessions --older-than 0h --apply\nf()",
    "days = 0\n%prune_sessions --older-than {days}d --apply",
    f"import wasm_kernel_agent.host as h\nh.run_host_command(get_ipython(), {APPLY})",
    f"%prune_sessions --older-than 0h\nget_ipython().run_line_magic({APPLY})",
    "%prune_sessions --older-than soon --apply",
    "%prune_sessions --apply",
    "%prune_sessions --older-than 0h --apply ../../other",
]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Starting]:
    """Starts kernels, each with its own folder of sessions."""
    with ExitStack() as ending:

        def one(**traits: Any) -> RealKernel:
            root = tmp_path_factory.mktemp("magics") / "sessions"
            events = str(root.parent / "events")
            return ending.enter_context(starting_in(root))(event_log=events, **traits)

        yield one


@pytest.fixture(scope="module")
def kernel(start: Starting) -> RealKernel:
    """A kernel with default settings."""
    return start()


@pytest.fixture(scope="module")
def pruning(start: Starting) -> RealKernel:
    """A kernel that may prune."""
    return start(prune_sessions="True")


def old_session(root: Path) -> Path:
    """The folder of a session that was not used for a month."""
    return aged_session(root, 30 * 24, b"x" * 5000)


def result_of(kernel: RealKernel, code: str) -> dict[str, Any]:
    """The MIME bundle of a cell's value."""
    (result,) = kernel.run(code).of("execute_result")
    return dict(result["data"])


def test_facts_reach_the_notebook_and_the_path_not_the_guest(kernel: RealKernel) -> None:
    (workspace,) = kernel.sessions.iterdir()
    assert kernel.run("%session_path").stdout == f"{workspace}\n"
    assert kernel.run("%%capture held\n%session_path").stdout == f"{workspace}\n"
    assert kernel.run("print(repr(held.stdout))").stdout == "''\n"
    sneaking = kernel.run("get_ipython().run_line_magic('session_path', '')")
    assert sneaking.stderr.startswith("UsageError: ")
    assert str(workspace) not in sneaking.stdout
    info = result_of(kernel, "%session_info")
    assert "walls around the kernel" in info["text/plain"]
    assert "%session_path" in info["text/plain"]
    assert "<td" in info["text/html"]


def test_pruning_is_off_unless_the_kernel_was_told(kernel: RealKernel) -> None:
    old = old_session(kernel.sessions)
    said = kernel.run("%prune_sessions --older-than 24h --apply")
    assert "WasmKernel.prune_sessions=True" in said.stderr
    assert old.is_dir()


def test_pruning_tells_first_and_deletes_when_asked_word_by_word(pruning: RealKernel) -> None:
    old = old_session(pruning.sessions)
    for code in NOT_ASKED_FOR:
        assert pruning.run(code).stderr.startswith("UsageError: "), code
        assert old.is_dir(), code
    shutil.rmtree(old)
    kernel = pruning
    (own,) = kernel.sessions.iterdir()
    old = old_session(kernel.sessions)
    before = events_of(kernel)
    dry = result_of(kernel, "%prune_sessions --older-than 7d")
    assert "would be deleted" in dry["text/plain"]
    assert old.name in dry["text/html"]
    assert old.is_dir()
    said = kernel.run("p = %prune_sessions --older-than 0h --apply\nprint(p['deleted'], p)")
    assert said.stdout.startswith(f"['{old.name}'] 1 session deleted, 0 skipped, 1 in use")
    assert not old.exists()
    assert own.is_dir()
    assert kernel.run("print(40 + 2)").stdout == "42\n"
    told = events_of(kernel) - before
    assert told["session.prune.completed"] == 2
    assert told["session.prune.deleted"] == 1


def events_of(kernel: RealKernel) -> Counter[str]:
    """The number of times that each event was logged."""
    lines = (kernel.sessions.parent / "events").read_text().splitlines()
    return Counter(json.loads(line)["event"] for line in lines)
