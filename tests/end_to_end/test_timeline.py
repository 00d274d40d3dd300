"""The timeline's comm in a real kernel: the front end answers it, and the guest never sees it."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import starting_in
from tests.end_to_end.real_kernel import SECONDS, RealKernel
from wasm_kernel.frontends.jupyter.timeline import TARGET, VIEWS_MOST

NOTEBOOK = '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'


class View:
    """A view of a kernel's timeline, as a page opens one."""

    def __init__(self, kernel: RealKernel) -> None:
        self._kernel = kernel
        self.comm_id = uuid.uuid4().hex
        self._requests = 0
        kernel.comm("open", self.comm_id, {}, target_name=TARGET)
        self.tree = self.pushed()

    def heard(self) -> dict[str, Any]:
        """The next message for this view."""
        return dict(self._kernel.hear_comm(self.comm_id)["content"]["data"])

    def pushed(self) -> dict[str, Any]:
        """The next tree that comes without a request."""
        while "event" not in (found := self.heard()):
            pass
        return found

    def ask(self, request: str, **fields: Any) -> dict[str, Any]:
        """The reply to a request."""
        self._requests += 1
        data = {"request": request, "id": self._requests, **fields}
        self._kernel.comm("msg", self.comm_id, data)
        while (found := self.heard()).get("id") != self._requests:
            pass
        return found

    def changed(self, label: str = "") -> dict[str, Any]:
        """The changes of variables at the newest state, or the newest with a label."""
        tree = self.ask("tree")
        state = state_after(tree, label) if label else tree["states"][-1]
        return self.ask("changes", state=state["id"], since=state["parent"])

    def close(self) -> None:
        self._kernel.comm("close", self.comm_id, {})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("timeline")


@pytest.fixture(scope="module")
def kernel(folder: Path) -> Iterator[RealKernel]:
    (folder / "own.ipynb").write_text(NOTEBOOK)
    with starting_in(folder / "sessions") as start:
        yield start(notebook=folder / "own.ipynb")


@pytest.fixture
def view(kernel: RealKernel) -> Iterator[View]:
    opened = View(kernel)
    yield opened
    opened.close()


def state_after(tree: dict[str, Any], label: str) -> dict[str, Any]:
    """The newest state after the cell with this first line."""
    found: list[dict[str, Any]] = [one for one in tree["states"] if one["label"] == label]
    return found[-1]


def test_a_view_sees_cells_as_they_run_and_goes_back_with_files_and_forth(
    kernel: RealKernel, view: View
) -> None:
    kernel.run("x = 1; open('data.txt', 'w').write('one')")
    kernel.run("x = 2; open('data.txt', 'w').write('two')")
    kernel.run("1/0")
    tree = view.ask("tree")
    first = state_after(tree, "x = 1; open('data.txt', 'w').write('one')")
    last = state_after(tree, "1/0")
    assert (first["outcome"], last["outcome"]) == ("ok", "error")
    assert first["files"] == {"created": ["data.txt"]}
    assert first["seconds"] > 0
    assert first["bytes"] > 0
    assert tree["here"] == last["id"]
    assert view.ask("go", state=first["id"], files=True)["files_back"] == ["data.txt"]
    assert kernel.run("x, open('data.txt').read()").value == "(1, 'one')"
    assert view.ask("go", state=last["id"]) == {
        "id": 3,
        "files_back": [],
        "files_removed": [],
        "files_missed": {},
        "files_left": ["data.txt"],
    }
    assert kernel.run("x, open('data.txt').read()").value == "(2, 'one')"
    assert "error" not in view.ask("undo")
    assert "error" not in view.ask("redo", files=True)
    assert "nothing to redo" in view.ask("redo")["error"]


def test_a_view_knows_the_memory_before_it_hears_of_a_cell_and_saved_states(view: View) -> None:
    assert view.tree["memory_bytes"] > 0
    tree = view.tree
    while not tree["saved"]:
        tree = view.pushed()


