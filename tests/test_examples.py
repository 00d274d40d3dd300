"""The programs on the pages run, and print what the pages say."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
import pytest

from tests.pages import (
    COURSE,
    DOCS,
    NOTEBOOKS,
    PROGRAMS,
    SITE,
    Example,
    blocks_of,
    examples_of,
    says,
)
from wasm_kernel.frontends.cli.main import main

EXAMPLES = {
    f"{name}-{number}": example
    for name, page in PROGRAMS.items()
    for number, example in enumerate(examples_of(page))
}


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)
def test_a_program_prints_what_the_page_says(
    example: Example,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    exec(example.code, {"__name__": "__main__"})
    printed = capfd.readouterr().out
    assert example.printed is not None, "a program on a page has its output below it"
    assert says(printed, example.printed), printed


def test_the_course_is_graded_as_the_tutorial_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks_of(COURSE):
        if block.title:
            save(tmp_path / block.title, block.text)
    for command, printed in examples_of(COURSE, "sh"):
        assert printed is not None
        told = run(command.split(), capfd)
        assert says(told, printed), told


def test_each_example_is_in_the_table_of_those_tried_and_each_page_is_run() -> None:
    page = (DOCS / "frameworks-tried.md").read_text(encoding="utf-8")
    examples = sorted((DOCS.parent / "examples" / "frameworks").glob("*.py"))
    assert [each.name for each in examples if f"frameworks/{each.name}` | ran |" not in page] == []
    run_somewhere = {*PROGRAMS.values(), *NOTEBOOKS.values(), COURSE}
    assert {page for page in SITE if examples_of(page)} <= run_somewhere


def save(file: Path, text: str) -> None:
    """Writes a file of a page; a notebook has the text as its only cell."""
    file.parent.mkdir(exist_ok=True)
    if file.suffix == ".ipynb":
        cell = nbformat.v4.new_code_cell(text)  # type: ignore[no-untyped-call]
        nbformat.write(nbformat.v4.new_notebook(cells=[cell]), file)  # type: ignore[no-untyped-call]
    else:
        file.write_text(text, encoding="utf-8")


def run(words: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    """The output of a command: one of ours, or `cat` of a file."""
    if words[0] == "cat":
        return Path(words[1]).read_text(encoding="utf-8")
    assert words[0] == "wasm-kernel"
    main(words[1:])
    return capfd.readouterr().out
