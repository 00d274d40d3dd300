"""The pages for engineers name files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from wasm_kernel.policy import POLICY_FIELDS

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/recipes.md"]
PLACES = ["", "wasm_kernel/", "tests/", "runtimes/", "wasm_kernel/outputs/"]
PLACES += ["runtimes/python/wasm_kernel_agent/", "tests/outputs/", "docs/"]


def files_in(text: str) -> list[str]:
    found = re.findall(r"`([\w./-]+(?:\.py|\.md|/))`", text)
    return found + re.findall(r"\]\(([\w./-]+\.md)\)", text)


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_names_is_there(page: str) -> None:
    named = files_in((ROOT / page).read_text(encoding="utf-8"))
    assert named
    named = [name for name in named if not name.startswith("jupyter_")]  # a user's own file
    missing = [name for name in named if not any((ROOT / at / name).exists() for at in PLACES)]
    assert not missing


def test_the_holder_of_every_limit_is_named() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("Who holds each limit")[2]
    rows = [line.partition("|")[2].partition("|")[0] for line in table.splitlines()]
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == set(POLICY_FIELDS)