def test_signs_that_hide_or_turn_text_around_are_escaped(kernel: RealKernel, view: View) -> None:
    kernel.run("here = 'a\u202eb'; open('c\u202ed', 'w').close(); globals()['e\x1bf'] = 1")
    last = view.ask("tree")["states"][-1]
    assert last["label"].startswith(r"here = 'a\u202eb'; open('c\u202ed'")
    assert last["files"] == {"created": [r"c\u202ed"]}
    changed = view.ask("changes", state=last["id"], since=last["parent"])["variables"]
    assert {each["name"] for each in changed} == {"here", r"e\x1bf"}
    assert view.ask("go", state=last["parent"])["files_left"] == [r"c\u202ed"]


def test_checkpoints_are_named_and_deleted(kernel: RealKernel, view: View) -> None:
    kernel.run("y = 1")
    assert view.ask("checkpoint", name="before the merge") == {"id": 1}
    kernel.run("y = 2")
    assert state_after(view.ask("tree"), "y = 1")["names"] == ["before the merge"]
    kernel.run("%restore before the merge")
    assert kernel.run("y").value == "1"
    assert view.ask("forget", name="before the merge") == {"id": 3}
    assert "There is no checkpoint" in view.ask("forget", name="before the merge")["error"]
    assert all(not one["names"] for one in view.ask("tree")["states"])
    assert "before the merge" not in kernel.run("%restore before the merge").stdout


def test_a_cell_that_lost_its_guest_stands_at_its_state(kernel: RealKernel, view: View) -> None:
    kernel.run("z = 1")
    kernel.run("import os; os._exit(3)")
    tree = view.ask("tree")
    assert [one["label"] for one in tree["lost"]][-1] == "import os; os._exit(3)"
    lost = tree["lost"][-1]
    assert (lost["outcome"], lost["at"]) == ("lost", state_after(tree, "z = 1")["id"])
    assert lost["seconds"] > 0
    assert tree["here"] == lost["at"]


def test_a_fork_belongs_to_the_new_notebook_beside_this_one(
    kernel: RealKernel, view: View, folder: Path
) -> None:
    kernel.run("shared = [1]")
    shutil.copy(folder / "own.ipynb", folder / "own-fork.ipynb")
    assert "error" not in view.ask("fork", notebook="own-fork.ipynb")
    kernel.run("shared.append('here')")
    with starting_in(folder / "sessions") as start:
        fork = start(notebook=folder / "own-fork.ipynb")
        fork.run("shared.append('there')")
        assert fork.run("shared").value == "[1, 'there']"
    assert kernel.run("shared").value == "[1, 'here']"
    for bad in ("../own-fork.ipynb", "x/y.ipynb", "passwd", ""):
        assert "can't be read" in view.ask("fork", notebook=bad)["error"]
    assert "own.files" not in view.ask("fork", notebook="missing.ipynb")["error"]


WIDGET = "application/vnd.jupyter.widget-view+json"
TRIES = """
from comm import create_comm, get_comm_manager
for comm_id, data in {opened!r}.items():
    create_comm(target_name='jupyter.widget', comm_id=comm_id, data=data).send({press!r})
get_comm_manager().get_comm('control').send({claims!r})
display({{{view!r}: {{'model_id': {go!r}}}}}, raw=True)
"""
PRESS = {"method": "custom", "content": {"event": "click"}}


def state_of(model: str, module: str = "controls", **traits: Any) -> dict[str, Any]:
    own = {"_model_module": f"@jupyter-widgets/{module}", "_model_name": f"{model}Model"}
    return {"state": {**own, "_view_module": None, "_view_name": None, **traits}}


def tries(go: str, said: str) -> str:
    """A cell that speaks for the widget's models, shows and links one, and shows its own."""
    ends = [[f"IPY_MODEL_{one}", "description"] for one in ("own", go)]
    output = {"output_type": "display_data", "data": {WIDGET: {"model_id": go}}}
    opened = {
        go: {},
        said: state_of("HTML", value="forged"),
        "own": state_of("Button", description="Win"),
        "box": state_of("VBox", children=[f"IPY_MODEL_{go}"]),
        "out": state_of("Output", "output", outputs=[output]),
        "link": state_of("Link", source=ends[0], target=ends[1]),
    }
    claimed = {go: {"model_name": "ButtonModel", **state_of("Button")}}
    claims = {"method": "update_states", "states": claimed}
    return TRIES.format(opened=opened, press=PRESS, claims=claims, view=WIDGET, go=go)


