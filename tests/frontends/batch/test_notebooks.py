# mypy: disable-error-code="no-untyped-call"

"""The notebooks of a batch: how they are found, read and written."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.faces import full_disk
from tests.frontends.batch.conftest import Making, code
from tests.peak import Peak
from wasm_kernel.frontends.batch import notebook_client, notebooks
from wasm_kernel.frontends.batch.notebook_client import CellClient
from wasm_kernel.frontends.batch.notebooks import (
    METADATA,
    NotebookError,
    code_cells,
    find_sources,
    merged,
    parse_notebook,
    read_executed,
    read_notebook,
    write_notebook,
)
from wasm_kernel.frontends.batch.outcome import BatchError, NotebookEnded, paths_in
from wasm_kernel.frontends.batch.parameters import (
    check_parameters,
    put_in,
    read_parameters,
    value_of,
)
from wasm_kernel.policy import MIB


def test_folders_globs_and_files_are_found_once(
    make: Making, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.ipynb", "b/c.ipynb", "b/.ipynb_checkpoints/c.ipynb", "done/a.ipynb"):
        make(name, "1")
    monkeypatch.chdir(tmp_path / "in")
    found = find_sources([".", "b/*.ipynb", "**/*.ipynb", "a.ipynb"], Path("done"))
    assert [each.name for each in found] == ["a.ipynb", "b/c.ipynb"]
    assert found[1].output == tmp_path / "in" / "done" / "b" / "c.ipynb"
    assert found[1].folder == tmp_path / "in" / "b"
    one = find_sources(["a.ipynb"], Path("x.ipynb"))[0]
    assert one.output == tmp_path / "in" / "x.ipynb"


def test_a_run_that_cannot_begin_is_refused_before_it_runs(make: Making, tmp_path: Path) -> None:
    file = make("a.ipynb", "1")
    make("b.ipynb", "1")
    with pytest.raises(BatchError, match="no notebook"):
        find_sources([str(tmp_path / "*.nothing")], tmp_path / "out")
    with pytest.raises(BatchError, match="one file"):
        find_sources([str(tmp_path / "in")], tmp_path / "out.ipynb")
    with pytest.raises(BatchError, match="replaced by its own outputs"):
        find_sources([str(file)], tmp_path / "in")


def test_stdin_is_a_notebook(make: Making, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = make("a.ipynb", "print(1)").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    (source,) = find_sources(["-"], tmp_path / "out")
    assert source.output.name == "stdin.ipynb"
    assert [cell.source for _, cell in code_cells(read_notebook(source))] == ["print(1)"]


def test_old_notebooks_get_the_same_ids_each_time() -> None:
    cell = {"cell_type": "code", "source": ["a\n", "b"], "metadata": {}, "outputs": []}
    cells = [{**cell, "execution_count": None}] * 2
    old = {"nbformat": 4, "nbformat_minor": 2, "metadata": {}, "cells": cells}
    book = parse_notebook(json.dumps(old).encode())
    assert [each.id for each in book.cells] == ["cell-1", "cell-2"]
    assert book.cells[0].source == "a\nb"
    v3 = {"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": []}
    assert parse_notebook(json.dumps(v3).encode()).nbformat == 4


ENDLESS = '{"nbformat": 4, "nbformat_minor": 1e999, "metadata": {}, "cells": []}'
STRANGE = '{"nbformat": 1, "nbformat_minor": 0, "cells": [{"cell_type": 7}]}'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (" ", "the file is empty"),
        ("\n\n{", "its line 3 is not JSON"),
        ("[]", "JSON of another kind"),
        ("{}", "it lacks nbformat"),
        ('{"nbformat": 4}', "it lacks cells"),
        ('{"nbformat": 4, "cells": "one"}', "a part of it is of another kind"),
        ("\xff", "not text in UTF-8"),
        *((text, "not a notebook") for text in ("[" * 100_000, ENDLESS, STRANGE)),
    ],
)
def test_a_file_that_is_not_a_notebook_is_refused_in_words(text: str, why: str) -> None:
    with pytest.raises(NotebookError, match=f"not a notebook.*{why}|{why}"):
        parse_notebook(text.encode("latin-1"))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_notebook_may_begin_with_the_mark_that_windows_puts_there(encoding: str) -> None:
    book = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": []}
    assert parse_notebook(json.dumps(book).encode(encoding)).cells == []


def test_a_folder_with_the_name_of_the_home_is_no_other(
    make: Making, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Formerly, `run *` beside a stranger's folder `~` ran the notebooks in the user's home."""
    make("~/a.ipynb", "'theirs'")
    home = make("home/a.ipynb", "'mine'").parent
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path / "in")
    for name, folder in (("~", tmp_path / "in/~"), ("~/a.ipynb", tmp_path / "in/~")):
        (found,) = find_sources(paths_in("notebooks", [name]), tmp_path / "out")
        assert found.folder == folder
    (tmp_path / "in/~").rename(tmp_path / "in/other")
    (found,) = find_sources(paths_in("notebooks", ["~/a.ipynb"]), tmp_path / "out")
    assert found.folder == home


