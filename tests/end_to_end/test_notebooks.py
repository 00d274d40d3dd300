"""The notebooks run, and show what a reader should see.

nbclient executes each of them once with the installed kernelspec; tests find cells by their ids.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from wasm_kernel import get_session_sandbox

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NAMES = ("1-tour", "2-limits", "3-files", "4-time-travel")
ORDERS = "5-orders"  # a folder with an analysis and its data; see test_analysis.py
CELL_SECONDS = 300  # for a slow machine; the slowest cell takes about ten
PNG = b"\x89PNG\r\n\x1a\n"

SPEAK_ON_STDERR = {
    "crash",  # faulthandler's own last words
    "process",  # a refused command, in the words of a shell
}

Cell = Any


def _committed(name: str) -> Any:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)  # type: ignore[no-untyped-call]


class Run:
    """One executed notebook, and the host folder with its sessions."""

    def __init__(self, name: str, sessions: Path, **environment: object) -> None:
        self.notebook = _committed(name)
        self.sessions = sessions
        beside = {"metadata": {"path": str(FOLDER)}}
        with pytest.MonkeyPatch.context() as patch:
            for variable, value in (environment | {"WASM_KERNEL_WORKSPACE_ROOT": sessions}).items():
                patch.setenv(variable, str(value))
            NotebookClient(
                self.notebook, kernel_name="wasm-python", timeout=CELL_SECONDS, resources=beside
            ).execute()

    @property
    def code(self) -> list[Cell]:
        """The code cells, in order."""
        return [cell for cell in self.notebook.cells if cell.cell_type == "code"]

    def outputs(self, cell_id: str) -> list[Any]:
        """The outputs of the cell with this id."""
        return next(cell.outputs for cell in self.code if cell.id == cell_id)

    def stream(self, cell_id: str, name: str = "stdout") -> str:
        """All text that the cell wrote to one stream."""
        outputs = self.outputs(cell_id)
        return "".join(o.text for o in outputs if o.output_type == "stream" and o.name == name)

    def shown(self, cell_id: str, mime: str) -> str:
        """The cell's output of this type; fails the test if there is none."""
        for output in self.outputs(cell_id):
            if mime in output.get("data", {}):
                return str(output.data[mime])
        pytest.fail(f"the cell {cell_id} shows no {mime}")

    def errors(self, cell_id: str) -> list[str]:
        """The names of the errors with which the cell ended."""
        return [o.ename for o in self.outputs(cell_id) if o.output_type == "error"]

    def workspace(self) -> Path:
        """The host folder of the only session."""
        (folder,) = self.sessions.iterdir()
        return folder


def _executed(name: str, temporary: pytest.TempPathFactory, **environment: object) -> Iterator[Run]:
    sessions = temporary.mktemp("notebook")
    yield Run(name, sessions, **environment)
    shutil.rmtree(sessions)  # the memory that a memory bomb filled is kept in its session's history


def _settings(temporary: pytest.TempPathFactory, trait: str) -> Path:
    """Writes Jupyter's settings with one of the kernel's, and returns their folder."""
    folder = temporary.mktemp("config")
    setting = f"c = get_config()\nc.WasmKernel.{trait}\n"
    (folder / "jupyter_wasm_kernel_config.py").write_text(setting)
    return folder


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    yield from _executed("1-tour", tmp_path_factory)


@pytest.fixture(scope="module")
def limits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Less memory than by default, since filling that takes many seconds."""
    settings = _settings(tmp_path_factory, f"memory_bytes = {512 << 20}")
    yield from _executed("2-limits", tmp_path_factory, JUPYTER_CONFIG_DIR=settings)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    yield from _executed("3-files", tmp_path_factory)


@pytest.fixture(scope="module")
def remembering(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The environment of a user whose notebooks continue their sessions."""
    settings = _settings(tmp_path_factory, 'resume = "always"')
    return {"JUPYTER_CONFIG_DIR": settings, "JPY_SESSION_NAME": FOLDER / "4-time-travel.ipynb"}


@pytest.fixture(scope="module")
def travel(
    tmp_path_factory: pytest.TempPathFactory, remembering: dict[str, object]
) -> Iterator[Run]:
    yield from _executed("4-time-travel", tmp_path_factory, **remembering)


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.soak) for name in ("tour", "files")]
    + ["limits", "travel"]
)
def run(request: pytest.FixtureRequest) -> Run:
    """Each of the notebooks."""
    chosen: Run = request.getfixturevalue(request.param)
    return chosen


