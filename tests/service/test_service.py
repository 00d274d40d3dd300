"""A service's registry, its limits, and sessions that sleep."""

from __future__ import annotations

import itertools
import math
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.aged import aged
from tests.faces import PATIENCE, ends, fall_asleep, says, wait_for
from tests.service.conftest import Starting, worker_of
from wasm_kernel.errors import (
    Door,
    LimitReached,
    PolicyError,
    SandboxClosed,
    SessionInUse,
    WasmKernelError,
)
from wasm_kernel.folders.locks import is_served
from wasm_kernel.policy import MIB, ExecutionPolicy, Mount
from wasm_kernel.service import awake, expiry
from wasm_kernel.service.fork_server import Worker
from wasm_kernel.service.limits import ServiceLimits
from wasm_kernel.service.sandbox import Sandbox
from wasm_kernel.service.service import Service
from wasm_kernel.sessions import ids, removal, root
from wasm_kernel.sessions.root import SessionsRoot, WorkspaceError
from wasm_kernel.sessions.session import Session

pytestmark = pytest.mark.usefixtures("one_fork_server")

SMALL = ExecutionPolicy(memory_bytes=512 * MIB)


def pass_days(monkeypatch: pytest.MonkeyPatch, *, set_ahead: int = 86_400) -> None:
    """Lets a day pass between two looks for expired sessions; sets the system's clock ahead."""
    days = itertools.count(0, 86_400)
    later = SimpleNamespace(time=lambda: time.time() + set_ahead, monotonic=days.__next__)
    for module in (expiry, removal):
        monkeypatch.setattr(module, "time", later)


def test_the_registry_knows_what_a_session_uses(service: Service) -> None:
    with service.create(owner="ada") as sandbox, service.create(owner="bob"):
        says(sandbox, "x = bytearray(10**6); open('f', 'wb').write(x)")
        (listed,) = service.list("ada")
        assert {each.owner for each in service.list()} >= {"ada", "bob"}
        info = service.info(sandbox.session_id)
    assert (info.session_id, info.language, info.cells) == (sandbox.session_id, "python", 1)
    assert (listed.disk_bytes, info.state) == (None, "idle")
    assert info.disk_bytes is not None
    assert info.disk_bytes > 10**6
    assert info.guest_bytes > 50 * MIB
    assert info.host_bytes > MIB
    assert info.cpu_seconds > 0
    assert info.commits == 2  # including the beginning
    assert info.created <= info.last_used <= time.time()


def test_fuel_is_summed_up(warm_metered: None, starting: Starting) -> None:
    service = starting(policy=ExecutionPolicy(fuel_budget=10**10))
    sandbox = service.create()
    results = [sandbox.execute("sum(range(1000))") for _ in range(2)]
    burnt = [result.fuel_consumed or 0 for result in results]
    assert min(burnt) > 0
    assert service.info(sandbox.session_id).fuel == sum(burnt)


def test_an_idle_session_sleeps_and_the_next_call_wakes_it(starting: Starting) -> None:
    service = starting(limits=ServiceLimits(idle_seconds=1000))
    sandbox = service.create()
    says(sandbox, "x = 41; f = open('log', 'w'); _ = f.write('a')")
    process = worker_of(sandbox).process
    sandbox.worker.last_used -= 2000
    wait_for(lambda: sandbox.worker.state == "asleep")
    ends(process)
    asleep = service.info(sandbox.session_id)
    assert (asleep.state, asleep.host_bytes, asleep.cells) == ("asleep", 0, 1)
    assert asleep.cpu_seconds > 0
    awake = sandbox.execute("f.write('b'); f.close(); print(x, open('log').read())")
    assert (awake.stdout, awake.stderr) == ("41 ab\n", "")


def test_an_idle_worker_gives_its_guests_memory_back_until_the_next_call(
    service: Service, remote: Sandbox
) -> None:
    says(remote, "x = bytearray(b'x') * 64_000_000; f = open('log', 'w'); _ = f.write('a')")
    process = worker_of(remote).process
    wait_for(lambda: service.info(remote.session_id).host_bytes < 32 * MIB)
    with remote.fork()[0] as fork:
        assert says(fork, "print(x.count(b'x'))") == "64000000"
    wait_for(lambda: service.info(remote.session_id).host_bytes < 32 * MIB)
    assert says(remote, "f.close(); print(x.count(b'x'), open('log').read())") == "64000000 a"
    assert worker_of(remote).process == process


