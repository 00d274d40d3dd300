"""Two servers behind HAProxy, as examples/servers sets them up, under load; one is killed.

HAProxy comes from the system's packages (`apt-get install haproxy`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec import Struct

from tests.e2b.conftest import ANN, COMMAND, TOKENS, Api, SandboxOf
from tests.faces import PATIENCE, wait_for
from tests.mcp.clients import server_environment

pytestmark = pytest.mark.soak
CONFIG = Path(__file__).parents[2] / "examples" / "servers" / "haproxy.cfg"
CLIENTS, SECONDS = 16, 40.0


def free_place() -> str:
    """An address that no program listens on."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return f"127.0.0.1:{found.getsockname()[1]}"


@contextlib.contextmanager
def machine(place: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A server with its workers, which can be killed together as by a loss of power."""
    options = ["--keep", "--workspace", str(folder / "sessions")]
    options += ["--token-file", str(folder / "tokens.toml"), "--owner-sessions", "100"]
    options += ["--memory", "64G"]  # one server may have to carry all sandboxes
    command = [*COMMAND, place, *options]
    with subprocess.Popen(
        command, env=server_environment(folder), stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(PATIENCE)


def processes_of(server: subprocess.Popen[bytes]) -> list[int]:
    """Returns the ids of a server's process and of its workers."""
    listed = subprocess.check_output(["ps", "-eo", "pid,sess"], text=True)
    rows = (line.split() for line in listed.splitlines()[1:])
    return [int(pid) for pid, session in rows if int(session) == server.pid]


def kill_with_workers(process: subprocess.Popen[bytes]) -> None:
    """Kills a server and its workers at once."""
    for pid in processes_of(process):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def is_up(api: Api) -> bool:
    """Returns whether a server answers behind the balancer."""
    with contextlib.suppress(OSError):
        return api.call("GET", "/v2/sandboxes").status == 200
    return False


class Count(Struct):
    """The cells of one client: answered, failed, and lost after an answer."""

    answered: int = 0
    failed: int = 0
    lost: int = 0
    waited: float = 0.0


def use(api: Api, until: float, count: Count) -> None:
    """Counts in a sandbox's variable, and compares it with the cells that were answered."""
    sandbox = api.made(timeout=3600)
    sandbox.run("n = 0")
    while time.monotonic() < until:
        time.sleep(0.2)
        began = time.monotonic()
        if value(sandbox, "n += 1; n") is not None:
            count.answered += 1
            continue
        count.failed += 1
        while (found := value(sandbox, "n")) is None:
            assert time.monotonic() < began + PATIENCE, "the sandbox never came back"
            time.sleep(0.1)
        count.waited = max(count.waited, time.monotonic() - began)
        # a cell whose answer was lost may have been kept
        count.lost += max(0, count.answered - found)
        count.answered = found
    count.lost += max(0, count.answered - (value(sandbox, "n") or 0))


def value(sandbox: SandboxOf, code: str) -> int | None:
    """The value of a cell; None if it failed."""
    with contextlib.suppress(OSError, Exception):
        answer = sandbox.call("POST", "/execute", {"code": code})
        if answer.status == 200:
            return int(next(line["text"] for line in answer.lines if line.get("is_main_result")))
    return None


@pytest.mark.parametrize("with_workers", [False, True], ids=["server", "server and workers"])
def test_a_server_is_killed_under_load(tmp_path: Path, *, with_workers: bool) -> None:
    (tmp_path / "tokens.toml").write_text(TOKENS)
    places = [free_place() for _ in range(3)]
    names = dict(zip(("ADDRESS", "FIRST", "SECOND"), places, strict=True))
    with ExitStack() as ending:
        first, _ = (ending.enter_context(machine(each, tmp_path)) for each in places[1:])
        balancer = ending.enter_context(
            subprocess.Popen(["haproxy", "-f", str(CONFIG)], env={**os.environ, **names})
        )
        ending.callback(balancer.terminate)
        api = Api(f"http://{places[0]}", {"X-API-Key": ANN})
        wait_for(lambda: is_up(api))
        time.sleep(2)  # the balancer finds both servers
        counts = [Count() for _ in range(CLIENTS)]
        until = time.monotonic() + SECONDS
        users = [threading.Thread(target=use, args=(api, until, each)) for each in counts]
        for each in users:
            each.start()
        time.sleep(SECONDS / 2)
        assert len(processes_of(first)) > CLIENTS // 4  # some sandboxes are on this server
        kill_with_workers(first) if with_workers else first.kill()
        for each in users:
            each.join()
    answered, failed, lost = (
        sum(getattr(each, name) for each in counts) for name in ("answered", "failed", "lost")
    )
    waited = max(each.waited for each in counts)
    print(f"{answered} cells, {failed} failed, {lost} lost, {waited:.1f} s to the next answer")
    # a cell's answer comes some milliseconds before its variables are on disk: workers that live
    # write them; if the machine has gone with them, a sandbox may be one cell behind
    assert lost <= (CLIENTS if with_workers else 0)
