"""Each word of the glossary is used in the file that the glossary names."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROW = re.compile(
    r"^\| \*\*(?P<word>[^*]+)\*\* \| (?P<meaning>.+) \| `(?P<home>[^`]+)` \|$", re.MULTILINE
)
ROWS = [found.groups() for found in ROW.finditer((ROOT / "docs" / "glossary.md").read_text())]
CODE = re.compile(r"`([A-Za-z_]+)`")


def test_the_glossary_has_its_rows() -> None:
    assert len(ROWS) > 40


def test_each_word_is_at_home_where_the_glossary_says() -> None:
    for word, meaning, home in ROWS:
        file = ROOT / ("" if home.startswith("runtimes/") else "wasm_kernel") / home
        assert file.is_file(), word
        text = file.read_text(encoding="utf-8")
        for name in CODE.findall(meaning):
            if name[0].isupper() and name != "KeyboardInterrupt":
                assert re.search(rf"\b{name}\b", text), f"{home} does not speak of {name}"
