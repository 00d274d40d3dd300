"""Sessions of one service keep the variables of their own histories.

At random, several at once are killed, stopped, put to rest and to sleep, forked, restored and
interrupted, and the process that forks their workers is killed.
"""

from __future__ import annotations

import ast
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tests.faces import PATIENCE, ends, wait_for
from wasm_kernel import Sandbox, SandboxResult, Service, ServiceLimits
from wasm_kernel.errors import WorkerLost
from wasm_kernel.sessions import ids

SESSIONS, STEPS, FORKING_KILLS, OWNERS = 8, 80, 5, 12
SEED = int(os.environ.get("WASM_KERNEL_SOAK_SEED", "14"))
LOOK = "print(globals().get('ran', []))"
STEP = "ran = [*globals().get('ran', []), {}]\nimport time; time.sleep({})"
IN_A_CELL = ["run", "kill", "kill", "stop", "interrupt"]
BETWEEN = ["sleep", "kill asleep", "stop asleep", "fork", "checkpoint", "restore"]
BETWEEN += ["rest", "kill resting"]
REST_SECONDS = 2.3  # seconds until a worker's guest rests


def is_lost(result: SandboxResult) -> bool:
    return result.error is not None and result.error.ename == "WorkerLost"


class Model:
    """A session, and the numbers that its variable `ran` must hold."""

    def __init__(self, service: Service, number: int) -> None:
        self.service = service
        self.sandbox: Sandbox = service.create(owner=str(number))
        self.chance = random.Random(SEED * 100 + number)
        self.ran: list[int] = []
        self.names: dict[str, list[int]] = {}
        self.done = Counter[str]()
        self.stopped = set[int]()

    def step(self) -> None:
        what = self.chance.choice([*IN_A_CELL, *BETWEEN])
        self.done[what] += 1
        if what in IN_A_CELL:
            self.run(what)
        else:
            before = [self.ran]
            try:
                self.between_cells(what, before)
            except WorkerLost:  # since the process that forks workers ended
                self.look(before, is_broken=True)
            else:
                self.look(before[-1:], is_broken="kill" in what or "stop" in what)

    def between_cells(self, what: str, may_be: list[list[int]]) -> None:
        """Does something to a session that is idle.

        Args:
            what: The name of the action.
            may_be: Receives the value of `ran` after the complete action.
        """
        if what == "sleep":
            self.sandbox.worker.sleep()
        elif what == "fork":
            (fork,) = self.sandbox.fork()
            self.sandbox.close()
            self.sandbox = fork
        elif what == "checkpoint":
            name = f"c{self.chance.randrange(10**9)}"
            self.sandbox.checkpoint(name)
            self.names[name] = self.ran
        elif what == "restore":
            if self.names:
                name = self.chance.choice(sorted(self.names))
                may_be.append(self.names[name])
                self.sandbox.restore(name)
        elif "rest" in what:
            time.sleep(REST_SECONDS)
            if what != "rest":
                self.hurt("kill")
        else:
            self.hurt("kill" if "kill" in what else "stop")
            self.sandbox.worker.sleep()

    def hurt(self, how: str) -> None:
        if (worker := self.sandbox.worker.worker) is not None:
            if how == "stop":
                self.stopped.add(worker.process)
            os.kill(worker.process, signal.SIGKILL if how == "kill" else signal.SIGSTOP)

    def run(self, what: str) -> None:
        """Appends a number in a cell; something else is done to the session at the same time."""
        number, is_over = self.chance.randrange(10**6), threading.Event()

        def act() -> None:
            is_over.wait(self.chance.random() * 0.3)
            if what == "interrupt":
                self.sandbox.interrupt()
            elif what != "run":
                self.hurt(what)

        acting = threading.Thread(target=act)
        acting.start()
        result = self.sandbox.execute(STEP.format(number, 0 if what == "run" else 0.2))
        is_over.set()
        acting.join()
        self.look([[*self.ran, number]], is_broken=what != "run" or is_lost(result))

    def look(self, may_be: Sequence[list[int]], *, is_broken: bool = False) -> None:
        """Checks the session's variable: the last value, or after a break, a value that it once
        had.

        Args:
            may_be: The values that `ran` may have; without a break it has the last.
            is_broken: True if something was cut short.
        """
        result = self.sandbox.execute(LOOK)
        while is_lost(result):
            result, is_broken = self.sandbox.execute(LOOK), True
        assert result.success, result.error
        found = ast.literal_eval(result.stdout.strip())
        if is_broken or "after a break" in result.stderr:
            assert any(found == each[: len(found)] for each in may_be), (found, may_be)
        else:
            assert found == may_be[-1]
        self.ran = found


