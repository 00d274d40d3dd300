"""A second memory goes from state to state, and has nothing of an earlier one or of a question."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.tiny import Guest
from tests.sampled import sampled
from tests.state.session import FIRST, Session
from wasm_kernel.errors import HistoryError
from wasm_kernel.state import image
from wasm_kernel.state.asked import AskedMemory
from wasm_kernel.state.image import BaseImage, ImageRecord
from wasm_kernel.state.pages import PAGE

ROUNDS = 20


@pytest.fixture
def asked(session: Session, tmp_path: Path) -> Iterator[tuple[Guest, AskedMemory]]:
    guest = Guest(tmp_path)
    memory = guest.instance.memory
    memory.write((FIRST + 3) * PAGE, b"of the image")
    image.save(guest.instance, tmp_path / "image")
    record = ImageRecord(memory.size, "build")
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
    guest, memory = asked
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
        memory.go_to(target)
        size = session.history.tree.commits[target].size
        assert pages_of(guest, size) == states[target]
        for _ in range(5):  # the question
            page = chance.randrange(FIRST, guest.instance.memory.size // PAGE)
            guest.instance.memory.write(page * PAGE, b"asked")


def test_a_state_that_is_not_kept_is_refused(asked: tuple[Guest, AskedMemory]) -> None:
    with pytest.raises(HistoryError, match="not kept any more"):
        asked[1].go_to(7)
