"""A guest's memory is moved to the next guest, or goes from state to state: only pages that differ
are filled, and no page of an earlier state is left.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.tiny import Guest
from tests.faces import raising
from tests.sampled import sampled
from tests.state.session import FIRST, Session
from wasm_kernel.errors import HistoryError
from wasm_kernel.linux import memory
from wasm_kernel.linux.memory import MovedMemory
from wasm_kernel.state import history, image, pages, parked, recorder
from wasm_kernel.state.asked import AskedMemory
from wasm_kernel.state.commits import GuestPages, Unreadable
from wasm_kernel.state.folding import fold
from wasm_kernel.state.image import BaseImage, ImageRecord
from wasm_kernel.state.pages import PAGE, WriteProtect
from wasm_kernel.state.parked import NotMoved, ParkedMemory

ROUNDS = 12
BIG = {f"p{page}": f"v{page}" for page in range(0, 600, 2)}
STATE = {page: f"v{page}" for page in range(0, 600, 2)}


def whole(session: Session) -> bytes:
    own = session.guest.instance.memory
    return own.read(FIRST * PAGE, own.size - FIRST * PAGE)


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Records whether the kept memory could be used, each time."""
    if pages.available() != WriteProtect.name:
        pytest.skip("memory is only kept where the system tells what changed")
    monkeypatch.setattr(history, "COPIED_MUCH", 0)
    seen: list[bool] = []
    real = ParkedMemory.fill

    def fill(self: ParkedMemory, *args: object) -> GuestPages | None:
        laid = real(self, *args)  # type: ignore[arg-type]
        seen.append(laid is not None)
        return laid

    monkeypatch.setattr(ParkedMemory, "fill", fill)
    return seen


class Chance:
    """Runs cells that write, free, grow and travel at random."""

    def __init__(self, session: Session, seed: int) -> None:
        self.session, self._random = session, random.Random(seed)
        self.states: dict[int, dict[int, str]] = {}

    def _write(self) -> None:
        pages = self.session.guest.instance.memory.size // PAGE - FIRST
        for _ in range(self._random.randrange(6)):
            first, count = self._random.randrange(pages), self._random.choice([1, 3, 70])
            text = self._random.choice(["", f"{self._random.random()}"])
            for page in range(first, min(first + count, pages)):
                self.session.write(page, text)

    def _free(self) -> None:
        first = self._random.randrange(300)
        free = [(first, 70)] if self._random.random() < 0.3 else []
        size = self.session.guest.instance.memory.size // PAGE - FIRST
        self.session.free.runs = [one for one in free if sum(one) <= size]

    def cell(self) -> None:
        if self._random.random() < 0.2:
            self.session.grow(self._random.randrange(1, 8))
        self._write()
        self._free()
        commit = self.session.commit()
        self.states[commit.id] = self.session.state
        if self._random.random() < 0.3:
            self.session.flush()

    def go(self) -> None:
        """Leaves a cell halfway for another commit, or for the last one."""
        commits = self.session.history
        self._write()
        if self._random.random() < 0.5:
            self._free()
            with pytest.MonkeyPatch.context() as patch, pytest.raises(MemoryError):
                patch.setattr(memory, "read_ranges", _no_memory)
                self.session.commit()
        if self._random.random() < 0.2:
            self.session.grow(2)
        if self._random.random() < 0.2:
            self.session.flush()
            fold(commits, 12)
        target = self._random.choice([commits.tree.head, *commits.tree.commits])
        self.session.stand_at(target, keep=True)
        assert self.session.state == self.states[target]
        if self._random.random() < 0.2:  # otherwise the same memory is kept
            kept = whole(self.session)
            self.session.stand_at(target)
            assert kept == whole(self.session)


def _no_memory(*_: object) -> None:
    raise MemoryError


