"""Loops in pure Python, timed by their own cell, and work of numpy, pandas and scikit-learn."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from tests.benchmarks.sides import PATIENCE, Kernel

AT_REST = 0.002  # seconds of processor time within a tenth of a second

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

_NUMBERS = """
import os
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # as inside
import numpy as np
rng = np.random.default_rng(1)
"""
_POINTS = f"""{_NUMBERS}
points = rng.random((4_000, 20))
kinds = (points[:, :5].sum(axis=1) > 2.5).astype(int)
"""

_TABLES = f"""{_NUMBERS}
import io
import pandas as pd
frame = pd.DataFrame({{
    "kind": rng.integers(0, 500, 300_000), "x": rng.random(300_000), "y": rng.random(300_000)
}})
left = pd.DataFrame({{"kind": rng.permutation(100_000), "a": rng.random(100_000)}})
right = pd.DataFrame({{"kind": rng.permutation(100_000), "b": rng.random(100_000)}})
text = pd.DataFrame(rng.random((10_000, 6))).to_csv(index=False)
"""

EIGHT = {
    what: f"{_TABLES}\n{source}"
    for what, source in {
        "numpy: a product of matrices, 400 x 400": """
a, b = rng.random((2, 400, 400))
def job():
    for _ in range(50):
        a @ b
""",
        "numpy: roots and powers of a million numbers": """
v = rng.random(1_000_000)
def job():
    for _ in range(8):
        (np.sqrt(v * v + 2 * v) * np.exp(-v) + np.where(v > 0.5, v, 1)).sum()
""",
        "numpy: sorting 600,000 numbers": """
numbers = rng.random(600_000)
def job():
    for _ in range(5):
        np.sort(numbers)
""",
        "numpy: a Fourier transform of 262,144 numbers": """
signal = rng.random(1 << 18)
def job():
    for _ in range(25):
        np.fft.fft(signal)
""",
        "pandas: grouping 300,000 rows": """
def job():
    for _ in range(25):
        frame.groupby("kind").agg({"x": "mean", "y": "std"})
""",
        "pandas: merging twice 100,000 rows": """
def job():
    for _ in range(40):
        left.merge(right, on="kind")
""",
        "pandas: reading a CSV file of 1 MB": """
def job():
    for _ in range(50):
        pd.read_csv(io.StringIO(text))
""",
        "pandas: describing 300,000 rows": """
def job():
    for _ in range(6):
        frame.describe()
""",
    }.items()
}

LIBRARIES = {
    "scikit-learn: logistic regression": f"""{_POINTS}
from sklearn.linear_model import LogisticRegression
def job():
    for _ in range(10):
        LogisticRegression(C=100).fit(points, kinds)
""",
    "scikit-learn: a random forest of 50 trees": f"""{_POINTS}
from sklearn.ensemble import RandomForestClassifier
def job():
    return RandomForestClassifier(50, random_state=1).fit(points, kinds)
""",
    "scikit-learn: k-means": f"""{_POINTS}
from sklearn.cluster import KMeans
def job():
    for _ in range(3):
        KMeans(8, n_init=3, random_state=1).fit(points)
""",
}

_SALES = f"""{_NUMBERS}
import pandas as pd
rows = 2_000_000
frame = pd.DataFrame({{
    "customer": rng.integers(0, 5_000, rows),
    "city": rng.choice(["Oslo", "Rome", "Lima", "Cairo"], rows),
    "price": rng.random(rows),
    "when": pd.Timestamp("2024") + pd.to_timedelta(rng.integers(0, 10**6, rows), unit="s"),
}})
frame.to_parquet("sales.parquet")
"""
_PHOTOS = f"""{_NUMBERS}
from PIL import Image
for n in range(6):
    small = Image.fromarray(rng.integers(0, 255, (75, 100, 3), "u1"))
    small.resize((2000, 1500), Image.Resampling.BICUBIC).save(f"photo{{n}}.jpg", quality=90)