MARK = "WASM_KERNEL_SOAK_ROOT"
OWNER = """
import random, sys, threading
from wasm_kernel import Service, ServiceLimits
if __name__ == "__main__":
    with Service(sys.argv[1], limits=ServiceLimits(idle_seconds=0.3)) as service:
        def live(number):
            chance, sandbox = random.Random(number), service.create(owner="me")
            for step in range(10**6):
                what = chance.choice(["cell", "cell", "fork", "sleep"])
                if what == "fork":
                    (fork,) = sandbox.fork()
                    service.delete(sandbox.session_id)
                    sandbox = fork
                elif what == "sleep":
                    sandbox.worker.sleep()
                else:
                    code = f"ran = [*globals().get('ran', []), {step}]; print(ran)"
                    result = sandbox.execute(code)
                    line = f"{sandbox.session_id} {result.stdout.strip()}\\n"
                    print(line, end="", flush=True)  # in one piece: others print, too
        for number in range(3):
            threading.Thread(target=live, args=(number,), daemon=True).start()
        threading.Event().wait()
"""


@pytest.mark.soak
def test_a_killed_owner_leaves_sessions_that_open_and_nothing_else(tmp_path: Path) -> None:
    chance, opened = random.Random(SEED), 0
    for number in range(OWNERS):
        root = tmp_path / str(number)
        command, env = [sys.executable, "-c", OWNER, str(root)], {**os.environ, MARK: str(root)}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as owner:
            threading.Timer(1 + 4 * chance.random(), owner.kill).start()
            assert owner.stdout is not None
            said = [line.split(" ", 1) for line in owner.stdout if line.endswith("]\n")]
        wait_for(partial(is_gone, root), "the end of its processes")
        last = {name: ast.literal_eval(ran) for name, ran in said}
        with Service(root) as service:
            names = [each.name for each in root.glob("*") if ids.is_id(each.name)]
            opened += len(names)
            for name in names:
                result = service.get(name, owner="me").execute(LOOK)
                assert result.success, result.error
                found = ast.literal_eval(result.stdout.strip())
                known = last.get(name, found)
                assert found[: len(known)] == known or known[: len(found)] == found
    assert opened > OWNERS


def is_gone(root: Path) -> bool:
    """True if the owner of this root has no process left; they carry the root as a mark."""
    for each in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"{MARK}={root}\0" in each.read_text(errors="replace"):
                return False
    return True


@pytest.mark.soak
def test_sessions_are_as_histories_say(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    limits = ServiceLimits(answer_seconds=1.5, idle_seconds=3)
    done, stopped, is_over = Counter[str](), set[int](), threading.Event()
    with Service(tmp_path / "sessions", limits=limits) as service:

        def live(number: int) -> None:
            model = Model(service, number)
            for _ in range(STEPS):
                model.step()
            done.update(model.done)
            stopped.update(model.stopped)

        def kill_the_forking_process() -> None:
            for _ in range(FORKING_KILLS):
                if is_over.wait(15):
                    return
                if process := service.fork_server.process:
                    os.kill(process, signal.SIGKILL)

        killing = threading.Thread(target=kill_the_forking_process)
        killing.start()
        try:
            with ThreadPoolExecutor(SESSIONS) as threads:
                for ended in [threads.submit(live, number) for number in range(SESSIONS)]:
                    ended.result()
        finally:
            is_over.set()
            killing.join(PATIENCE)
        left = [each.sandbox.worker.worker for each in service._registry.entries()]
        processes = [each.process for each in left if each is not None]
        processes.append(service.fork_server.process)
    print(dict(done))
    assert sum(done[what] for what in done if "kill" in what or "stop" in what) >= 200
    silent = re.findall(r"process (\d+) of a session did not answer for 60 seconds", caplog.text)
    assert silent and {int(each) for each in silent} <= stopped
    for process in processes:
        ends(process)
