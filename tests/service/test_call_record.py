"""Calls of the host's functions that are recorded, and answered again without a call."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.faces import error_of, says
from wasm_kernel import ExecutionPolicy, create_session_sandbox, get_session_sandbox
from wasm_kernel.network.exchanges import Exchange

CODE = """
import asyncio
print(draw(1), draw(1), draw(2))
print(await asyncio.gather(wait(b"a"), wait(b"b")))
print([*count(2)], [n async for n in tick(2)])
for call in (lambda: draw(-1), lambda: [*count(-1)]):
    try: call()
    except LookupError as problem: print(type(problem).__name__, problem)
"""


class Urn:
    """Functions that give other results at each call, and note the calls."""

    def __init__(self, first: int) -> None:
        self.drawn = first
        self.calls: list[str] = []

    def draw(self, n: int) -> int:
        """Draws."""
        self.calls.append("draw")
        if n < 0:
            raise KeyError(f"no {n}")
        self.drawn += n
        return self.drawn

    async def wait(self, data: bytes) -> dict[str, Any]:
        """Waits."""
        self.calls.append("wait")
        await asyncio.sleep(0)
        self.drawn += 1
        return {"data": data * 2, "n": self.drawn, "odd": float("inf")}

    def count(self, n: int) -> Iterator[int]:
        """Counts."""
        self.calls.append("count")
        if n < 0:
            raise IndexError("below")
        yield from range(self.drawn, self.drawn + n)

    async def tick(self, n: int) -> AsyncIterator[int]:
        """Counts, as an asynchronous function."""
        self.calls.append("tick")
        for each in range(self.drawn, self.drawn + n):
            yield each

    @property
    def functions(self) -> list[Callable[..., Any]]:
        return [self.draw, self.wait, self.count, self.tick]


Recorded = tuple[str, Path, str]


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    """A session that has recorded the calls of `CODE`: its id, its root, and its output."""
    urn = Urn(10)
    name, sandbox = create_session_sandbox(
        policy=ExecutionPolicy(network_mode="record"),
        workspace_root=tmp_path / "files",
        private_root=tmp_path / "private",
        functions=urn.functions,
    )
    with sandbox:
        return name, tmp_path, says(sandbox, CODE)


def replaying(recorded: Recorded, urn: Urn) -> Any:
    """Opens the session of a record again."""
    name, root, _ = recorded
    policy = ExecutionPolicy(network_mode="replay")
    return get_session_sandbox(
        name,
        policy=policy,
        workspace_root=root / "files",
        private_root=root / "private",
        functions=urn.functions,
    )


def test_recorded_calls_are_answered_again_without_a_call(recorded: Recorded) -> None:
    said, other = recorded[2], Urn(999)
    with replaying(recorded, other) as sandbox:
        assert says(sandbox, CODE) == said
        unknown = sandbox.execute("draw(7)").error
        again = sandbox.execute("draw(2)").error
    assert other.calls == []
    assert unknown is not None
    assert "draw(), with these arguments, is not among the recorded calls" in unknown.evalue
    assert "The setting is network_mode" in unknown.evalue.replace("policy.", "")
    assert again is not None
    assert "the last answer to draw() was given already (of 1 recorded)" in again.evalue
    assert said.splitlines() == [
        "11 12 14",
        "[{'data': b'aa', 'n': 15, 'odd': inf}, {'data': b'bb', 'n': 16, 'odd': inf}]",
        "[16, 17] [16, 17]",
        "KeyError 'no -1'",
        "IndexError below",
    ]


def test_another_network_is_for_later_cells_like_all_other_options(tmp_path: Path) -> None:
    """Formerly, the running cell got the new network at once, and the old one stayed open."""
    urn = Urn(10)

    def change() -> None:
        sandbox.reconfigure(ExecutionPolicy(network_mode="replay"), None)

    policy = ExecutionPolicy(network_mode="record")
    functions = [*urn.functions, change]
    _, sandbox = create_session_sandbox(policy=policy, workspace_root=tmp_path, functions=functions)
    with sandbox:
        assert says(sandbox, "change(); print(draw(1))") == "11"
        assert says(sandbox, "print(draw(1))") == "11"
    assert urn.calls == ["draw"]


def exchanges(root: Path) -> Path:
    (found,) = root.rglob("exchanges")
    return found


BODIES = {
    "draw() is damaged, and must": b"{",
    "must be recorded again": b"[" * 100_000,
    "not in the form that cells send": b'{"answer": {"value": {"$": "bytes", "value": [0, 9]}}}',
    "can't be passed to a cell": b'{"answer": {"value": {"$": "table", "value": [-1, 1]}}}\0abc',
    "and 8,388,608 are allowed": b'{"answer": {"raised": {"text": "%s"}}}' % (b"x" * 9_000_000),
    "larger than any could be": b"\0" * 20_000_000,
}


def forge(folder: Path, data: bytes) -> None:
    """Gives all records another answer, with the digests of it."""
    name = hashlib.blake2b(data, digest_size=20).hexdigest()
    (folder / name).write_bytes(data)
    for each in folder.iterdir():
        if "." in each.name:
            read = msgspec.json.decode(each.read_bytes(), type=Exchange)
            forged = replace(read, body=name, size=len(data))
            each.write_bytes(msgspec.json.encode(replace(forged, check=forged.digest)))


def test_a_record_that_a_stranger_wrote_is_an_error_in_words(recorded: Recorded) -> None:
    urn = Urn(999)
    for words, data in BODIES.items():
        forge(exchanges(recorded[1]), data)
        with replaying(recorded, urn) as sandbox:
            error = error_of(sandbox.execute("draw(1)"))
        assert error.startswith("HostFunctionError:") and words in error, error
    assert urn.calls == []
