"""What people make every day looks in `safe` as it does in ipykernel.

The two have versions of Python and of some libraries of their own, so that a picture may differ
where its maker does. Both are left in `build/browser/`, for people to look at.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from tests.browser.gallery import GALLERY
from tests.browser.jupyterlab import NATIVE, Lab, Server
from tests.browser.test_gallery import COMPARE, TOLERANCE, Pictures, taken

# Told apart by Python 3.15, whose places in a line are finer.
DIFFERENT = frozenset({"error"})

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def both(browser: Any, server: Server, portraits: Path) -> tuple[Pictures, Pictures, Any]:
    if not NATIVE.exists():
        pytest.skip(f"{NATIVE} is missing; make soak makes it")
    page = browser.new_context(viewport={"width": 1200, "height": 900}).new_page()
    lab = Lab(page, server)
    return (
        taken(lab, server, "wasm-python", portraits),
        taken(lab, server, "native", portraits),
        page,
    )


@pytest.mark.parametrize("name", [name for name in GALLERY if name not in DIFFERENT])
def test_it_looks_as_in_ipykernel(name: str, both: tuple[Pictures, Pictures, Any]) -> None:
    ours, theirs, page = both
    texts = [base64.b64encode(pictures[name]).decode() for pictures in (ours, theirs)]
    assert page.evaluate(COMPARE, texts) < TOLERANCE