# What is committed


def test_the_folder_holds_these_notebooks() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == list(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_short_has_a_claim_and_our_kernel_and_no_outputs(name: str) -> None:
    raw = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    nbformat.validate(raw)
    code = [cell for cell in raw["cells"] if cell["cell_type"] == "code"]
    assert [cell["outputs"] for cell in code] == [[]] * len(code)
    assert {cell["execution_count"] for cell in code} == {None}
    spec = raw["metadata"]["kernelspec"]
    assert (spec["name"], spec["display_name"]) == ("wasm-python", "Python (wasm sandbox)")
    assert 10 <= len(raw["cells"]) <= 18
    assert "**The claim: " in "".join(raw["cells"][0]["source"])


# What every reader sees


def test_cells_are_counted_and_those_meant_to_fail_do(run: Run) -> None:
    counts = [cell.execution_count for cell in run.code]
    assert counts == list(range(1, len(counts) + 1))
    failed = {cell.id for cell in run.code if run.errors(cell.id)}
    meant = {cell.id for cell in run.code if "raises-exception" in cell.metadata.get("tags", [])}
    assert failed == meant


def test_no_output_names_a_path_of_the_host(run: Run) -> None:
    text = json.dumps([_without_images(cell.outputs) for cell in run.code])
    places = (FOLDER.parent, Path.home(), Path(sys.prefix), Path(sys.base_prefix), run.sessions)
    for place in places:
        assert f"{place}/" not in text
        assert f'{place}"' not in text


def test_no_output_is_noise(run: Run) -> None:
    assert {cell.id for cell in run.code if run.stream(cell.id, "stderr")} <= SPEAK_ON_STDERR
    assert "Warning" not in json.dumps([_without_images(cell.outputs) for cell in run.code])


def _without_images(outputs: list[Any]) -> list[Any]:
    kept = []
    for output in outputs:
        data = {k: v for k, v in output.get("data", {}).items() if not k.startswith("image/")}
        kept.append({**output, "data": data})
    return kept


# The tour, which takes as long as many tests; `make demo` runs it, too


SHOWN = (
    *((table, "text/html", "</table>") for table in ("load", "groupby", "sqlite", "statistics")),
    ("groupby", "text/plain", r"Barolo +13\.74 .* 1115\.71"),
    ("fit", "text/html", "LogisticRegression"),
    ("sqlite", "text/plain", r"40 +222 +26\.7 +153\.1"),
    ("formula", "text/latex", r"= \\sqrt\{\\pi\}"),
    ("await", "text/plain", r"\['tea', 'coffee'\]"),
)


@pytest.mark.soak
def test_the_tour_shows_figures_and_results(tour: Run) -> None:
    for cell_id in ("matplotlib", "seaborn", "digits"):
        image = base64.b64decode(tour.shown(cell_id, "image/png"))
        assert image.startswith(PNG)
        assert len(image) > 10_000
    for cell_id, mime, part in SHOWN:
        assert re.search(part, tour.shown(cell_id, mime)), cell_id
    score = re.fullmatch(r"accuracy on 45 unseen wines: ([01]\.\d\d)\n", tour.stream("score"))
    assert score is not None
    assert float(score[1]) > 0.9


@pytest.mark.soak
def test_the_tour_s_progress_bar_comes_to_its_end(tour: Run) -> None:
    view = "application/vnd.jupyter.widget-view+json"
    assert view in json.dumps(tour.outputs("progress"))
    widgets = tour.notebook.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    states = [widget["state"] for widget in widgets.values()]
    assert any(state.get("max") == state.get("value") == 6.0 for state in states)
    texts = [str(state.get("value")).replace("\u2007", " ") for state in states]
    assert any("neighbours: 100%" in text for text in texts)
    assert any("6/6" in text for text in texts)


# The limits


DISASTERS = {
    "loop": "CellTimeout",
    "memory": "OutOfMemory",
    "recursion": "StackExhausted",
    "exit": "GuestExited",
    "crash": "GuestCrashed",
}


def test_a_disaster_has_its_name_and_says_what_was_kept(limits: Run) -> None:
    for cell_id, ename in DISASTERS.items():
        (error,) = [o for o in limits.outputs(cell_id) if o.output_type == "error"]
        assert error.ename == ename
        assert "variables are as they were before this cell" in error.evalue


def test_variables_and_files_are_there_afterwards(limits: Run) -> None:
    readings = [20.5, 21.0, 19.8]
    for cell_id, more in (("loop", []), ("memory", [20.1]), ("recursion", []), ("exit", [20.3])):
        readings += more
        lines = limits.stream(f"after-{cell_id}").splitlines()
        assert f"readings: {readings}" in lines
        assert "notes.txt: calibrated on Monday" in lines
        assert "and again on Tuesday" in lines


def test_what_a_stopped_cell_made_is_gone_with_it(limits: Run) -> None:
    assert "down is defined: False" in limits.stream("after-recursion")
    assert "text is defined: False" in limits.stream("after-memory")


# The files; test_notebook_folder.py and tests/execution test these claims one by one


@pytest.mark.soak
def test_files_lie_in_the_session_and_nothing_else_is_there(files: Run) -> None:
    empty = "here: /notebook\nbeside this notebook: True\nof this session: []\n"
    assert files.stream("empty") == empty
    assert {path.stem for path in FOLDER.iterdir() if path.name[0] != "."} == {*NAMES, ORDERS}
    assert "150.0" in files.shown("csv", "text/plain")
    assert "reports/2024/01-january.txt 27 bytes" in files.stream("pathlib")
    assert files.stream("sqlite") == "rows in flowers.db: 150\n"
    assert "reports/2024/01-january.txt" in files.stream("zip")
    assert files.stream("import") == "/notebook/petals.py\n"
    assert files.stream("run") == "petals.py runs as a script\n"
    made = {"all.zip", "flowers.csv", "flowers.db", "petals.py", "reports"}
    names = [line.split()[-1].removesuffix("/") for line in files.stream("shell").splitlines()[1:]]
    assert sorted(names) == sorted([*made, ORDERS, *(f"{name}.ipynb" for name in NAMES)])
    lines = files.stream("outside").splitlines()
    assert len(lines) == 6
    assert all(line.endswith(" not there") for line in lines)
    assert files.errors("link") == ["FileNotFoundError"]
    assert "the sandbox has no network" in files.stream("network")
    assert "Put the data into the workspace folder" in files.stream("process", "stderr")
    workspace = files.workspace()
    assert made | {"way-out"} <= {path.name for path in workspace.iterdir()}
    assert (workspace / "flowers.csv").read_text().count("\n") == 151
    assert (workspace / ".metadata.json").is_file()  # the notebook could not see it


# The time travel

THINGS = [
    "in the open transaction: True [('Ada',)]",
    "double(21): 42",
    "the log is read up to byte 5",
]


def test_a_mistake_is_taken_back(travel: Run) -> None:
    assert travel.stream("visit") == "visit number 1\n"
    assert travel.stream("mistake") == "the sum of all other squares: 332833495\n"
    assert 'In[3] print("the sum of all other squares:"' in travel.stream("undo")
    assert travel.stream("after-undo").splitlines() == ["the next square: 9", *THINGS]


def test_after_the_crash_everything_is_as_before(travel: Run) -> None:
    assert travel.errors("crash") == ["GuestExited"]
    assert travel.stream("after-crash").splitlines() == ["the next square: 16", *THINGS]


def test_the_states_are_listed_with_the_named_one(travel: Run) -> None:
    assert "before the crash" in travel.shown("states", "text/html")


def test_the_fork_is_a_session_with_the_same_things_and_other_chances(travel: Run) -> None:
    session = travel.stream("fork").split()[1]
    here = float(travel.stream("after-fork").split()[-1])
    with get_session_sandbox(session, workspace_root=travel.sessions) as fork:
        code = "print(next(squares), visits, log.read(), random.random(), double(4))"
        square, visits, *rest, chance, doubled = fork.execute(code).stdout.split()
    assert (square, visits, " ".join(rest), doubled) == ("25", "1", "on Monday", "8")
    assert float(chance) != here


def test_tomorrow_is_the_second_visit(travel: Run, remembering: dict[str, object]) -> None:
    tomorrow = Run("4-time-travel", travel.sessions, **remembering)
    assert tomorrow.stream("visit") == "visit number 2\n"
    assert "[wasm-kernel] The session goes on" in tomorrow.stream("visit", "stderr")
    assert tomorrow.stream("after-crash").splitlines() == ["the next square: 16", *THINGS]
