"""Reports of a whole run: JUnit XML for CI, and a page with links and thumbnails for people."""

# mypy: disable-error-code="no-untyped-call"
# (junitparser has few types)

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from wasm_kernel.errors import describe
from wasm_kernel.frontends.batch.notebooks import read_executed
from wasm_kernel.frontends.batch.outcome import BatchError, Outcome, cleaned, plain
from wasm_kernel.frontends.batch.reporting import summary
from wasm_kernel.linux.folders import Folder
from wasm_kernel.result import first_of

if TYPE_CHECKING:
    from junitparser import TestCase

_SUITE = "wasm-kernel run"
_IMAGES = {"image/png": b"\x89PNG\r\n", "image/jpeg": b"\xff\xd8\xff"}
_IMAGES_MOST = 3  # images of one notebook
_FILES_MOST = 20
_MESSAGE_CHARACTERS = 1_000
_IMAGE_BYTES = 300 * 1024
_PAGE = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
body {{ font: 15px/1.4 system-ui, sans-serif; margin: 2em; }}
table {{ border-collapse: collapse; }}
td, th {{ padding: .4em .8em; border-bottom: 1px solid #ddd; text-align: left; }}
td.ok {{ color: #17692f; }} td.failed {{ color: #a11; font-weight: 600; }}
img {{ max-height: 90px; max-width: 160px; margin-right: .4em; }}
</style>
<h1>{title}</h1>
<table>
<tr><th>Notebook<th>Verdict<th>Cells<th>Seconds<th>Why<th>Results<th>Figures</tr>
{rows}
</table>
</html>
"""
_ROW = (
    '<tr><td>{name}<td class="{kind}">{verdict}<td>{cells}<td>{seconds:.1f}<td>{why}<td>{files}'
    "<td>{figures}</tr>"
)


def junit_report(outcomes: Sequence[Outcome]) -> bytes:
    """Returns the outcomes as JUnit XML: one test case for each notebook."""
    cases = []
    for one in outcomes:
        case = case_of(one.notebook, _SUITE, one.verdict, _why(one), one.traceback)
        case.time = one.seconds
        if one.files:
            case.system_out = "\n".join(map(plain, one.files))
        cases.append(case)
    return junit_of(_SUITE, cases)


def case_of(name: str, group: str, verdict: str, why: str, text: str = "") -> TestCase:
    """Returns a test case of JUnit XML in a group, without control characters for terminals.

    `why` is the reason of a verdict other than `ok`, `text` the text of its error.
    """
    from junitparser import Error, Failure, Skipped, TestCase

    case = TestCase(plain(name), plain(group))
    if verdict != "ok":
        kind = {"cancelled": Skipped, "kernel-lost": Error}.get(verdict, Failure)
        result = kind(plain(why, _MESSAGE_CHARACTERS), verdict)
        result.text = cleaned(text)
        case.result = [result]
    return case


def junit_of(suite: str, cases: list[TestCase]) -> bytes:
    """Returns a suite of cases as JUnit XML."""
    from junitparser import JUnitXml, TestSuite

    made, xml = TestSuite(suite), JUnitXml()
    made.add_testcases(cases)
    xml.add_testsuite(made)
    text: bytes = xml.tostring()
    return text


def page(file: Path, outcomes: Sequence[Outcome]) -> bytes:
    """Returns a page with all outcomes, links to the executed notebooks, and their first figures.

    The links are relative to `file`, the page's own.
    """
    rows = "\n".join(_row(file, outcome) for outcome in outcomes)
    return _PAGE.format(title=escape(summary(outcomes)), rows=rows).encode()


def _row(file: Path, outcome: Outcome) -> str:
    name = escape(plain(outcome.notebook))
    folder = Path(outcome.output).parent
    if outcome.output:
        name = _link(file, Path(outcome.output), outcome.notebook)
    files = first_of([_link(file, folder / each, each) for each in outcome.files], _FILES_MOST)
    figures = islice(_figures(outcome), _IMAGES_MOST)
    return _ROW.format(
        name=name,
        kind="ok" if outcome.ok else "failed",
        verdict=outcome.verdict,
        cells=outcome.cells + outcome.kept,
        seconds=outcome.seconds,
        why=escape(_why(outcome)),
        files="<br>".join(files),
        figures="".join(f'<img src="{each}" alt="">' for each in figures),
    )


def _link(page: Path, file: Path, name: str) -> str:
    link = quote(os.fsencode(os.path.relpath(file, page.absolute().parent)))
    return f'<a href="{escape(link)}">{escape(plain(name))}</a>'


def _why(outcome: Outcome) -> str:
    where = f"Cell {outcome.cell}: " if outcome.cell else ""
    parts = (f"{where}{outcome.why}", plain(outcome.note))
    return " ".join(part for part in parts if part)


def _figures(outcome: Outcome) -> Iterator[str]:
    """The raster images of an executed notebook, as `data:` addresses."""
    found = read_executed(Path(outcome.output)) if outcome.output else None
    cells = [] if found is None else found[0].cells
    for output in (each for cell in cells for each in cell.get("outputs", [])):
        for kind, beginning in _IMAGES.items():
            if data := _image(output.get("data", {}).get(kind), beginning):
                yield f"data:{kind};base64,{data}"


def _image(text: object, beginning: bytes) -> str:
    """The base64 text of an image; empty for other content, and if it is too large."""
    if not isinstance(text, str) or len(text) > _IMAGE_BYTES:
        return ""
    try:
        data = base64.b64decode("".join(text.split()), validate=True)
    except ValueError:
        return ""
    return base64.b64encode(data).decode() if data.startswith(beginning) else ""


def check_report(file: Path) -> None:
    """Raises `BatchError` if it is known already that a report can't be written to a file."""
    above = next(each for each in file.absolute().parents if each.exists())
    if file.is_dir():
        why = "it is a folder"
    elif not above.is_dir():
        why = f"{above.name} is not a folder"
    elif not os.access(above, os.W_OK | os.X_OK):
        why = f"nothing can be written into {above.name}"
    else:
        return
    raise BatchError(f"The report {file} can't be written ({why}). Nothing was run.")


def write_reports(reports: Mapping[Path, Callable[[], bytes]]) -> bool:
    """Writes each report atomically; returns whether all could be written.

    Those that could not are named on standard error.
    """
    written = 0
    for file, data in reports.items():
        try:
            file.absolute().parent.mkdir(parents=True, exist_ok=True)
            with Folder.open(file.absolute().parent) as folder, folder.replacing(file.name) as to:
                to.write(data())
            written += 1
        except OSError as problem:
            why = describe(problem)
            print(f"wasm-kernel: the report {file.name} can't be written ({why})", file=sys.stderr)
    return written == len(reports)