@pytest.mark.parametrize("what", ["workspace", "private folder", "state"])
def test_a_session_whose_state_went_says_so(service: Service, remote: Sandbox, what: str) -> None:
    """Formerly, the session woke without its variables and without a notice."""
    says(remote, "x = 1")
    fall_asleep(remote)
    with SessionsRoot(service.root).private_of(remote.session_id)() as (_, private):
        places = {"workspace": remote.workspace, "private folder": private}
    shutil.rmtree(places.get(what, private / "state"))
    if what == "workspace":
        for _ in range(2):
            with pytest.raises(WorkspaceError, match="deleted or moved this session's folder"):
                remote.execute("x")
        assert not remote.workspace.exists()
    else:
        assert "another program has removed their saved states" in remote.execute("x").stderr


def test_a_session_is_deleted_while_its_worker_is_long_in_coming(
    starting: Starting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiling the first guest of a machine takes a minute."""
    service, begun, is_over = starting(), threading.Event(), threading.Event()
    spawn = service.fork_server.spawn

    def slow(*args: Any) -> Worker:
        begun.set()
        is_over.wait(PATIENCE)
        return spawn(*args)

    monkeypatch.setattr(service.fork_server, "spawn", slow)
    sandbox = service.create()
    begun.wait(PATIENCE)
    service.delete(sandbox.session_id)
    assert not sandbox.workspace.exists()
    is_over.set()
    with pytest.raises(SandboxClosed):
        sandbox.execute("1")


def test_a_session_that_nobody_uses_is_deleted_and_its_caller_told(
    starting: Starting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion may take long; another session is looked after and falls asleep in that time."""
    begun, may_end = threading.Event(), threading.Event()

    really = root.remove_links

    def slowly(*args: Any) -> None:
        begun.set()
        may_end.wait(PATIENCE)
        really(*args)

    monkeypatch.setattr(removal, "remove_links", slowly)
    pass_days(monkeypatch, set_ahead=0)
    service = starting(limits=ServiceLimits(idle_seconds=1000, expire_seconds=3000))
    sandbox = service.create()
    says(sandbox, "x = 1")
    aged(sandbox.workspace, hours=2)
    sandbox.worker.last_used -= 4000
    assert begun.wait(PATIENCE)
    other = service.create()
    says(other, "x = 1")
    other.worker.last_used -= 2000
    wait_for(lambda: other.worker.state == "asleep")
    may_end.set()
    aged(other.workspace, hours=2)
    other.worker.last_used -= 2000
    wait_for(lambda: service.list() == [])
    sandbox.close()  # the first reason stays
    with pytest.raises(SandboxClosed, match=r"deleted, as it had not been used for 3000 seconds"):
        sandbox.execute("x")
    with pytest.raises(FileNotFoundError, match=r"it had not been used for 3000 seconds"):
        service.get(sandbox.session_id)


def test_memory_in_all_puts_idle_sessions_to_sleep_and_refuses_the_rest(
    starting: Starting, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = starting(limits=ServiceLimits(memory_bytes=1200 * MIB), policy=SMALL)
    first, second = service.create(), service.create()
    says(first, "x = 1")
    says(second, "x = 2")
    third = service.create()
    assert says(third, "print(3)") == "3"
    fourth = service.create()  # puts none to sleep before its first call
    states = [each.worker.state for each in (first, second, third, fourth)]
    assert states == ["asleep", "idle", "idle", "asleep"]
    busy = [each.submit("import time; time.sleep(60)") for each in (second, third)]
    with monkeypatch.context() as patched:
        patched.setattr(awake, "ROOM_SECONDS", 0.5)
        with pytest.raises(
            LimitReached, match=r"take 1.2 GiB.*raise the service's memory_bytes"
        ) as refused:
            first.execute("print(x)")
    assert refused.value.limit == "memory_bytes"
    waits = first.submit("print(x)")  # for a busy one to end
    for cell in busy:
        cell.interrupt()
    assert [cell.result(60).success for cell in busy] == [False, False]
    assert waits.result(60).stdout == "1\n"


def test_sessions_are_counted_by_owner_and_in_all(starting: Starting) -> None:
    service = starting(limits=ServiceLimits(sessions=3, owner_sessions=2))
    ada = [service.create(owner="ada") for _ in range(2)]
    with pytest.raises(LimitReached, match=r"An owner may have 2 sessions.*Nothing was changed"):
        service.create(owner="ada")
    with pytest.raises(LimitReached, match="An owner may have 2"):
        ada[0].fork()
    assert "An owner may have 2 sessions" in ada[0].execute("%fork").stderr
    service.create(owner="bob")
    with pytest.raises(LimitReached, match="This service takes 3 sessions"):
        service.create(owner="eve")
    ada[0].close()
    with pytest.raises(SandboxClosed):
        ada[0].fork()
    service.delete(ada[1].session_id)
    service.create(owner="ada")
    assert len([*service.root.iterdir()]) == 3


def test_the_disk_that_sessions_take_together_is_bounded(
    starting: Starting, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = starting(limits=ServiceLimits(disk_bytes=2**40))
    parent = service.create()
    says(parent, "f = open('f', 'wb')\nfor _ in range(256): _ = f.write(bytes(65536))\nf.close()")
    fall_asleep(parent)
    entry = service._registry.known(parent.session_id)
    wait_for(lambda: entry.measured > parent.worker.last_used and entry.disk_bytes > 16 * MIB)
    service.limits = ServiceLimits(disk_bytes=entry.disk_bytes * 5 // 2)
    parent.fork()
    with pytest.raises(LimitReached, match=r"MiB on disk.*raise disk_bytes"):
        parent.fork()  # a fork that was not measured yet counts as much as its parent
    assert "Delete some, or raise disk_bytes" in parent.execute("%fork").stderr
    assert len([*service.root.iterdir()]) == 2
    service.delete(parent.session_id)
    service.create()
    full = os.statvfs_result((4096, 4096, 10**6, 0, 0, 0, 0, 0, 0, 255))
    monkeypatch.setattr("os.statvfs", lambda path: full)
    with pytest.raises(LimitReached, match=r"has less than 256\.0 MiB left"):
        service.create()


def test_forks_that_cells_and_agents_want_have_the_limits_of_one_session(service: Service) -> None:
    policy = ExecutionPolicy(workspace_files=10)
    with service.create(policy=policy) as parent, service.create(policy=policy) as other:
        first, second = parent.execute("%fork"), parent.execute("%fork")
        assert (first.stderr, first.stdout[:8]) == ("", "Session ")
        assert (
            "Delete forks that you no longer need. Raise workspace_bytes or work" in second.stderr
        )
        for fork in parent.fork(2):  # the program has no limit
            fork.close()
        other.reconfigure(policy.at(Door.AGENT), None)
        before = sorted(service.root.iterdir())
        with pytest.raises(WasmKernelError, match="Delete forks that you no longer need"):
            other.fork(2)
        assert sorted(service.root.iterdir()) == before


def test_many_at_once_get_no_more_than_the_limits_allow(
    starting: Starting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sandbox, "start", lambda sandbox: None)  # starts no guest
    service = starting(limits=ServiceLimits(sessions=3))
    wide = threading.Barrier(12)

    def create(_: int) -> bool:
        wide.wait()
        try:
            service.create()
        except LimitReached:
            return False
        return True

    with ThreadPoolExecutor(12) as threads:
        assert sum(threads.map(create, range(12))) == 3
    assert len(service.list()) == len([*service.root.iterdir()]) == 3


def test_a_session_has_one_owner(service: Service) -> None:
    with service.create(owner="ada") as sandbox:
        assert service.get(sandbox.session_id, owner="ada") is sandbox
        with pytest.raises(SessionInUse, match="another owner"):
            service.get(sandbox.session_id, owner="bob")
    service.delete("8d0f2a52-9c4e-4a3b-8a52-5d8f0e6b7c11")  # a session that does not exist
    with pytest.raises(FileNotFoundError, match="no session"):
        service.get("8d0f2a52-9c4e-4a3b-8a52-5d8f0e6b7c11")


def test_a_later_service_knows_whose_a_session_is(starting: Starting) -> None:
    first = starting()
    mine, gone = first.create(owner="ada"), first.create(owner="ada")
    records = [_record_of(first, each.session_id) for each in (mine, gone)]
    assert is_served(first.root)
    first.close()
    assert not is_served(first.root)
    second = starting()
    with pytest.raises(SessionInUse, match="another owner"):
        second.get(mine.session_id, owner="bob")
    assert second.get(mine.session_id, owner="ada").session_id == mine.session_id
    # a worker that was taken over can write there, but gives its session to no other owner
    signed = records[1].read_bytes()
    others = signed.replace(b"ada", b"bob"), signed.replace(b"ada", b"\\ud800")
    for forged in (*others, records[0].read_bytes(), b"[]", b"\xff"):
        records[1].write_bytes(forged)
        for owner in ("ada", "bob"):
            with pytest.raises(SessionInUse, match="can't be told whom"):
                second.get(gone.session_id, owner=owner)
    records[1].write_bytes(signed)
    second.get(gone.session_id, owner="ada")


def _record_of(service: Service, session_id: str) -> Path:
    with SessionsRoot(service.root).private_of(session_id)() as (_, private):
        return private / "service.json"


def test_a_later_service_deletes_what_expired_and_nothing_else(
    starting: Starting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sandbox, "start", lambda sandbox: None)  # starts no guest
    monkeypatch.setattr("wasm_kernel.service.expiry._SCAN_SECONDS", 0.1)
    first = starting()
    left, kernels = first.create().workspace, first.create()
    used = Session(SessionsRoot(first.root), first.create().session_id)
    _record_of(first, kernels.session_id).unlink()  # no service knows it then
    killed = first.root / f".wasm_kernel-removed-{ids.new()}-0123abcd"
    killed.mkdir()
    first.close()
    later = starting(limits=ServiceLimits(expire_seconds=1000))
    kept = later.get(later.create().session_id)
    pass_days(monkeypatch)
    wait_for(lambda: not (left.exists() or killed.exists()))
    wait_for(lambda: not kept.workspace.exists())  # the kept session has expired by now, too
    assert kernels.workspace.exists()
    with pytest.raises(FileNotFoundError, match="it had not been used"):
        later.get(left.name)
    assert used.workspace.exists()
    used.closed()
    wait_for(lambda: not used.workspace.exists())


def test_a_system_clock_that_is_set_ahead_deletes_no_session(
    starting: Starting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Formerly, such a clock deleted even sessions that were used a moment ago."""
    service = starting(limits=ServiceLimits(expire_seconds=1000))
    sandbox = service.create()
    says(sandbox, "x = 1")
    really = time.time
    monkeypatch.setattr(time, "time", lambda: really() + 86_400)
    wait_for(lambda: sandbox.worker.state == "asleep")
    time.sleep(2.5)  # two rounds
    assert says(sandbox, "print(x)") == "1"


def test_sessions_with_the_same_files_expire_together(
    starting: Starting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sandbox, "start", lambda sandbox: None)  # starts no guest
    service = starting(limits=ServiceLimits(expire_seconds=1000))
    main = service.create()
    sharing, lone = service.create(files_of=main.session_id), service.create()
    sharing.worker.last_used += 86_400
    pass_days(monkeypatch)
    wait_for(lambda: not lone.workspace.exists())
    assert main.workspace.exists()  # another session uses these files
    sharing.worker.last_used -= 86_400
    wait_for(lambda: not (main.workspace.exists() or sharing.workspace.exists()))


def test_cells_wait_in_a_bounded_queue(starting: Starting) -> None:
    sandbox = starting(limits=ServiceLimits(queue=2)).create()
    says(sandbox, "ran = []")
    cells = [sandbox.submit("import time; time.sleep(60)")]
    cells += [sandbox.submit(f"ran.append({number})") for number in range(2)]
    with pytest.raises(LimitReached, match="2 cells of this session wait already"):
        sandbox.submit("ran.append(2)")
    cells[0].interrupt()
    assert [cell.result(60).success for cell in cells] == [False, True, True]
    assert says(sandbox, "print(ran)") == "[0, 1]"


def test_a_closed_service_keeps_its_sessions_for_the_next_one(tmp_path: Path) -> None:
    with Service(tmp_path / "sessions") as first:
        sandbox = first.create()
        says(sandbox, "x = 41")
        cell = sandbox.submit("while True: pass")
        process = worker_of(sandbox).process
    ends(process)
    assert not cell.result(60).success
    with pytest.raises(SandboxClosed, match="service is closed"):
        sandbox.execute("x")
    with pytest.raises(SandboxClosed, match="service is closed"):
        first.create()
    with Service(tmp_path / "sessions") as second:
        assert says(second.get(sandbox.session_id), "print(x)") == "41"


@pytest.mark.parametrize(("by_link", "later"), [(False, False), (True, False), (True, True)])
def test_a_mount_that_was_replaced_while_its_session_slept_is_refused(
    service: Service, tmp_path: Path, by_link: bool, later: bool
) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    for folder in (data, other):
        folder.mkdir()
        (folder / "whose").write_text(folder.name)
    code = "print(open('/data/whose').read())"
    policy = ExecutionPolicy(mounts=[Mount(data, "/data")])
    with service.create(policy=None if later else policy) as sandbox:
        sandbox.reconfigure(policy if later else None, None)
        assert says(sandbox, code) == "data"
        data.rename(tmp_path / "moved")
        if by_link:
            data.symlink_to(other)
        else:
            other.rename(data)
        (fork,) = sandbox.fork()
        fall_asleep(sandbox)
        for each in (sandbox, fork):
            with pytest.raises(PolicyError, match="another folder in its place"):
                each.execute(code)
        data.unlink() if by_link else data.rename(other)
        (tmp_path / "moved").rename(data)
        assert says(sandbox, code) == "data"


def test_limits_that_make_no_sense_are_refused() -> None:
    for wrong in (0, True, math.inf, math.nan, "3"):
        with pytest.raises(PolicyError, match="idle_seconds must be a finite number of seconds"):
            ServiceLimits(idle_seconds=wrong)  # type: ignore[arg-type]
    for wrong in (True, 1.5, "3"):
        with pytest.raises(PolicyError, match="a whole number above 0, or None for no limit, not"):
            ServiceLimits(sessions=wrong)  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="queue must be a whole number above 0, not None"):
        ServiceLimits(queue=None)  # type: ignore[arg-type]


def test_options_that_services_do_not_know_are_refused(service: Service, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'auto', 'required' or 'off', not 'require'"):
        Service(tmp_path, confinement="require")
    with pytest.raises(TypeError, match="limits is of type ServiceLimits, not dict"):
        Service(tmp_path, limits={})  # type: ignore[arg-type]
    for owner in (None, 7):  # the record could not be read back
        with pytest.raises(TypeError, match="owner is of type str"):
            service.create(owner=owner)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="policy is of type ExecutionPolicy, not dict"):
        service.create(policy={})  # type: ignore[arg-type]
    known = len(service.list())
    with pytest.raises(ValueError, match="surrogates not allowed"):
        service.create(owner="\ud800")
    assert len(service.list()) == known
    with service.create() as sandbox:
        service.note(sandbox.session_id, "kept")
        facts: Any
        for facts in (5, "\ud800", "x" * 2**20):  # formerly, such a record hid the owner
            with pytest.raises((TypeError, ValueError), match=r"facts|surrogates"):
                service.note(sandbox.session_id, facts)
        record = service.record(sandbox.session_id)
        assert record is not None and record.facts == "kept"


def test_private_state_may_lie_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Formerly, a service made a folder named `~`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with Service("root", private_root="~/private") as service:
        service.create()
    assert {path.name for path in tmp_path.iterdir()} >= {"root", "private"}
    assert not (tmp_path / "~").exists()