def test_a_notebook_cannot_bring_a_verdict_or_outputs(make: Making, tmp_path: Path) -> None:
    file = make("a.ipynb", "1")
    raw = json.loads(file.read_text())
    raw["metadata"][METADATA] = {"verdict": "ok", "done": 9}
    raw["cells"][0]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "42"}]
    file.write_text(json.dumps(raw))
    (source,) = find_sources([str(file)], tmp_path / "out")
    book = read_notebook(source)
    assert METADATA not in book.metadata and not book.cells[0].outputs


def test_a_link_in_a_notebooks_place_is_not_followed(make: Making, tmp_path: Path) -> None:
    make("x/a.ipynb", "1")
    elsewhere = make("y/b.ipynb", "2")
    (tmp_path / "in/x/out.ipynb").symlink_to(elsewhere)
    (tmp_path / "in/x/same.ipynb").symlink_to("a.ipynb")
    os.mkfifo(tmp_path / "in/x/pipe.ipynb")
    (tmp_path / "in/x/loop.ipynb").symlink_to("loop.ipynb")
    sources = {each.path: each for each in find_sources([str(tmp_path / "in/x")], tmp_path / "o")}
    read = {path.name: source for path, source in sources.items() if path is not None}
    assert read_notebook(read["same.ipynb"]).cells[0].source == "1"
    with pytest.raises(NotebookError, match="leads out of its folder"):
        read_notebook(read["out.ipynb"])
    with pytest.raises(NotebookError, match="not a file"):
        read_notebook(read["pipe.ipynb"])
    with pytest.raises(NotebookError, match="Too many levels"):  # formerly, the run ended
        read_notebook(read["loop.ipynb"])


def test_a_hostile_notebook_is_read_in_time_that_grows_with_its_size() -> None:
    """Formerly, three cells kept a run from ending for ever, and 2,000 tags for 20 s."""
    cell: dict[str, object] = {"cell_type": "code", "source": "", "metadata": {}, "outputs": []}
    cell["execution_count"] = None
    book: dict[str, object] = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}}
    named = [cell | {"id": name} for name in ("a", "cell-3-2", "a")]
    read = parse_notebook(json.dumps(book | {"cells": named}).encode())
    assert len({each.id for each in read.cells}) == len(named)
    tagged = {"cells": [cell | {"metadata": {"tags": [{"": n} for n in range(100_000)]}}]}
    old = {"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": [tagged]}
    began = time.process_time()
    for each in (book | tagged, old):
        with pytest.raises(NotebookError, match="the tags of a cell are not texts"):
            parse_notebook(json.dumps(each).encode())
    assert time.process_time() - began < 20.0


