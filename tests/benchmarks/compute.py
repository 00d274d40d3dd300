"""Loops in pure Python, as a cell times them itself."""

from __future__ import annotations

from tests.benchmarks.sides import Kernel

LOOPS = {
    "a loop over whole numbers": """
def job():
    total = 0
    for i in range(2_000_000):
        total += i * i % 7
    return total
""",
    "recursive calls": """
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)
def job():
    return fib(25)
""",
    "texts, dicts and a sort": """
def job():
    counts = {}
    for i in range(200_000):
        word = str(i * 7919 % 10_007)
        counts[word] = counts.get(word, 0) + 1
    return sorted(counts.items(), key=lambda item: (item[1], item[0]))[:3]
""",
    "objects and floats": """
class Body:
    def __init__(self, x, v):
        self.x, self.v = x, v
    def step(self, dt):
        self.v -= self.x * dt
        self.x += self.v * dt
def job():
    bodies = [Body(float(i), 0.5) for i in range(100)]
    for _ in range(4_000):
        for body in bodies:
            body.step(0.001)
    return bodies[3].x
""",
}

TIMED = "import time\nbegun = time.perf_counter(); job()\nprint(time.perf_counter() - begun)"


def seconds(kernel: Kernel, loop: str) -> float:
    """How long one loop took, by the clock inside the kernel."""
    kernel.run(LOOPS[loop])
    return float(kernel.printed(TIMED))
