"""The JavaScript kernel: beside our Python kernel, and against QuickJS-NG as native code."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from math import prod

from tests.benchmarks.sides import Kernel, Side
from tests.benchmarks.table import Row, by_turns

Samples = tuple[list[float], list[float]]

JOBS = {
    "a loop over whole numbers": """
function job() {
  let total = 0
  for (let i = 0; i < 3_000_000; i++) total += i * i % 7
  return total
}
""",
    "recursive calls": """
function fib(n) { return n < 2 ? n : fib(n - 1) + fib(n - 2) }
function job() { return fib(27) }
""",
    "texts, maps and a sort": """
function job() {
  const counts = new Map()
  for (let i = 0; i < 200_000; i++) {
    const word = String(i * 7919 % 10_007)
    counts.set(word, (counts.get(word) ?? 0) + 1)
  }
  return [...counts].sort((a, b) => a[1] - b[1] || (a[0] < b[0] ? -1 : 1)).slice(0, 3)
}
""",
    "objects and floats": """
class Body {
  constructor(x, v) { this.x = x; this.v = v }
  step(dt) { this.v -= this.x * dt; this.x += this.v * dt }
}
function job() {
  const bodies = Array.from({ length: 100 }, (_, i) => new Body(i, 0.5))
  for (let n = 0; n < 4000; n++) for (const body of bodies) body.step(0.001)
  return bodies[3].x
}
""",
    "JSON and regular expressions": """
function job() {
  let n = 0
  for (let i = 0; i < 20_000; i++) {
    const o = JSON.parse(JSON.stringify({ id: i, name: `n${i}`, tags: ['a', 'b'] }))
    if (/^n(\\d+)$/.test(o.name)) n += o.tags.length
  }
  return n
}
""",
}
NATIVE = """
import sys, time, quickjs
context = quickjs.Context()
context.eval(sys.argv[1])
begun = time.perf_counter()
context.eval("job()")
print(time.perf_counter() - begun)
"""
_TIMED = (
    "{ const begun = performance.now(); job(); console.log((performance.now() - begun) / 1000) }"
)


def javascript(sides: tuple[Side, Side], rounds: int) -> Iterator[Row]:
    """Starts, cells and undo against those of our Python kernel; loops against native code."""
    python, native = sides
    both = (replace(python, kernel_name="wasm-javascript"), python)
    start = "JavaScript: kernel start to 1+1, over ZMQ, against Python"
    yield Row(start, *by_turns(both, rounds, _started), "s")
    with Kernel(both[0]) as one, Kernel(both[1]) as other:
        kernels = {both[0]: one, both[1]: other}
        for what, code in (("a tiny cell and its state", "1"), ("%undo", "%undo")):

            def sample(side: Side, code: str = code) -> float:
                return _taken(kernels[side], code)

            for side in both:
                kernels[side].execute("a = 1")
            yield Row(f"{what}, against Python", *by_turns(both, rounds, sample), "ms")
        rows = []
        for what, source in JOBS.items():
            one.execute(source)
            samples: Samples = ([], [])
            for _ in range(rounds):
                samples[0].append(float(one.execute(_TIMED).stdout))
                samples[1].append(_native(native, source))
            rows.append(Row(f"  {what}", *samples, "s"))
    mean = prod(row.ratio for row in rows) ** (1 / len(rows))
    yield Row("QuickJS-NG as native code, geometric mean of:", [mean], [1.0], "x", 2.5)
    yield from rows


def _started(side: Side) -> float:
    begun = time.perf_counter()
    with Kernel(side) as kernel:
        kernel.execute("1+1")
        return time.perf_counter() - begun


def _taken(kernel: Kernel, code: str) -> float:
    if code == "%undo":
        kernel.execute("a = 2")
    begun = time.perf_counter()
    kernel.execute(code)
    return 1000 * (time.perf_counter() - begun)


def _native(side: Side, source: str) -> float:
    command = [str(side.python), "-c", NATIVE, source]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
