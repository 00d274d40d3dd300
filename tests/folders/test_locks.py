"""The lock that marks a session as in use, and the record of the last keeper of a history."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from wasm_kernel.errors import SessionInUse
from wasm_kernel.folders.locks import (
    HistoryLock,
    Holder,
    OwnerLock,
    PresenceLock,
    Resume,
    exclusively,
    is_used,
    note_forked,
)
from wasm_kernel.linux.folders import Folder

TRIES = 100
Using = Callable[[], PresenceLock]


@pytest.fixture
def private(tmp_path: Path) -> Iterator[Folder]:
    with Folder.open(tmp_path) as folder:
        yield folder


@pytest.fixture
def use(tmp_path: Path, ending: ExitStack) -> Using:
    """Begins to use the session, as a process of its own would."""

    def begin() -> PresenceLock:
        lock = PresenceLock(ending.enter_context(Folder.open(tmp_path)))
        ending.callback(lock.release)
        return lock

    return begin


def test_users_share_a_session_and_a_lone_one_is_the_only_one(private: Folder, use: Using) -> None:
    assert not is_used(private)
    first = use()
    assert first.is_only()
    second = use()
    assert not first.is_only()
    assert not second.is_only()
    second.release()
    assert first.is_only()
    assert is_used(private)
    first.release()
    assert not first.is_only()
    assert not is_used(private)


def test_no_user_has_a_session_alone_while_others_check(private: Folder, use: Using) -> None:
    """A check loses the lock and takes it again: even in that instant the session is not free."""
    users, over, wrong = [use(), use()], threading.Event(), list[PresenceLock]()

    def ask(user: PresenceLock) -> None:
        while not over.is_set():
            if user.is_only():
                wrong.append(user)

    asking = [threading.Thread(target=ask, args=[user]) for user in users]
    for thread in asking:
        thread.start()
    try:
        for _ in range(TRIES):
            assert is_used(private)
            with pytest.raises(SessionInUse), exclusively(private):
                pass
    finally:
        over.set()
        for thread in asking:
            thread.join()
    assert not wrong


def test_a_check_of_the_lock_keeps_no_user_from_beginning(private: Folder, use: Using) -> None:
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            is_used(private)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(TRIES):
            use().release()
    finally:
        over.set()
        looking.join()


@pytest.fixture
def lock_of(tmp_path: Path) -> Iterator[Callable[[], HistoryLock]]:
    """Makes locks on one private folder, each as in a process of its own."""
    with ExitStack() as opened:
        yield lambda: HistoryLock(opened.enter_context(Folder.open(tmp_path)))


def test_histories_stay_with_kernels(lock_of: Callable[[], HistoryLock], private: Folder) -> None:
    """The history is also kept between the end of one worker and the start of the next."""
    owner, second_kernel = OwnerLock(private), OwnerLock(private)
    assert owner.acquire()
    assert owner.acquire()
    assert not second_kernel.acquire()
    stranger, worker = lock_of(), lock_of()
    assert not stranger.acquire()
    assert worker.acquire(is_owned=True)
    worker.release()
    owner.close()
    assert not owner.acquire()  # a starting worker asks while its kernel ends
    assert second_kernel.acquire()
    second_kernel.close()
    assert stranger.acquire()
    stranger.release()


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_kernel_that_ends_in_its_sleep_has_crashed_unless_it_notes_its_end(
    lock_of: Callable[[], HistoryLock], private: Folder, has_ended: bool
) -> None:
    owner = OwnerLock(private)
    owner.acquire()
    worker, later, last = lock_of(), lock_of(), lock_of()
    worker.acquire(is_owned=True)
    worker.clear_requests()
    worker.release(asleep=True)
    if has_ended:
        owner.note_ended()
    owner.close()
    assert later.acquire()
    assert later.wants(Resume.CRASH) is not has_ended
    assert not later.wants(Resume.NEVER)
    later.clear_requests()
    later.release(asleep=True)
    assert last.acquire()
    assert last.wants(Resume.CRASH), "a note is of one end"
    last.release()


def test_a_lock_not_held_wants_nothing(lock_of: Callable[[], HistoryLock], private: Folder) -> None:
    first, second = lock_of(), lock_of()
    first.acquire()
    second.acquire()
    second.release()
    assert not any(second.wants(resume) for resume in Resume)
    assert Holder.of(private).alive
    first.release()


def test_keepers_let_others_begin_anew(lock_of: Callable[[], HistoryLock], private: Folder) -> None:
    first, second, third = lock_of(), lock_of(), lock_of()
    first.acquire()
    first.clear_requests()
    first.begin_anew()
    first.release()
    assert Holder.of(private).anew
    second.acquire()
    assert not any(second.wants(resume) for resume in Resume)
    second.clear_requests()
    second.release()
    third.acquire()
    assert third.wants(Resume.ALWAYS)
    third.release()


def test_the_note_for_the_next_keeper_may_hold_anything(private: Folder, tmp_path: Path) -> None:
    for content in (b"", b"null", b'{"anew": 1}', b"\xff", b"[" * 100_000):
        (tmp_path / "holder").write_bytes(content)
        assert Holder.of(private) == Holder(alive=True)  # as after a crash
        assert not Holder.of(private).anew
    note_forked(private)
    assert not Holder.of(private).anew