@pytest.mark.parametrize("seed", sampled({str(seed): seed for seed in range(1, ROUNDS)}, ROUNDS))
def test_memory_is_as_if_everything_had_been_laid(
    session: Session, used: list[bool], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(recorder, "FREE_WORTH", 1)
    monkeypatch.setattr(recorder, "FREE_LARGE", PAGE)
    chance = Chance(session, seed)
    session.grow(30)
    chance.cell()
    for _ in range(10):
        for _ in range(3):
            chance.cell()
        chance.go()
    assert used.count(True) > 8


def test_a_content_that_was_touched_is_checked_again(session: Session, used: list[bool]) -> None:
    """The content's pages may be mapped into the kept memory."""
    session.grow(40)
    session.cell(**BIG)
    session.save(p0="a")
    session.go(2)
    content = session.content(1)
    data = bytearray(content.read_bytes())
    data[100 * PAGE] ^= 1
    content.chmod(0o600)
    content.write_bytes(data)
    with pytest.raises(Unreadable):
        session.stand_at(2, keep=True)
    assert used == [False]


def test_everything_is_laid_if_memory_cannot_be_kept(
    session: Session, used: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = raising(OSError(errno.ENOMEM, "no"))
    session.grow(40)
    session.cell(**BIG)
    session.cell(p0="a")
    with monkeypatch.context() as patch:
        patch.setattr(parked, "MovedMemory", refused)
        session.stand_at(1, keep=True)
        assert (session.state, used) == (STATE, [])
    with monkeypatch.context() as patch:
        patch.setattr(WriteProtect, "changed", refused)
        session.stand_at(1, keep=True)
    assert (session.state, used) == (STATE, [])
    session.recorder.unwatch(keep=True)
    monkeypatch.setattr(MovedMemory, "move_to", refused)
    with pytest.raises(NotMoved):
        session.recorder.fill(session.guest.instance)
    session.stand_at(1)
    assert session.state == STATE


def test_kept_memory_is_given_back(session: Session, used: list[bool]) -> None:
    session.grow(40)
    session.cell(**BIG)
    before = mappings()
    for _ in range(20):
        session.stand_at(1, keep=True)
    assert mappings() < before + 10
    session.recorder.unwatch(keep=True)
    session.recorder.unwatch()
    assert mappings() < before + 10


def mappings() -> int:
    return len(Path(f"/proc/{os.getpid()}/maps").read_text().splitlines())


@pytest.fixture
def asked(session: Session, tmp_path: Path) -> Iterator[tuple[Guest, AskedMemory]]:
    guest = Guest(tmp_path)
    guest.instance.memory.write((FIRST + 3) * PAGE, b"of the image")
    image.save(guest.instance, tmp_path / "image")
    record = ImageRecord(guest.instance.memory.size, "build")
    asked = AskedMemory(
        session.history, BaseImage(tmp_path / "image", "tiny", record), guest.instance
    )
    yield guest, asked
    guest.close()
    asked.close()


def pages_of(guest: Guest, size: int) -> list[bytes]:
    content = guest.instance.memory.read(0, size)
    return [content[at : at + PAGE] for at in range(FIRST * PAGE, size, PAGE)]


@pytest.mark.parametrize("seed", sampled({str(seed): seed for seed in range(ROUNDS)}, ROUNDS))
def test_a_second_memory_goes_from_state_to_state(
    session: Session, asked: tuple[Guest, AskedMemory], seed: int
) -> None:
    chance = random.Random(seed)
    guest, other = asked
    session.guest.instance.memory.write((FIRST + 3) * PAGE, b"of the image")
    states: dict[int, list[bytes]] = {}
    for _ in range(12):
        session.grow(chance.randrange(1, 8))
        most = session.guest.instance.memory.size // PAGE - FIRST
        for _ in range(chance.randrange(6)):
            first, count = chance.randrange(most), chance.choice([1, 3, 12, 70])
            text = chance.choice(["", f"{chance.random()}"])
            for page in range(first, min(first + count, most)):
                session.write(page, text)
        commit = session.commit()
        states[commit.id] = pages_of(session.guest, commit.size)
        if chance.random() < 0.3:
            session.flush()
        if chance.random() < 0.3:
            session.stand_at(chance.choice([*states]))
    for _ in range(30):
        target = chance.choice([*states])
        other.go_to(target)
        size = session.history.tree.commits[target].size
        assert pages_of(guest, size) == states[target]
        for _ in range(5):  # a question writes to pages, too
            page = chance.randrange(FIRST, guest.instance.memory.size // PAGE)
            guest.instance.memory.write(page * PAGE, b"asked")


def test_a_state_that_is_not_kept_is_refused(asked: tuple[Guest, AskedMemory]) -> None:
    with pytest.raises(HistoryError, match="not kept any more"):
        asked[1].go_to(7)
