"""Workers for a confined process, which may not choose what they open."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, cast

import pytest
from msgspec.structs import replace

from tests.faces import PATIENCE
from wasm_kernel.engine.flavours import UNCHECKED, Flavour
from wasm_kernel.linux.broker import BrokerError
from wasm_kernel.linux.channel import Channel
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.service.fork_server import ForkServer, Worker
from wasm_kernel.service.messages import read_request
from wasm_kernel.service.open_message import Open, plain_policy
from wasm_kernel.service.worker_supply import WorkerDesk, WorkerSupply

SESSION = Open("python", "s", "/nowhere", None, plain_policy(ExecutionPolicy()), False, "required")


class Forks:
    """Makes workers that are processes which do nothing."""

    is_alive = False

    def __init__(self) -> None:
        self.lines: list[socket.socket] = []
        self.processes: list[subprocess.Popen[bytes]] = []

    def spawn(
        self, language: str, flavours: Sequence[Flavour], progress: Callable[[str], None]
    ) -> Worker:
        progress("compiling")
        ours, theirs = socket.socketpair()
        self.lines.append(theirs)
        self.processes.append(subprocess.Popen(["sleep", "600"]))
        process = self.processes[-1].pid
        return Worker.of(ours, process, os.pidfd_open(process))


@pytest.fixture
def forks() -> Iterator[Forks]:
    made = Forks()
    yield made
    for process in made.processes:
        process.kill()
        process.wait()
    for line in made.lines:
        line.close()


@pytest.fixture
def supply(forks: Forks) -> Iterator[WorkerSupply]:
    own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    desk = WorkerDesk(theirs, cast("ForkServer", forks), "python", [UNCHECKED])
    running = threading.Thread(target=desk.run)
    running.start()
    with closing(WorkerSupply(own)) as made:
        made.begin(SESSION)
        yield made
    running.join(PATIENCE)
    assert not running.is_alive()


def opened_in(forks: Forks) -> Any:
    """The message that the last worker was opened with."""
    return read_request(Channel(forks.lines[-1]).receive())


def test_a_front_end_that_was_taken_over_gets_workers_of_its_own_session_alone(
    forks: Forks, supply: WorkerSupply
) -> None:
    said: list[str] = []
    first = supply.spawn(SESSION, print)
    other = replace(SESSION, workspace="/home", confinement="off", private_root="/", quiet=False)
    worker = supply.spawn(replace(other, notices=("told",)), said.append)
    assert opened_in(forks) == replace(SESSION, notices=("told",), quiet=False)
    assert said == ["compiling"]
    assert first._ends(PATIENCE)  # only one of them lives
    supply.end(first.process)  # a request that comes late
    assert not worker._ends(0.2)
    first.close()
    worker.open(other)  # the supply sends nothing
    assert Channel(forks.lines[-1]).is_quiet(0.1)
    assert worker.resident_bytes > 0
    worker.close()


def test_a_broker_that_ended_before_the_session_was_named_is_told() -> None:
    own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.close()
    with closing(WorkerSupply(own)) as made, pytest.raises(BrokerError, match="Restart the kernel"):
        made.begin(SESSION)


def test_session_with_many_states_gets_its_next_worker(forks: Forks, supply: WorkerSupply) -> None:
    """Formerly, a kernel with 500 named states could run no cell any more once it had slept."""
    supply.spawn(SESSION, print).close()
    stamps = {f"{number:064}": (2**31, number, 2**31, 2**60, 2**60) for number in range(2_000)}
    supply.spawn(replace(SESSION, verified=stamps), print).close()
    sent = opened_in(forks).verified.items()
    assert len(sent) > 100
    assert [*sent] == [*stamps.items()][-len(sent) :]


def test_a_worker_ends_with_its_front_end_if_no_nursery_is_left_to_end_it(
    forks: Forks, supply: WorkerSupply
) -> None:
    worker = supply.spawn(SESSION, print)
    supply.close()
    assert worker._ends(PATIENCE)
    worker.channel.close()
