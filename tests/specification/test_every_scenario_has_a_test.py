"""Every scenario of the specification has a test of its name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.specification import scenarios

HERE = Path(__file__).parent
DOCUMENTS = sorted(scenarios.SCENARIOS)


def names_in(document: str) -> list[str]:
    """The names of a document's tests, in the order of its file."""
    file = HERE / f"test_{document.replace('-', '_')}.py"
    tree = ast.parse(file.read_text(encoding="utf-8"))
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [name for name in names if name.startswith("test_")]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_each_scenario_has_a_test_in_the_documents_order(document: str) -> None:
    expected = [scenarios.name_of(title) for title in scenarios.SCENARIOS[document]]
    assert [name for name in names_in(document) if name in expected] == expected
    assert len(set(expected)) == len(expected)


def test_the_documents_have_their_numbers_of_scenarios() -> None:
    counts = {document: len(titles) for document, titles in scenarios.SCENARIOS.items()}
    assert counts["session-management"] == 25
    assert counts["workspace-operations"] == 35
    assert counts["metadata-and-pruning"] == 20
    assert counts["automatic-sessions"] == 13
    assert counts["session-design"] == 5
