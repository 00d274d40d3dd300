"""The magics of a session in kernels as Jupyter starts them: tables, and what the host does."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import Starting
from tests.end_to_end.real_kernel import SECONDS, RealKernel

OLD = timedelta(days=30)
APPLY = "'prune_sessions', '--older-than 0h --apply'"


@pytest.fixture(scope="module", autouse=True)
def _installed(warm: None, installed_kernelspec: Path) -> None:
    """Kernels are started by name."""


def old_session(root: Path) -> Path:
    """A session's folder that nobody has used for a month."""
    workspace = root / str(uuid.uuid4())
    workspace.mkdir(parents=True)
    then = (datetime.now(UTC) - OLD).isoformat()
    (workspace / ".metadata.json").write_text(
        json.dumps(
            {"session_id": workspace.name, "created_at": then, "updated_at": then, "version": 1}
        )
    )
    (workspace / "data.bin").write_bytes(b"x" * 5000)
    return workspace


def own_workspace(root: Path) -> Path:
    (workspace,) = root.iterdir()
    return workspace


def result_of(kernel: RealKernel, code: str) -> dict[str, Any]:
    """The MIME bundle of a cell's value."""
    found: list[dict[str, Any]] = []

    def hear(message: Any) -> None:
        if message["msg_type"] == "execute_result":
            found.append(message["content"]["data"])

    kernel.client.execute_interactive(code, timeout=SECONDS, output_hook=hear)
    (bundle,) = found
    return bundle


def test_the_path_is_told_by_the_host_and_not_to_the_guest(start: Starting, root: Path) -> None:
    kernel = start()
    workspace = own_workspace(root)
    assert kernel.run("%session_path")["stdout"] == f"{workspace}\n"
    assert kernel.run("%%capture held\n%session_path")["stdout"] == f"{workspace}\n"
    assert kernel.run("print(repr(held.stdout))")["stdout"] == "''\n"
    sneaking = kernel.run("get_ipython().run_line_magic('session_path', '')")
    assert sneaking["stderr"].startswith("UsageError: ")
    assert str(workspace) not in sneaking["stdout"]


def test_tables_reach_the_notebook_as_html_and_as_text(start: Starting) -> None:
    kernel = start()
    kernel.run("%%session_write data/a.csv\n1,2")
    files = result_of(kernel, "%session_files --long")
    assert "data/a.csv" in files["text/plain"]
    assert "<td" in files["text/html"]
    info = result_of(kernel, "%session_info")
    assert "walls around the kernel" in info["text/plain"]
    assert "%session_path" in info["text/plain"]
    assert "<td" in info["text/html"]


def test_the_walls_are_told_as_they_stand(start: Starting) -> None:
    kernel = start(confinement="off")
    said = kernel.run("i = %session_info\nprint(i['confinement'])")
    assert said["stdout"] == "files: off; system calls: off\n"


def test_pruning_is_off_unless_the_kernel_was_told(start: Starting, root: Path) -> None:
    kernel = start()
    old = old_session(root)
    said = kernel.run("%prune_sessions --older-than 24h --apply")
    assert "WasmKernel.prune_sessions=True" in said["stderr"]
    assert old.is_dir()


@pytest.mark.parametrize("confinement", ["auto", "off"])
def test_pruning_tells_first_and_deletes_when_asked(
    start: Starting, root: Path, tmp_path: Path, confinement: str
) -> None:
    events = tmp_path / "events"
    kernel = start(prune_sessions="True", confinement=confinement, event_log=str(events))
    own, old = own_workspace(root), old_session(root)
    dry = result_of(kernel, "%prune_sessions --older-than 7d")
    assert "would be deleted" in dry["text/plain"]
    assert old.name in dry["text/html"]
    assert old.is_dir()
    said = kernel.run("p = %prune_sessions --older-than 0h --apply\nprint(p['deleted'], p)")
    assert said["stdout"].startswith(f"['{old.name}'] 1 session deleted, 0 skipped, 1 in use")
    assert not old.exists()
    assert own.is_dir()  # this kernel's own
    assert kernel.run("print(40 + 2)")["stdout"] == "42\n"
    told = [json.loads(line)["event"] for line in events.read_text().splitlines()]
    assert told.count("session.prune.completed") == 2
    assert told.count("session.prune.deleted") == 1


@pytest.mark.parametrize(
    "code",
    [
        f"get_ipython().run_line_magic({APPLY})",
        "def f():\n    %prune_sessions --older-than 0h --apply\nf()",
        "days = 0\n%prune_sessions --older-than {days}d --apply",
        f"import wasm_kernel_agent.host as h\nh.run_host_command(get_ipython(), {APPLY})",
        f"%prune_sessions --older-than 0h\nget_ipython().run_line_magic({APPLY})",
        "%prune_sessions --older-than soon --apply",
        "%prune_sessions --apply",
        "%prune_sessions --older-than 0h --apply ../../other",
    ],
)
def test_nothing_is_pruned_that_the_cell_does_not_ask_for_word_by_word(
    start: Starting, root: Path, code: str
) -> None:
    kernel = start(prune_sessions="True")
    old = old_session(root)
    assert kernel.run(code)["stderr"].startswith("UsageError: ")
    assert old.is_dir()