photos = [Image.open(f"photo{{n}}.jpg").convert("RGB") for n in range(6)]
"""

FORMATS = {
    "reading Parquet, 2 million rows of four columns": f"""{_SALES}
def job():
    pd.read_parquet("sales.parquet")
""",
    "writing the same": f"""{_SALES}
def job():
    frame.to_parquet("copy.parquet")
""",
    "writing and reading its numbers alone": f"""{_SALES}
numbers = frame[["customer", "price", "when"]]
def job():
    numbers.to_parquet("copy.parquet")
    pd.read_parquet("copy.parquet")
""",
    "reading six photos of 3 megapixels": f"""{_PHOTOS}
def job():
    for n in range(6):
        Image.open(f"photo{{n}}.jpg").load()
""",
    "writing them as JPEG": f"""{_PHOTOS}
def job():
    for n, photo in enumerate(photos):
        photo.save(f"copy{{n}}.jpg", quality=90)
""",
}
"""Work that codecs do inside."""

_LARGE = f"""{_NUMBERS}
import pandas as pd
rows = 62_000_000
frame = pd.DataFrame({{"customer": rng.integers(0, 5_000, rows), "price": rng.random(rows)}})
"""

LARGE = {
    "writing a table of 1 GB as Parquet": f"""{_LARGE}
def job():
    frame.to_parquet("large.parquet")
""",
    "reading it": f"""{_LARGE}
frame.to_parquet("large.parquet")
del frame
def job():
    assert len(pd.read_parquet("large.parquet")) == rows
""",
    "reading its row groups where a column is small": f"""{_LARGE}
frame.to_parquet("large.parquet")
del frame
def job():
    pd.read_parquet("large.parquet", columns=["price"], filters=[("customer", "<", 50)])
""",
    "60 photos, each made smaller and saved": f"""{_PHOTOS}
import os, shutil
os.makedirs("folder", exist_ok=True)
for n in range(60):
    shutil.copy(f"photo{{n % 6}}.jpg", f"folder/{{n}}.jpg")
def job():
    for name in os.listdir("folder"):
        with Image.open(f"folder/{{name}}") as photo:
            photo.thumbnail((800, 800))
            photo.save(f"small-{{name}}")
""",
}
"""Larger work of codecs, which takes minutes and 3 GiB."""

TIMED = "import time\nbegun = time.perf_counter(); job()\nprint(time.perf_counter() - begun)"


def seconds(kernel: Kernel, source: str) -> float:
    """The seconds of a source's job, by the clock inside the kernel."""
    kernel.execute(source)
    return float(kernel.execute(TIMED).stdout)


def processor_seconds(kernel: Kernel, source: str) -> float:
    """The processor seconds of a source's job, as the system counts them.

    A kernel's work after its reply, such as keeping the cell's state, belongs to that cell. So the
    work after the source's cell is not counted, and the work after the job's cell is.
    """
    kernel.execute(source)
    before = processor_seconds_at_rest(kernel.pid)
    kernel.execute("job()")
    return processor_seconds_at_rest(kernel.pid) - before


def processor_seconds_at_rest(pid: int) -> float:
    """The processor time of a process and its descendants, once they rest."""
    until, last = time.monotonic() + PATIENCE, 0.0
    while (now := _processor_seconds(pid)) > last + AT_REST:
        if time.monotonic() > until:
            raise TimeoutError("the kernel does not come to rest")
        last = now
        time.sleep(0.1)
    return now


def _processor_seconds(pid: int) -> float:
    """The processor time of all threads of a process and of its living descendants: a kernel's
    guest lives in one of them.
    """
    with suppress(OSError):  # the process has just ended
        own = time.clock_gettime((~pid << 3) | 2)  # the same as clock_getcpuclockid(3)
        children = Path(f"/proc/{pid}/task").glob("*/children")
        below = [int(child) for file in children for child in file.read_text().split()]
        return own + sum(map(_processor_seconds, below))
    return 0.0
