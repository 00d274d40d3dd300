"""The page of results says what the code does, and leaves nothing out."""

from __future__ import annotations

from dataclasses import is_dataclass
from pathlib import Path

import pytest
from msgspec import Struct

import wasm_kernel
from tests.results_page import RESULTS, fields_of, page

GIVEN = {"Budgets", "ExecutionPolicy", "Mount", "ServiceLimits"}  # by callers, and no results


def test_the_page_is_written_from_the_code() -> None:
    written = Path(__file__).resolve().parent.parent / "docs" / "results.md"
    assert written.read_text() == page(), "python -m tests.results_page > docs/results.md"


@pytest.mark.parametrize("kind", RESULTS, ids=lambda kind: kind.__name__)
def test_every_field_has_a_meaning(kind: type) -> None:
    assert [name for name, _, meaning in fields_of(kind) if not meaning] == []


def test_every_public_class_of_values_is_on_the_page() -> None:
    public = [getattr(wasm_kernel, name) for name in wasm_kernel.__all__]
    values = {each for each in public if isinstance(each, type)}
    values = {each for each in values if is_dataclass(each) or issubclass(each, Struct)}
    assert {each.__name__ for each in values - RESULTS.keys()} == GIVEN
