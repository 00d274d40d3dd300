"""`--deterministic`: two runs of a notebook are alike, byte for byte."""

from __future__ import annotations

from pathlib import Path

from tests.frontends.batch.conftest import Making, Running, executed

CELLS = (
    "import datetime, os, random, sys, time, uuid\nprint(random.random(), uuid.uuid4())",
    "print(os.urandom(4), datetime.datetime.now(), time.monotonic())",
    "import numpy as np, pandas as pd\npd.DataFrame({'a': np.random.rand(2)})",
    "np.random.default_rng().random(2)",
    "import sqlite3\nsqlite3.connect(':memory:').execute('select random()').fetchall()",
    "for name in 'zaqb': open(f'/app/{name}', 'w').close()\nos.listdir('/app')",
    "began = time.time()\ntime.sleep(3600)\nprint(time.time() - began > 3600, object())",
    "import matplotlib.pyplot as plt\nplt.plot(np.random.rand(3));",
    "%undo",
    "print(random.random())\nprint('said', file=sys.stderr)\nprint(uuid.uuid1())\n1/0",
)


def test_two_runs_are_alike(make: Making, run: Running, tmp_path: Path) -> None:
    make("a.ipynb", *CELLS)
    out = tmp_path / "out" / "a.ipynb"
    found = []
    for _ in range(2):
        assert run(deterministic=True)["a.ipynb"].cell == len(CELLS)
        found.append(out.read_bytes())
    assert found[0] == found[1]
    cells = executed(out)
    assert "2000-01-01 00:00:00" in cells[1][1]
    assert cells[5][1] == "['a', 'b', 'q', 'z']"
    assert cells[6][1].startswith("True")
