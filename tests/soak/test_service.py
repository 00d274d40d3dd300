"""Sessions of one service are killed, put to sleep, forked and interrupted at random, several
at once: each one's variables are those of its own history.
"""

from __future__ import annotations

import ast
import os
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from wasm_kernel import RemoteSandbox, SandboxResult, Service, ServiceLimits

SESSIONS, STEPS = 8, 25
SEED = int(os.environ.get("WASM_KERNEL_SOAK_SEED", "14"))
LOOK = "print(globals().get('ran', []))"
STEP = "ran = [*globals().get('ran', []), {}]\nimport time; time.sleep({})"


def is_lost(result: SandboxResult) -> bool:
    return result.error is not None and result.error.ename == "WorkerLost"


class Model:
    """A session, and the numbers that its variable `ran` must hold."""

    def __init__(self, service: Service, number: int) -> None:
        self.service = service
        self.sandbox: RemoteSandbox = service.create(owner=str(number))
        self.chance = random.Random(SEED * 100 + number)
        self.ran: list[int] = []

    def step(self) -> None:
        what = self.chance.choice(["run", "run", "kill", "stop", "sleep", "interrupt", "fork"])
        if what == "sleep":
            self.sandbox.worker.sleep()
            self.look()
        elif what == "fork":
            (fork,) = self.sandbox.fork()
            self.sandbox.close()
            self.sandbox = fork
            self.look()
        else:
            self.run(what)

    def run(self, what: str) -> None:
        """Appends a number in a cell, to which something happens meanwhile."""
        number, is_over = self.chance.randrange(10**6), threading.Event()
        worker = self.sandbox.worker.worker

        def act() -> None:
            is_over.wait(self.chance.random() * 0.3)
            if what == "interrupt":
                self.sandbox.interrupt()
            elif worker is not None and what != "run":
                os.kill(worker.process, signal.SIGKILL if what == "kill" else signal.SIGSTOP)

        acting = threading.Thread(target=act)
        acting.start()
        result = self.sandbox.execute(STEP.format(number, 0 if what == "run" else 0.2))
        is_over.set()
        acting.join()
        ran = [*self.ran, number]
        if not is_lost(result):
            self.ran = ran
        self.look(ran, is_broken=what != "run" or is_lost(result))

    def look(self, most: list[int] | None = None, *, is_broken: bool = False) -> None:
        """Checks what the session has: all, or if a cell was cut short, a state that there was."""
        result = self.sandbox.execute(LOOK)
        while is_lost(result):
            result, is_broken = self.sandbox.execute(LOOK), True
        assert result.success, result.error
        found, most = ast.literal_eval(result.stdout.strip()), most or self.ran
        if is_broken or "after a break" in result.stderr:
            assert found == most[: len(found)]
            self.ran = found
        assert found == self.ran


@pytest.mark.soak
def test_sessions_are_as_their_own_histories_say(warm: None, tmp_path: Path) -> None:
    limits = ServiceLimits(answer_seconds=1.5, idle_seconds=1)
    with Service(tmp_path / "sessions", limits=limits) as service:

        def live(number: int) -> None:
            model = Model(service, number)
            for _ in range(STEPS):
                model.step()

        with ThreadPoolExecutor(SESSIONS) as threads:
            for done in [threads.submit(live, number) for number in range(SESSIONS)]:
                done.result()
