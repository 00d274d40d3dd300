"""The page of settings says what the code does."""

from __future__ import annotations

from pathlib import Path

from tests.settings_page import page


def test_the_page_is_written_from_the_code() -> None:
    written = Path(__file__).resolve().parent.parent / "docs" / "settings.md"
    assert written.read_text() == page(), "python -m tests.settings_page > docs/settings.md"
