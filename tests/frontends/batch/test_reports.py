# mypy: disable-error-code="no-untyped-call"

"""Reports of a run: lines, JSON lines, JUnit XML, a page, and differences."""

from __future__ import annotations

import base64
import copy
import io
import json
import time
from pathlib import Path
from typing import Any

import nbformat
import pytest
from junitparser import JUnitXml

from tests.frontends.batch.conftest import Making, Running, executed
from wasm_kernel.frontends.batch.comparing import difference
from wasm_kernel.frontends.batch.live_table import LiveTable
from wasm_kernel.frontends.batch.notebook_run import compared
from wasm_kernel.frontends.batch.notebooks import find_sources, write_notebook
from wasm_kernel.frontends.batch.outcome import BatchError, Outcome
from wasm_kernel.frontends.batch.report_files import check_report, junit_report, page, write_reports
from wasm_kernel.frontends.batch.reporting import JsonLines, line_of, summary

EVIL = "<script>alert(1)</script>\x1b[2J\udcff\uffff"
PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\nrest").decode()


def book(*outputs: dict[str, Any]) -> Any:
    made = [nbformat.from_dict(each) for each in outputs]
    cell = nbformat.v4.new_code_cell("1", outputs=made, execution_count=1, id="a")
    return nbformat.v4.new_notebook(cells=[cell])


def shown(**data: str) -> dict[str, Any]:
    named = {kind.replace("_", "/"): text for kind, text in data.items()}
    return {"output_type": "display_data", "data": named, "metadata": {}}


@pytest.fixture
def outcomes(tmp_path: Path) -> list[Outcome]:
    done = tmp_path / "out" / "a #1.ipynb"
    write_notebook(book(shown(image_png=PIXEL), shown(image_png="<svg")), done, {})
    return [
        Outcome("a #1.ipynb", "ok", cells=3, output=str(done), files=("a #1.files/s.csv",)),
        Outcome(
            EVIL,
            "error",
            reason=f"E: {EVIL}",
            hint="Raise it.",
            traceback=f"line 1\n{EVIL}",
            cell=2,
            output=str(tmp_path / "gone\udcff"),
        ),
        Outcome("c.ipynb", "cancelled"),
        Outcome("d.ipynb", "kernel-lost"),
    ]


def test_junit_says_which_failed(outcomes: list[Outcome]) -> None:
    (suite,) = JUnitXml.fromstring(junit_report(outcomes))
    assert (suite.tests, suite.failures, suite.errors, suite.skipped) == (4, 1, 1, 1)
    assert [case.is_passed for case in suite] == [True, False, False, False]
    ok, failed, *_ = suite
    assert ok.system_out == "a #1.files/s.csv"
    assert failed.result[0].message.endswith("Raise it.")
    assert (
        failed.result[0].text.startswith("line 1\n<script>") and "\x1b" not in failed.result[0].text
    )


def test_page_links_shows_figures_and_runs_nothing(outcomes: list[Outcome], tmp_path: Path) -> None:
    shown = page(tmp_path / "index.html", outcomes).decode()
    assert 'href="out/a%20%231.ipynb"' in shown and 'href="out/a%20%231.files/s.csv"' in shown
    assert shown.count("data:image/png;base64,") == 1
    assert "<script" not in shown and "\x1b" not in shown and "default-src 'none'" in shown


def test_lines_and_the_table_say_it_to_people_and_programs(outcomes: list[Outcome]) -> None:
    line = line_of(outcomes[1])
    assert "\x1b" not in line and ", in cell 2 of the notebook: " in line and "Raise it." in line
    assert "1 file in a #1.files" in line_of(outcomes[0])
    assert summary(outcomes) == "4 notebooks: 1 ok, 1 error, 1 kernel-lost, 1 cancelled"
    stream = io.StringIO()
    lines = JsonLines(stream)
    lines.began("a", 2)
    lines.cell_ended("a", 1, 2)
    lines.ended(outcomes[1])
    told = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [each["event"] for each in told] == ["began", "cell", "ended"]
    assert (told[2]["verdict"], told[2]["cell"]) == ("error", 2)
    from rich.console import Console

    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    table = LiveTable(console)
    with table.live:
        table.began("running.ipynb", 5)
        table.began("running.ipynb", 5)  # again: its first worker was lost
        assert len(table.live.tasks) == 1
        table.cell_ended("running.ipynb", 2, 5)
        table.ended(outcomes[0])
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "running.ipynb" in text and "2/5 cells" in text and "a #1.ipynb" in text