def test_a_page_without_the_panel_gets_a_widget_that_no_cell_can_use(kernel: RealKernel) -> None:
    """A saved notebook has the ids of its models, and a cell may read the notebook's file."""
    kernel.run("import ipywidgets; shown = 1; open('<b>.txt', 'w').close()")
    kernel.run("shown = 2; open('<b>.txt', 'a').write('2')")
    shown = kernel.run("%timeline", allow_stdin=True)
    states = {each["comm_id"]: each["data"]["state"] for each in shown.of("comm_open")}
    [view] = shown.data(WIDGET)
    assert states[view["model_id"]]["_model_name"] == "VBoxModel"
    [(choice, rows)] = [each for each in states.items() if "_options_labels" in each[1]]
    labels = rows["_options_labels"]
    [row] = [number for number, each in enumerate(labels) if "shown = 1" in each]
    [go] = [one for one, each in states.items() if each.get("description") == "Go back to here"]
    [said] = [one for one, each in states.items() if each["_model_name"] == "HTMLModel"]
    kernel.comm("open", "control", {}, target_name="jupyter.widget.control")
    messages = kernel.run(tries(go, said)).messages
    told = str([each["content"] for each in messages if each["msg_type"] != "execute_input"])
    assert ("Win" in told, go in told, "forged" in told) == (True, False, False)
    assert kernel.run("shown").value == "2"
    kernel.comm("msg", choice, {"method": "update", "state": {"index": row}})
    kernel.comm("msg", go, PRESS)
    state = kernel.hear_comm(said)["content"]["data"]["state"]
    assert "Files stay as they are: &lt;b&gt;.txt." in state["value"]
    assert kernel.run("shown").value == "1"
    again = kernel.run("%timeline", allow_stdin=True)  # the last widget goes
    assert {each["comm_id"] for each in again.of("comm_close")} == {*states}
    assert not kernel.run("%timeline", allow_stdin=False).data(WIDGET)  # such as by nbclient


FORGES = """
from comm import create_comm, get_comm_manager
seen = []
get_comm_manager().register_target({target!r}, lambda *a: seen.append(a))
for comm_id in ({comm_id!r}, 'mine'):
    try:
        forged = create_comm(target_name={target!r}, comm_id=comm_id)
        forged.send({{'event': 'tree', 'states': [], 'forged': True}})
        forged.close()
    except Exception as problem:
        print(type(problem).__name__)
"""


def test_a_guest_neither_hears_a_view_nor_speaks_to_one(kernel: RealKernel, view: View) -> None:
    kernel.run(FORGES.format(target=TARGET, comm_id=view.comm_id))
    assert "forged" not in view.pushed()
    other = View(kernel)
    assert "states" in other.ask("tree")
    other.close()
    assert kernel.run("seen").value == "[]"
    assert "states" in view.ask("tree")


def test_views_and_their_requests_are_limited(kernel: RealKernel, view: View) -> None:
    for request, fields in (
        ("go", {"state": "1"}),
        ("go", {"state": 10**12}),
        ("go", {}),
        ("run", {"code": "1"}),
        ("forget", {"name": "x", "more": 1}),
    ):
        assert "can't be read" in view.ask(request, **fields)["error"]
    assert "no checkpoint and no kept cell" in view.ask("go", state=99_999)["error"]
    assert "1 to 64 letters" in view.ask("checkpoint", name="<img src=x>")["error"]
    more = [View(kernel) for _ in range(VIEWS_MOST - 1)]
    kernel.comm("open", refused := uuid.uuid4().hex, {}, target_name=TARGET)
    assert kernel.hear_comm(refused)["msg_type"] == "comm_close"
    for each in more:
        each.close()


HOSTILE = """
def note(what): open('/app/ran', 'a').write(what)
class Meta(type):
    __name__ = property(lambda self: note('type name') or 'x')
class Hostile(metaclass=Meta):
    def __repr__(self): note('repr'); return 'x'
    def __sizeof__(self): note('sizeof'); return 1
    def __hash__(self): note('hash'); return 1
    def __eq__(self, other): note('eq'); return True
    def __getattribute__(self, name): note(name); return object.__getattribute__(self, name)
    @property
    def __dict__(self): note('dict')
    @property
    def __class__(self): note('class')
    def __del__(self): note('del')
hostile = Hostile()
hostile_too = [Hostile(), {1: Hostile()}]
"""
RAN = "__import__('os').path.exists('/app/ran')"