def test_odd_and_old_notebooks_are_written_and_take_parameters() -> None:
    """Formerly, such a notebook ended a whole run on a cluster, or a run that compared outputs."""
    cell = {"cell_type": "code", "id": "a", "source": "'\ud800'", "metadata": {}, "outputs": []}
    book = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}}
    read = parse_notebook(json.dumps(book | {"cells": [cell | {"execution_count": None}]}).encode())
    assert b"'?'" in nbformat.v4.writes(read).encode()
    first = {"cell_type": "code", "code": "x = 1", "prompt_number": 1}
    old = {"nbformat": 1, "nbformat_minor": 0, "metadata": {}, "cells": [first]}
    assert "x = 3" in put_in(parse_notebook(json.dumps(old).encode()), {"x": 3}).cells[0].source


@pytest.mark.parametrize("values", ['{"":{}},', "[],", "1,"])
def test_notebook_of_many_values_is_not_read(values: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Formerly, a notebook of 30 MB blocked all other notebooks for 72 s and took 6 GB."""
    monkeypatch.setattr(notebooks, "MOST_VALUES", 1_000)
    book = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": []}
    text = json.dumps(book | {"metadata": {"x": "@"}})
    with pytest.raises(NotebookError, match=r"more than 1,000 values.* Clear its outputs"):
        parse_notebook(text.replace('"@"', f"[{values * 1_000}1]").encode())
    assert parse_notebook(text.replace("@", "1,[{" * 1_000).encode()).metadata.x


def test_parameters_are_found_in_whatever_a_cell_holds(make: Making, tmp_path: Path) -> None:
    slow = "a: " + "b " * 200_000
    source = f"day = 'mon'\n  n: dict[str, int] = {{\n'x': 1}}\nm == 2\n%magic x=1\n{slow}"
    (found,) = find_sources([str(make("a.ipynb", code(source, "parameters")))], tmp_path / "out")
    book = read_notebook(found)
    check_parameters(book, "a", {"day": 1, "n": 2})
    with pytest.raises(BatchError, match="no parameter m; it has day, n"):
        check_parameters(book, "a", {"m": 3})


def test_a_write_that_fails_keeps_what_was_written_before(
    make: Making, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source,) = find_sources([str(make("a.ipynb", "1"))], tmp_path / "out")
    book = read_notebook(source)
    write_notebook(book, source.output, {"verdict": "ok", "done": 1})
    monkeypatch.setattr(os, "rename", full_disk)
    with pytest.raises(BatchError, match="can't be written"):
        write_notebook(book, source.output, {"verdict": "error"})
    found = read_executed(source.output)
    assert found is not None and found[1] == {"verdict": "ok", "done": 1}
    assert [each.name for each in source.output.parent.iterdir()] == ["a.ipynb"]


def test_values_of_parameters_are_papermills(tmp_path: Path) -> None:
    texts = ["1", "-2.5", "1e3", "True", "None", "yes", "007x", "a b"]
    assert [value_of(each) for each in texts] == [1, -2.5, 1e3, True, None, "yes", "007x", "a b"]
    file = tmp_path / "p.yaml"
    file.write_text("n: 3\nday: tue\n")
    assert read_parameters([file], [("n", "4")]) == {"n": 4, "day": "tue"}
    file.write_text("- 1")
    with pytest.raises(BatchError, match="no names with values"):
        read_parameters([file], [])


@pytest.mark.parametrize("version", [4, 3])
def test_faults_in_a_notebook_take_little_memory(version: int) -> None:
    """Before, each took some 60 KB: a notebook of 20 MB could end a batch."""
    output = {"output_type": "stream", "name": 1, "text": 5}
    cell: dict[str, object] = {"cell_type": "code", "metadata": {}, "outputs": [output] * 7_000}
    cell |= {"source": "1", "execution_count": None} if version == 4 else {"input": "1"}
    book: dict[str, object] = {"nbformat": version, "nbformat_minor": 0, "metadata": {}}
    book |= {"cells": [cell]} if version == 4 else {"worksheets": [{"cells": [cell]}]}
    peak = Peak()
    with pytest.raises(NotebookError, match=r"cells\[0\] must be valid|Clear its outputs"):
        parse_notebook(json.dumps(book).encode())
    assert peak.grown < 100 * MIB


class Page:
    """A notebook of empty cells, whose kernel sends the messages of a test."""

    def __init__(self, cells: int = 1) -> None:
        made = [nbformat.v4.new_code_cell("pass") for _ in range(cells)]
        self.book = nbformat.v4.new_notebook(cells=made)
        self.client = CellClient(self.book, record_timing=False)
        self.client.clear_before_next_output = False  # as at the beginning of each cell

    def tell(self, kind: str, content: dict[str, Any], cell: int = 0) -> None:
        header = {"msg_id": f"cell {cell}", "msg_type": kind}
        msg = {"header": header, "msg_type": kind, "parent_header": header}
        msg |= {"content": content, "metadata": {}, "buffers": []}
        self.client.process_message(msg, self.book.cells[cell], cell)

    def show(self, text: str, cell: int = 0, kind: str = "display_data") -> None:
        shown = {"data": {"text/plain": text}, "metadata": {}, "transient": {"display_id": "a"}}
        self.tell(kind, shown, cell)

    def widget(self, name: str, state: Any, kind: str = "comm_open") -> None:
        content = {"comm_id": name, "target_name": "jupyter.widget", "data": {"state": state}}
        self.tell(kind, content)

    def texts(self, cell: int = 0) -> list[str]:
        outputs = self.book.cells[cell].outputs
        return [each.get("text") or each["data"]["text/plain"] for each in outputs]


def test_a_display_is_updated_wherever_its_cell_has_it_by_now() -> None:
    page = Page(cells=2)
    for text in ("one", "two"):
        page.tell("stream", {"name": "stdout", "text": text})
    page.show("0 %")
    page.book.cells[0].outputs = merged(page.book.cells[0].outputs)
    page.show("100 %", cell=1, kind="update_display_data")
    assert page.texts() == ["onetwo", "100 %"]
    page.tell("clear_output", {"wait": False})
    page.show("new", cell=1)
    assert page.texts() == [] and page.texts(1) == ["new"]


def test_no_display_can_grow_a_thousand_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """An update is one message, and the notebook's file repeats it at each place of the display."""
    monkeypatch.setattr(notebook_client, "COPIED_BYTES", 1_000_000)
    page = Page()
    for _ in range(20):
        page.show("x")
    with pytest.raises(NotebookEnded):
        page.show("y" * 100_000, kind="update_display_data")
    assert page.texts() == ["x"] * 20


def test_outputs_hold_no_more_values_than_notebooks_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each value takes some 400 bytes of memory in the run, and two bytes in the file."""
    monkeypatch.setattr(notebook_client, "MOST_VALUES", 1_000)
    page = Page()
    for kind in ("display_data", "update_display_data"):
        page.show("[1, 2, {}]" * 1_000, kind=kind)
    shown = {"data": {"application/json": [{"a": 1}] * 40}, "metadata": {}, "transient": {}}
    page.tell("display_data", shown)
    with pytest.raises(NotebookEnded, match="1,000 values"):
        page.tell("execute_result", shown | {"execution_count": 1})
        page.tell("display_data", shown)
    assert len(page.book.cells[0].outputs) <= 3


def test_invalid_widgets_end_no_run_and_many_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook_client, "COPIED_BYTES", 1_000_000)
    area: Any = {"_model_module": "@jupyter-widgets/output", "_model_name": "OutputModel"}
    page = Page()
    opened: list[Any] = [5, None, area, area | {"_model_module": []}, area | {"outputs": 5}]
    for state in opened:
        page.widget("w", state)
    changed: list[Any] = [5, {"msg_id": ""}, {"msg_id": []}]
    for state in changed:
        page.widget("w", state, "comm_msg")
    for number in range(100):
        page.widget("bar", {"value": f"{number} {'x' * 100_000}"}, "comm_msg")
    with pytest.raises(NotebookEnded):
        for number in range(100):
            page.widget(f"bar {number}", {"value": "x" * 100_000})
