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
ORDERS = "5-orders"  # a folder with an analysis and its data; see test_pages.py
CELL_SECONDS = 300  # for a slow machine; the slowest cell takes about ten

SPEAK_ON_STDERR = {
    "crash",  # faulthandler's own last words
    "process",  # a refused command, in the words of a shell
}

Cell = Any


class Run:
    """One executed notebook, and the host folder with its sessions."""

    def __init__(self, name: str, sessions: Path, **environment: object) -> None:
        file = FOLDER / f"{name}.ipynb"
        self.notebook: Any = nbformat.read(file, as_version=4)  # type: ignore[no-untyped-call]
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

    def shown(self, cell_id: str) -> str:
        """All texts of the cell: its streams, its values as text, HTML and TeX, and its errors."""
        texts = [self.stream(cell_id), self.stream(cell_id, "stderr")]
        for output in self.outputs(cell_id):
            texts += [
                str(text) for mime, text in output.get("data", {}).items() if "image" not in mime
            ]
            texts += [f"{output.ename}: {output.evalue}"] if output.output_type == "error" else []
        return "\n".join(texts)


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


def test_cells_are_counted_and_no_output_is_noise_or_names_a_path(run: Run) -> None:
    counts = [cell.execution_count for cell in run.code]
    assert counts == list(range(1, len(counts) + 1))
    failed = {c.id for c in run.code if any(o.output_type == "error" for o in c.outputs)}
    meant = {cell.id for cell in run.code if "raises-exception" in cell.metadata.get("tags", [])}
    assert failed == meant
    text = json.dumps([_without_images(cell.outputs) for cell in run.code])
    places = (FOLDER.parent, Path.home(), Path(sys.prefix), Path(sys.base_prefix), run.sessions)
    for place in places:
        assert f"{place}/" not in text
        assert f'{place}"' not in text
    assert {cell.id for cell in run.code if run.stream(cell.id, "stderr")} <= SPEAK_ON_STDERR
    assert "Warning" not in json.dumps([_without_images(cell.outputs) for cell in run.code])


def _without_images(outputs: list[Any]) -> list[Any]:
    kept = []
    for output in outputs:
        data = {k: v for k, v in output.get("data", {}).items() if not k.startswith("image/")}
        kept.append({**output, "data": data})
    return kept


# What single cells show: other tests hold the claims one by one

THINGS = r"in the open transaction: True .*'Ada'.*double\(21\): 42.*read up to byte 5"
KEPT = r"readings: \[{}\].*notes.txt: calibrated on Monday.*and again on Tuesday"
STOPPED = r"{}: .*variables are as they were before this cell"
TOUR = {
    **dict.fromkeys(("load", "groupby", "sqlite", "statistics"), "</table>"),
    "fit": "LogisticRegression",
    "formula": r"= \\sqrt\{\\pi\}",
    "await": r"\['tea', 'coffee'\]",
    "score": r"accuracy on 45 unseen wines: (1\.0|0\.9)\d\n",
    "progress": "model_id",
}
LIMITS = {
    "loop": STOPPED.format("CellTimeout"),
    "memory": STOPPED.format("OutOfMemory"),
    "recursion": STOPPED.format("StackExhausted"),
    "exit": STOPPED.format("GuestExited"),
    "crash": STOPPED.format("GuestCrashed"),
    "after-loop": KEPT.format("20.5, 21.0, 19.8"),
    "after-memory": "text is defined: False\n" + KEPT.format("20.5, 21.0, 19.8, 20.1"),
    "after-recursion": KEPT.format("20.5, 21.0, 19.8, 20.1") + ".*down is defined: False",
    "after-exit": KEPT.format("20.5, 21.0, 19.8, 20.1, 20.3"),
}
FILES = {
    "empty": "here: /notebook\nbeside this notebook: True\nof this session: \\[\\]\n",
    "csv": r"150\.0",
    "pathlib": "reports/2024/01-january.txt 27 bytes",
    "sqlite": "rows in flowers.db: 150",
    "import": "/notebook/petals.py",
    "run": "petals.py runs as a script",
    "outside": r"(.* not there\n){6}",
    "link": "FileNotFoundError",
    "network": "the sandbox has no network",
    "process": "Bring the data in as a file",
}
TRAVEL = {
    "visit": "visit number 1",
    "mistake": "the sum of all other squares: 332833495",
    "undo": r"In\[3\] print\(.the sum of all other squares",
    "after-undo": f"the next square: 9\n{THINGS}",
    "crash": "GuestExited",
    "after-crash": f"the next square: 16\n{THINGS}",
    "states": "before the crash",
}


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        pytest.param("tour", TOUR, marks=pytest.mark.soak),
        ("limits", LIMITS),
        pytest.param("files", FILES, marks=pytest.mark.soak),
        ("travel", TRAVEL),
    ],
    ids=["tour", "limits", "files", "travel"],
)
def test_cells_show_what_the_notebook_says(
    request: pytest.FixtureRequest, name: str, texts: dict[str, str]
) -> None:
    run: Run = request.getfixturevalue(name)
    for cell_id, text in texts.items():
        assert re.search(text, run.shown(cell_id), re.DOTALL), cell_id


@pytest.mark.soak
def test_the_tour_draws(tour: Run) -> None:
    for cell_id in ("matplotlib", "seaborn", "digits"):
        (image,) = [o.data["image/png"] for o in tour.outputs(cell_id) if "data" in o]
        assert len(base64.b64decode(image)) > 10_000


@pytest.mark.soak
def test_files_lie_in_the_session_alone(files: Run) -> None:
    assert {path.stem for path in FOLDER.iterdir() if path.name[0] != "."} == {*NAMES, ORDERS}
    (workspace,) = files.sessions.iterdir()
    made = {"all.zip", "flowers.csv", "flowers.db", "petals.py", "reports", "way-out"}
    assert made <= {path.name for path in workspace.iterdir()}


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
    assert "the next square: 16" in tomorrow.stream("after-crash")