def test_changes_at_a_state_are_told_without_code_of_a_cell(kernel: RealKernel, view: View) -> None:
    kernel.run("a = 1; table = {'k': [1]}; gone = 0")
    kernel.run("a = 2; table['k'].append(2); del gone; text = 'x' * 100")
    kernel.run(HOSTILE)
    assert kernel.run(RAN).value == "False"
    kernel.run("hostile_too.append(Hostile())")
    tree = view.ask("tree")
    plain = state_after(tree, "a = 2; table['k'].append(2); del gone; text = 'x' * 100")
    found = view.ask("changes", state=plain["id"], since=plain["parent"])
    by_name = {one.pop("name"): one for one in found["variables"]}
    assert by_name["a"]["before"]["text"] == "1"
    assert by_name["a"]["after"] == {"type": "int", "text": "2", "size": 16}
    assert by_name["table"]["after"]["text"] == "1 item"
    assert by_name["gone"]["after"] is None
    assert by_name["text"]["before"] is None
    assert by_name["text"]["after"]["text"] == repr("x" * 60) + "..."
    assert len(by_name) == 4
    found = view.ask("changes", state=tree["here"], since=plain["id"])
    told = {one["name"]: one["after"]["type"] for one in found["variables"]}
    assert told["hostile"] == "Hostile"
    assert told["hostile_too"] == "list"
    assert kernel.run(RAN).value == "False"
    assert "not kept any more" in view.ask("changes", state=99_999)["error"]


TABLES = """
import pandas as pd, numpy as np
frame = pd.DataFrame({n: range(1000) for n in "abcdefghijkl"})
named = pd.DataFrame({"a": [1, 2]}, index=["x", "y"])
dated = pd.Series(1, index=pd.date_range("2026-01-01", periods=31))
nested = frame.set_index(["a", "b"])
class DataFrame: pass
fake = DataFrame(); fake.rows = [1]
"""


def test_tables_are_told_with_their_shapes(kernel: RealKernel, view: View) -> None:
    kernel.run(TABLES.strip())
    found = view.changed()["variables"]
    told = {one["name"]: (one["after"]["type"], one["after"]["text"]) for one in found}
    assert told["frame"] == ("DataFrame", "1000 x 12")
    assert told["named"] == ("DataFrame", "2 x 1")
    assert told["dated"] == ("Series", "31")
    assert told["nested"] == ("DataFrame", "")
    assert told["fake"] == ("DataFrame", "")


HOSTILE_SCRIPT = """
const ran = (what) => { require("fs").appendFileSync("/app/ran", what); return "x"; };
const traps = new Proxy({}, { get: (_, name) => () => ran(name) });
var hostile = new Proxy({ a: 1 }, traps);
var { proxy: revocable } = Proxy.revocable([1], traps);
class Hostile {
  get value() { return ran("getter"); }
  toString() { return ran("toString"); }
  toJSON() { return ran("toJSON"); }
  [Symbol.toPrimitive]() { return ran("toPrimitive"); }
  static get [Symbol.hasInstance]() { return ran("hasInstance"); }
}
var held = [new Hostile(), { [Symbol.iterator]: () => ran("iterator") }, hostile];
Object.defineProperty(globalThis, "sly", { get: () => ran("global"), configurable: true });
const forever = () => { while (true); };
var under = Object.create(new Proxy({}, { getPrototypeOf: forever }));
Array.prototype[Symbol.iterator] = () => ran("iterator of lists");
Array.prototype.push = Set.prototype.has = String.prototype.slice = () => ran("method");
Object.defineProperty(Object.prototype, "value", { get: () => "stolen" });
"""