def test_a_difference_is_found_unless_it_is_allowed() -> None:
    old = book(shown(text_plain="<A at 0x1a2b>", image_png=PIXEL))
    new = book(shown(text_plain="<A at 0xffff>", image_png="other"))
    assert "0xffff" in difference(old, new, ["images"])[0]
    assert difference(old, new, ["addresses"])[0]
    assert not difference(old, new, ["addresses", "images"])[0]
    assert difference(old, book(), ["addresses", "images"])[0]
    note = shown(text_plain="[wasm-kernel] r.csv was written into this session.")
    assert not difference(book(note), book(), [])[0]
    assert difference(book(note), old, [])[0]
    assert difference(book(), book(note), [])[0]


def test_the_time_of_a_comparison_grows_with_its_size() -> None:
    """Beyond a number of pairs, lines are not compared with each other: it would take hours."""
    lines = [f"{n * n % 997}\n" for n in range(60_000)]
    long = [book(shown(text_plain="".join(each))) for each in (lines, sorted(lines))]
    many = [book(*(shown(text_plain=f"{each}{n}") for n in range(400))) for each in "ab"]
    for each in many:
        each.cells = [copy.deepcopy(each.cells[0]) for _ in range(100)]
    near = book(shown(text_plain="".join([*lines[:2_999], "new\n", *lines[3_000:]])))
    began = time.process_time()
    for old, new in (long, many):
        found, cell = difference(old, new, [])
        assert (found.startswith("--- cell 1, stored\n+++ cell 1, now\n-"), cell) == (True, 1)
    assert difference(long[0], near, [])[0].splitlines()[2:] == ["-64\\n", "+new\\n"]
    assert difference(long[0], long[0], []) == ("", 0)
    assert time.process_time() - began < 10.0


def test_outputs_that_can_not_be_compared_fail_their_own_notebook(make: Making) -> None:
    """Formerly, one notebook with nested stored outputs ended the run of all others."""
    nested: Any = 1
    for _ in range(450):
        nested = [nested]
    data = {"application/json": nested}
    made = book({"output_type": "display_data", "data": data, "metadata": {}})
    (source,) = find_sources([str(make("a.ipynb", *made.cells))], Path("out"))
    outcome = compared(source, book(), [], Outcome("a.ipynb", "ok"))
    assert outcome.verdict == "error", outcome.reason


def test_a_run_is_compared_with_what_was_stored(make: Making, run: Running, tmp_path: Path) -> None:
    said = {"output_type": "stream", "name": "stdout"}
    for name, texts in (("a", ["1\n", "2\n"]), ("b", ["1\n5\n"])):
        outputs = [nbformat.from_dict({**said, "text": text}) for text in texts]
        source = "print(1)\nprint(2)"
        make(f"{name}.ipynb", nbformat.v4.new_code_cell(source, outputs=outputs))
    outcomes = run(compare=True, ignored=["counts"])
    assert outcomes["a.ipynb"].ok
    assert (outcomes["b.ipynb"].verdict, outcomes["b.ipynb"].cell) == ("error", 1)
    assert "-5" in outcomes["b.ipynb"].difference
    assert executed(tmp_path / "out" / "b.ipynb")[0][1] == "1\n2\n"


def test_a_lost_report_costs_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "folder").mkdir()
    wanted = {tmp_path / "folder": lambda: b"1", tmp_path / "new" / "page": lambda: b"2"}
    with pytest.raises(BatchError, match=r"The report \. can't be written \(it is a folder\)"):
        check_report(Path())
    assert not write_reports(wanted)
    assert (tmp_path / "new" / "page").read_bytes() == b"2"
    assert "the report folder can't be written" in capsys.readouterr().err
