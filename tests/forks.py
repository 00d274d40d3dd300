"""Runs tests in several processes, which are forked once all tests are collected: `-n 5`.

So the imports and the collection, some seconds, are paid once instead of in each process. A process
takes one group of tests after the other, a file or a whole folder of `TOGETHER`.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, groupby, pairwise
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from tempfile import TemporaryFile
from typing import Any, NoReturn

import pytest

TOGETHER = ("tests/browser/",)  # one server and one browser at a time

Group = list[pytest.Item]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("forks")
    group._addoption("-n", "--numprocesses", type=int, default=0, help="run tests in N processes")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Takes the place of pytest's own loop, for `-n`."""
    count = session.config.option.numprocesses
    if not count or session.config.option.collectonly or session.testsfailed:
        return None
    tests = Tests(session)
    workers = [tests.fork(number) for number in range(count)]
    try:
        tests.report(workers)
    finally:
        for worker in workers:
            worker.end()
    return True


@dataclass(eq=False)
class Worker:
    """A process that runs tests. `ended` is its descriptor, which is readable after its end.

    pytest takes it for a node of pytest-xdist, and shows its `gateway.id` and `workerinfo`.
    """

    id: str
    ended: int
    reports: Connection

    @property
    def gateway(self) -> Worker:
        return self

    @property
    def workerinfo(self) -> dict[str, object]:
        about = {"sysplatform": sys.platform, "version_info": sys.version_info}
        return {"id": self.id, "executable": sys.executable, **about}

    def end(self) -> None:
        """Ends the process, which may have ended, after the test that it runs."""
        signal.pidfd_send_signal(self.ended, signal.SIGINT)
        os.waitid(os.P_PIDFD, self.ended, os.WEXITED)


class Tests:
    """The tests of a run, in groups that one process after the other takes."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._groups = [list(items) for _, items in groupby(session.items, _group)]
        self._folder = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        self._queue, adding = os.pipe()
        os.write(adding, b"".join(number.to_bytes(2) for number in range(len(self._groups))))
        os.close(adding)

    def fork(self, number: int) -> Worker:
        """Starts a process that takes groups until there are none."""
        reading, writing = Pipe(duplex=False)
        name = f"gw{number}"
        if not (pid := os.fork()):
            self._run(name, writing)
        writing.close()
        return Worker(name, os.pidfd_open(pid), reading)

    def _run(self, name: str, reports: Connection) -> NoReturn:
        try:
            self._settle(name, reports)
            for item, following in pairwise(chain(self._taken(), [None])):
                assert item
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        except KeyboardInterrupt:
            self._session._setupstate.teardown_exact(None)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    def _settle(self, name: str, reports: Connection) -> None:
        """Gives this process its own folder, output and random numbers, and no terminal."""
        config, plugins = self._session.config, self._session.config.pluginmanager
        random.seed()
        folder = self._folder / name
        folder.mkdir(mode=0o700)
        config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]
        _capture_apart(plugins.getplugin("capturemanager"))
        plugins.unregister(name="terminalreporter")
        plugins.register(Reports(config, reports))

    def _taken(self) -> Iterator[pytest.Item]:
        while number := os.read(self._queue, 2):
            yield from self._groups[int.from_bytes(number)]

    def report(self, workers: list[Worker]) -> None:
        """Hands the reports of all processes to pytest until there are no more.

        Raises:
            Failed: A process has died, or pytest was asked to stop at a failure.
        """
        running: dict[Any, Worker] = {each.ended: each for each in workers}
        running |= {each.reports: each for each in workers}
        begun: dict[Worker, str] = {}
        while running:
            for ready in wait(list(running)):
                worker = running[ready]
                if ready is worker.reports:
                    try:
                        self._receive(worker, begun)
                    except EOFError:
                        del running[ready]
                elif worker.reports not in running or not worker.reports.poll():
                    self._check(worker, begun.get(worker, "its start"))
                    del running[ready]
                    running.pop(worker.reports, None)
            if self._session.shouldfail:
                raise self._session.Failed(self._session.shouldfail)

    def _receive(self, worker: Worker, begun: dict[Worker, str]) -> None:
        match worker.reports.recv():
            case str(nodeid):
                begun[worker] = nodeid
            case data:
                config = self._session.config
                report = config.hook.pytest_report_from_serializable(config=config, data=data)
                report.node = worker
                config.hook.pytest_runtest_logreport(report=report)

    def _check(self, worker: Worker, last: str) -> None:
        done = os.waitid(os.P_PIDFD, worker.ended, os.WEXITED | os.WNOWAIT)
        if done is None or done.si_status:
            self._session.shouldfail = f"a process of the tests died in {last}"


class Reports:
    """Sends the reports of a process that runs tests to the one that shows them."""

    def __init__(self, config: pytest.Config, to: Connection) -> None:
        self._config = config
        self._to = to

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._to.send(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._to.send(data)


def _group(item: pytest.Item) -> str:
    file = item.nodeid.partition("::")[0]
    return next((folder for folder in TOGETHER if file.startswith(folder)), file)


def _capture_apart(capturing: Any) -> None:
    """Gives this process files of its own for what its tests print. Some modules have kept
    `sys.stderr` as it was when they were imported, so the objects stay.
    """
    for stream in (capturing._global_capturing.out, capturing._global_capturing.err):
        if stream is not None:
            with TemporaryFile() as own:
                for descriptor in (stream.tmpfile.fileno(), stream.targetfd):
                    os.dup2(own.fileno(), descriptor)