def test_changes_are_told_in_javascript_without_code_of_a_cell(tmp_path: Path) -> None:
    with starting_in(tmp_path) as start:
        kernel = start(name="wasm-javascript")
        view = View(kernel)
        second = "a = 2; table.k[0] = bytes[1] = 7; var text = 'x'.repeat(99); delete this.gone"
        kernel.run(
            "var a = 1, table = {k: [1]}, bytes = new Uint8Array(9), m = new Map([[1, 2]]);"
            "class Own extends Map {}; var kept = [new Own([[1, 2]]), new Date(1), /x/, m];"
            "var own = new Own([[1, 2]]), set = new Set([1]), date = new Date(1), sought = /x/;"
            " globalThis.gone = 0"
        )
        kernel.run(second)
        kernel.run("own.set(1, 3); set.delete(1); set.add(2); date.setTime(2); sought.compile('y')")
        plain = state_after(view.ask("tree"), second[:80])
        found = view.ask("changes", state=plain["id"], since=plain["parent"])
        by_name = {one.pop("name"): one for one in found["variables"]}
        assert by_name.keys() == {"a", "table", "bytes", "text", "gone"}
        found = view.ask("changes", state=view.ask("tree")["here"], since=plain["id"])
        assert [one["name"] for one in found["variables"]] == ["own", "set", "date", "sought"]
        assert by_name["a"]["before"]["text"] == "1"
        assert by_name["a"]["after"]["type"] == "number"
        assert by_name["text"]["after"]["text"] == f'"{"x" * 60}"...'
        assert by_name["bytes"]["after"]["text"] == "9 items"
        assert by_name["gone"]["after"] is None
        kernel.run(HOSTILE_SCRIPT.strip())
        tree = view.ask("tree")
        found = view.ask("changes", state=tree["here"], since=plain["id"])
        told = {one["name"]: one["after"]["type"] for one in found["variables"]}
        types = {"hostile": "Proxy", "revocable": "Proxy", "held": "Array", "sly": "getter"}
        types |= {"under": "Object"}
        assert told.items() >= types.items()
        kernel.run("%undo")
        assert kernel.run("require('fs').readdirSync('/app')").value == "[]"


def test_many_variables_and_objects_are_told_in_part(kernel: RealKernel, view: View) -> None:
    kernel.run("many = [object() for _ in range(1_000_000)]")
    kernel.run("many[3] = 5; globals().update({f'<b>{n}': n for n in range(100_000)})")
    found = view.changed()
    assert found["is_partial"]
    assert len(found["variables"]) == 300
    assert found["variables"][-1]["name"] == "<b>99999"


def test_a_reopened_notebook_knows_how_the_cells_of_yesterday_ran(tmp_path: Path) -> None:
    notebook = tmp_path / "own.ipynb"
    notebook.write_text(NOTEBOOK)
    cells = {"one": "open('made.txt', 'w').close()", "two": "1/0"}
    with starting_in(tmp_path / "sessions") as start:
        kernel = start(notebook=notebook)
        for cell_id, code in cells.items():
            client = kernel.client
            content = {"code": code, "silent": False, "store_history": True}
            asked = client.session.msg("execute_request", content, metadata={"cellId": cell_id})
            client.session.send(client.shell_channel.socket, asked)
            client.get_shell_msg(timeout=SECONDS)
        kernel.run("%undo")
        kernel.shut_down()
        kernel = start(notebook=notebook, resume="always")
        view = View(kernel)
        tree = view.ask("tree")
        assert tree["resumed"].startswith("The session goes on: the variables are as they were")
        first, second = (state_after(tree, cells[name]) for name in ("one", "two"))
        assert (first["outcome"], second["outcome"]) == ("ok", "error")
        assert first["files"] == {"created": ["made.txt"]}
        assert first["seconds"] > 0
        assert tree["here"] == first["id"]
        assert tree["gone"] == ["two"]
        assert "goes on" not in kernel.run("pass").stderr  # the page has already said so
        kernel.run("%undo")
        assert view.ask("tree")["resumed"] == ""
        assert "error" not in view.ask("checkpoint", name="kept")
        view.ask("go", state=second["id"])
        assert view.ask("tree")["gone"] == []
        kernel.shut_down()
        tree = View(start(notebook=notebook)).ask("tree")  # begins anew, except for named states
        assert [(one["files"], one["outcome"]) for one in tree["states"] if one["names"]] == [
            ({"created": ["made.txt"]}, "ok")
        ]
        assert tree["gone"] == []
