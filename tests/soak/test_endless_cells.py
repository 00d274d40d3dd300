"""Cells without an end, of many kinds: one interrupt at a random moment ends each of them.

The next cell runs undisturbed. Requests and calls go on for as long as a cell does, so that
interrupts meet each step of them.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.faces import error_of
from tests.network.servers import serving
from tests.sampled import lasting
from wasm_kernel import ExecutionPolicy, HostFunction, Sandbox, create_sandbox
from wasm_kernel.network_rules import NetworkRule

pytestmark = pytest.mark.soak
LATEST = 0.06  # seconds after which an interrupt comes
SOON = 3.0  # seconds in which a busy machine ends an interrupted cell
OFTEN = 10**6  # calls and requests a minute

PYTHON_BEGINNING = """
import asyncio, multiprocessing.pool, queue, subprocess, threading, time, urllib.request
from concurrent.futures import ThreadPoolExecutor
from IPython.display import clear_output
def nap(_): time.sleep(0.001)
kept = 0
"""
PYTHON = {
    "a loop": "while True: pass",
    "a long call": "while True: sorted(range(100_000), key=lambda x: -x)",
    "sleep": "time.sleep(3600)",
    "outputs": "while True: clear_output(wait=True); display(1); time.sleep(0.001)",
    "tasks": "async with asyncio.TaskGroup() as g:\n  for _ in range(3): g.create_task(aslow())",
    "timeouts": (
        "while True:\n  try: await asyncio.wait_for(asyncio.sleep(1), 0.001)\n"
        "  except TimeoutError: pass"
    ),
    "an event": "await asyncio.Event().wait()",
    "run": "asyncio.run(asyncio.sleep(3600))",
    "to_thread": "while True: await asyncio.to_thread(nap, 1)",
    "a long thread of a task": "await asyncio.to_thread(time.sleep, 3600)",
    "an executor": "await asyncio.get_running_loop().run_in_executor(None, time.sleep, 3600)",
    "threads": (
        "while True:\n  t = threading.Thread(target=nap, args=(1,))\n  t.start()\n  t.join()"
    ),
    "a long thread": "t = threading.Thread(target=time.sleep, args=(3600,)); t.start(); t.join()",
    "a loop in a thread": (
        "t = threading.Thread(target=lambda: asyncio.run(asyncio.sleep(3600)))\nt.start(); t.join()"
    ),
    "a pool": "with ThreadPoolExecutor(4) as p:\n  while True: list(p.map(nap, range(8)))",
    "a long pool": "with ThreadPoolExecutor(4) as p: list(p.map(time.sleep, [3600] * 4))",
    "a pool of multiprocessing": (
        "with multiprocessing.pool.ThreadPool(3) as p:\n  while True: p.map(nap, range(5))"
    ),
    "a queue": (
        "q = queue.Queue()\ndef give(q):\n  while True: q.put(1); time.sleep(0.001)\n"
        "threading.Thread(target=give, args=(q,), daemon=True).start()\nwhile True: q.get()"
    ),
    "a request": "urllib.request.urlopen(H + '/slow/60').read()",
    "requests": "while True: urllib.request.urlopen(H + '/csv').read()",
    "streams": (
        "while True:\n  r, w = await asyncio.open_connection('localhost', int(H[-5:]))\n"
        "  w.write(b'GET /csv HTTP/1.0\\r\\n\\r\\n'); await r.read(); w.close()"
    ),
    "calls": "while True: double(2)",
    "awaited calls": "while True: await adouble(2)",
    "a long call of the host": "await aslow()",
    "calls at once": (
        "while True: await asyncio.gather(*map(adouble, range(5)), asyncio.sleep(0.001))"
    ),
    "scripts": "while True: subprocess.run('echo x | cat', shell=True, capture_output=True)",
    "a script": "!sleep 3600",
}
JAVASCRIPT = {
    "a loop": "for (;;);",
    "a loop that catches errors": "for (;;) { try { for (;;); } catch { } finally { } }",
    "reactions": "await (async () => { for (;;) await null })()",
    "an interval": "await new Promise(() => setInterval(() => {}, 1))",
    "a timeout": "await new Promise(r => setTimeout(r, 3_600_000))",
    "print": "for (;;) console.log('x')",
    "outputs": "for (;;) display.text('x')",
    "a sort": "for (;;) [...Array(1e4).keys()].sort((a, b) => b - a)",
    "JSON": "for (;;) JSON.parse(JSON.stringify({ a: [1, { b: 'c' }] }))",
    "files": "const fs = require('fs'); for (;;) { fs.writeFileSync('f', 'x'); fs.statSync('f') }",
    "types": "let n: number = 0; for (;;) n += 1",
    "a fetch": "await fetch(H + '/slow/60')",
    "fetches": "for (;;) await (await fetch(H + '/csv')).text()",
    "fetches that catch errors": "for (;;) try { await (await fetch(H + '/csv')).text() } catch {}",
    "fetches at once": (
        "for (;;) await Promise.allSettled([1, 2, 3].map(() => fetch(H + '/csv')))"
    ),
    "calls": "for (;;) double(2)",
    "calls that catch errors": "for (;;) { try { double(2) } catch {} }",
    "awaited calls": "for (;;) await adouble(2)",
    "awaited calls that catch errors": (
        "for (;;) try { await (async () => { for (;;) await adouble(2) })() } catch {}"
    ),
    "a long call of the host": "await aslow()",
    "calls of an interval": (
        "await new Promise(() => setInterval(() => adouble(2).catch(() => {}), 1))"
    ),
    "a race": "for (;;) await Promise.race([adouble(1), new Promise(r => setTimeout(r, 1))])",
    "a stream": "for await (const x of numbers());",
}


def double(x: int) -> int:
    """Doubles a number, in two milliseconds."""
    time.sleep(0.002)
    return 2 * x


async def adouble(x: int) -> int:
    """Doubles a number, too."""
    await asyncio.sleep(0.0005)
    return 2 * x


async def aslow() -> None:
    """Waits for an hour."""
    await asyncio.sleep(3600)


async def numbers() -> AsyncIterator[int]:
    """Counts."""
    for number in range(OFTEN):
        await asyncio.sleep(0.0005)
        yield number


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Callable[[str], Sandbox]]:
    """Makes a sandbox of a language, whose cells may call these functions, and a server at H."""
    sandboxes = []
    with serving() as server:
        rule = NetworkRule(
            "localhost",
            schemes=("http",),
            ports=(server.port,),
            addresses=("127.0.0.0/8", "::1"),
            requests_a_minute=OFTEN,
        )
        policy = ExecutionPolicy(network=[rule], grace_seconds=SOON, display_count=OFTEN)
        offered: tuple[Any, ...] = (double, adouble, aslow, numbers)
        functions = [HostFunction(each, calls_a_minute=OFTEN) for each in offered]

        def make(language: str) -> Sandbox:
            sandbox = create_sandbox(language, tmp_path / "app", policy, functions=functions)
            sandboxes.append(sandbox)
            begin = f"H = {server.url!r}" + (
                PYTHON_BEGINNING if language == "python" else "; kept = 0"
            )
            assert sandbox.execute(begin).success
            return sandbox

        yield make
        for each in sandboxes:
            each.close()


@pytest.mark.parametrize(
    ("language", "kinds", "after"),
    [
        pytest.param("python", PYTHON, "kept += 1; print(kept)", id="python"),
        pytest.param("javascript", JAVASCRIPT, "kept += 1; console.log(kept)", id="javascript"),
    ],
)
def test_one_interrupt_ends_a_cell_without_an_end(
    made: Callable[[str], Sandbox], language: str, kinds: Mapping[str, str], after: str
) -> None:
    sandbox, dice = made(language), random.Random(8)
    for number in lasting(4):
        kind = dice.choice([*kinds])
        cell = sandbox.submit(kinds[kind])
        time.sleep(dice.uniform(0, LATEST))
        while not cell.done() and not sandbox.interrupt():
            time.sleep(0.001)
        began = time.monotonic()
        assert error_of(cell.result(60)).startswith("KeyboardInterrupt"), (number, kind)
        assert time.monotonic() - began < SOON, (number, kind)
        result = sandbox.submit(after).result(60)
        assert result.success, (number, kind, result.error)
        assert result.stdout == f"{number + 1}\n", (number, kind)
