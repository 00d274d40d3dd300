"""The benchmarks that look inside of a sandbox find what they time."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from tests.benchmarks import history
from tests.benchmarks.table import rendered


@pytest.mark.usefixtures("warm_metered")
def test_the_rows_of_the_history_have_figures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Before, nothing noticed that what they timed was done by another process."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(history, "ARRAYS", "import numpy as np; a = np.zeros(10)")
    monkeypatch.setattr(history, "FUEL", 10**8)
    monkeypatch.setattr(history, "SETTLED_SECONDS", 0.0)
    monkeypatch.setattr(history, "keep_with", lambda *_: {"kept": [1.0]})
    native = cast("Any", None)
    rows = [
        *history.commits(native, 1),
        *history.forks(native, 1),
        *history.back_to_work(native, 1),
    ]
    assert all(row.ratio > 0 for row in rows), rendered(rows)
