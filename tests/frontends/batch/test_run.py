"""Runs of notebooks: the verdicts, the files that are written, the links that are not followed."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from zipfile import ZipFile

import psutil
import pytest

from tests.frontends.batch.conftest import Making, Running, code, executed
from tests.guests.python.packages.conftest import fork_pip, index_in
from wasm_kernel import grade_notebooks, run_notebooks
from wasm_kernel.errors import PolicyError
from wasm_kernel.frontends.batch import notebook_run, results
from wasm_kernel.frontends.batch.batch_session import BatchSession
from wasm_kernel.frontends.batch.notebooks import METADATA
from wasm_kernel.frontends.batch.outcome import BatchError, Budgets, plain, verdict_of
from wasm_kernel.frontends.batch.reporting import Progress
from wasm_kernel.frontends.cli.main import main
from wasm_kernel.service.cleaning import WalledCleaner
from wasm_kernel.service.named_functions import named_functions
from wasm_kernel.service.program_home import own_workers
from wasm_kernel.sessions.root import SessionsRoot

MIB = 1024 * 1024


def test_notebooks_call_functions_of_the_program_and_a_replay_calls_none(
    make: Making, run: Running, tmp_path: Path
) -> None:
    make("a.ipynb", "in_stock('tea')")
    make("b.ipynb", "in_stock('milk')")
    make("c.ipynb", "in_stock('tea') + 1", language="javascript")
    called: list[str] = []
    for place in (tmp_path / "kept", tmp_path / "kept" / "a"):  # folders of the user's
        (place / "drafts").mkdir(parents=True)
        (place / "thesis.txt").touch()
        (place / "draft-1").touch()

    def in_stock(what: str) -> int:
        called.append(what)
        return {"tea": 3}[what]

    for options in ({"record": tmp_path / "kept"}, {"replay": tmp_path / "kept"}):
        outcomes = run(functions=[in_stock], **options)
        assert [each.ok for each in outcomes.values()] == [True, False, True]
        assert "KeyError" in outcomes["b.ipynb"].reason
        shown = [executed(tmp_path / "out" / name)[0][1] for name in ("a.ipynb", "c.ipynb")]
        assert shown == ["3", "4"]
    assert sorted(called) == ["milk", "tea", "tea"]
    for name in ("draft-1", "thesis.txt", "drafts"):
        assert len([*(tmp_path / "kept").rglob(name)]) == 2


def test_each_notebook_gets_its_own_verdict(make: Making, run: Running, tmp_path: Path) -> None:
    good = (
        code("day = 'mon'\nn = 1", "parameters"),
        code("1/0", "raises-exception"),
        code("1/0", "skip-execution"),
        code("%%limit seconds=0.1\nwhile True: pass", "raises-exception"),
        "import os\nos.listdir('/notebook')",
        "(day, n, open('/app/extra.csv').read())",
        code("%fork", "raises-exception"),
    )
    make("ok.ipynb", *good)
    make("loud.ipynb", "print('x' * 3_000_000)")
    make("full.ipynb", "open('/app/big', 'wb').write(bytes(9_000_000))")
    make("forged.ipynb", "class OutOfFuel(Exception): ...\nraise OutOfFuel")
    make("leaver.ipynb", "import os\nos.kill(os.getpid(), 9)", "1")
    make("other.ipynb", "x <- 3", language="R")
    make("script.ipynb", "const twice = (x) => x * 2", "twice(21)", language="javascript")
    (tmp_path / "in" / "none.ipynb").write_text("{}")
    make(long := f"{'n' * 249}.ipynb", "1")  # formerly, it ended the run of all notebooks
    (tmp_path / "extra.csv").write_text("7")
    budgets = Budgets(output_bytes=2 * MIB, disk_bytes=8 * MIB)
    outcomes = run(budgets=budgets, inputs=[tmp_path / "extra.csv"])
    verdicts = {name: outcome.verdict for name, outcome in outcomes.items()}
    assert verdicts == {
        "ok.ipynb": "ok",
        "loud.ipynb": "output-limit",
        "full.ipynb": "disk-full",
        "forged.ipynb": "error",
        "leaver.ipynb": "error",
        "other.ipynb": "error",
        "script.ipynb": "ok",
        "none.ipynb": "error",
        long: "error",
    }
    assert "in R" in outcomes["other.ipynb"].reason
    assert outcomes["loud.ipynb"].hint == "Raise --output to see more."
    assert "Raise --disk or" in outcomes["full.ipynb"].hint
    assert "\n----> 2 raise OutOfFuel" in outcomes["forged.ipynb"].traceback
    cells = executed(tmp_path / "out" / "ok.ipynb")
    assert cells[1][1] == "ZeroDivisionError" and cells[2][1] == ""
    assert cells[3][1] == "CellTimeout" and "ok.ipynb" in cells[4][1]
    assert cells[5][1] == "('mon', 1, '7')"
    assert "switched off" in cells[6][1]  # a session of its own would remain
    assert executed(tmp_path / "out" / "script.ipynb")[1][1] == "42"


def test_the_refusal_of_a_request_is_told_once(make: Making, run: Running) -> None:
    make("a.ipynb", "import urllib.request\nurllib.request.urlopen('https://a.org')")
    outcome = run(network=["https://b.org"])["a.ipynb"]
    assert "no rule of this sandbox's network allows it" in outcome.reason
    assert not outcome.hint


def test_a_cell_has_its_time_and_what_follows_is_not_run(
    make: Making, run: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make("deep/late.ipynb", "while True: pass", "print('never')")
    make("deaf.ipynb", "while True:\n try:\n  while True: pass\n except BaseException: pass")
    make("other.ipynb", "x <- 3", language="R")
    monkeypatch.chdir(tmp_path)
    outcomes = run(budgets=Budgets(cell_seconds=0.5), private_root="kept")
    late = outcomes["deep/late.ipynb"]
    assert outcomes["deaf.ipynb"].verdict == "timeout"
    assert (tmp_path / "kept").exists() and not (tmp_path / "in/deep/kept").exists()
    assert (late.verdict, late.cell) == ("timeout", 1) and "0.5 seconds" in late.reason
    assert late.hint == "Raise --cell-seconds to allow more."
    written = json.loads((tmp_path / "out" / "deep" / "late.ipynb").read_text())
    assert written["metadata"][METADATA]["verdict"] == "timeout"
    assert str(tmp_path) not in json.dumps(written)
    assert executed(tmp_path / "out" / "deep" / "late.ipynb")[1] == ("print('never')", "")


def test_results_of_a_notebook_lie_beside_the_executed_one(
    make: Making, run: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rates.csv").write_text("1")
    (tmp_path / "changed.csv").write_text("1")
    cells = [
        "import os; os.makedirs('plots'); names = 'sum.csv', 'plots/p.png', 'changed.csv'",
        "for name in names: open(name, 'w').write('2')",
        "%session_publish sum.csv",
        "open('/app/test_x.txt', 'w').write('>>> 1'); os.symlink('sum.csv', '/app/link.csv')",
    ]
    make("a.ipynb", *cells)
    inputs = [tmp_path / "rates.csv", tmp_path / "changed.csv"]
    outcome = run(inputs=inputs)["a.ipynb"]
    *data, others = outcome.files
    assert data == ["a.files/changed.csv", "a.files/plots/p.png", "a.files/sum.csv"]
    assert {(tmp_path / "out" / each).read_text() for each in data} == {"2"}
    with ZipFile(tmp_path / "out" / others) as archive:
        assert (archive.namelist(), archive.read("test_x.txt")) == (["test_x.txt"], b">>> 1")
    assert (outcome.verdict, outcome.note) == ("ok", "others.zip has test_x.txt")
    session = BatchSession(SessionsRoot(tmp_path / "sessions"), tmp_path / "out" / "a.ipynb")
    assert not session.exists
    outputs = json.loads((tmp_path / "out" / "a.ipynb").read_text())["cells"][2]["outputs"]
    assert "a.files/sum.csv" in json.dumps(outputs)
    assert not (tmp_path / "in" / "a.files").exists()
    assert "stderr" not in (tmp_path / "out" / "a.ipynb").read_text()

    (tmp_path / "out" / "a.files" / "mine.csv").write_text("mine")
    monkeypatch.setattr(results, "RESULTS_BYTES", 1000)
    odd = "open('a\\\\..\\\\x.pkl', 'w').close()"  # leads out of its folder where a \\ parts names
    make("odd.ipynb", odd)
    make("a.ipynb", "open('big.csv', 'w').write('3' * 1001); open('few.csv', 'w').write('3')")
    outcomes = run()
    assert outcomes["odd.ipynb"].left == ("a\\..\\x.pkl",) and not outcomes["odd.ipynb"].files
    outcome = outcomes["a.ipynb"]
    assert outcome.files == ("a.files/few.csv",) and "big.csv (the results of" in outcome.note
    assert session.id in outcome.note and (session.path / "big.csv").exists()
    assert outcome.left == ("big.csv",) and not outcome.is_complete
    outcome = run(budgets=Budgets(disk_bytes=2 * MIB))["a.ipynb"]
    assert outcome.files == ("a.files/big.csv", "a.files/few.csv") and not session.exists
    found = {
        str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out" / "a.files").rglob("*")
    }
    assert found == {*outcome.files, "a.files/mine.csv"}


def test_cells_of_each_notebook_may_write_into_its_own_folder(
    make: Making, run: Running, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        make(f"{name}/{name}.ipynb", f"open('sum.csv', 'w').write('{name}'); open('x.py', 'w')")
    assert all(each.ok for each in run(folder="write").values())
    for name in ("a", "b"):
        folder = tmp_path / "in" / name
        assert {each.name for each in folder.iterdir()} == {f"{name}.ipynb", "sum.csv"}
        assert (folder / "sum.csv").read_text() == name


def test_requirements_are_installed_once(make: Making, run: Running, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        fork_pip(patch)
        add = index_in(tmp_path / "index", patch)
        add("one")
        file = tmp_path / "requirements.txt"
        file.write_text("one  # of ours\n-r more.txt\n")
        (tmp_path / "more.txt").write_text("one>=1\n")
        make("a.ipynb", "import one\none.version")
        make("b.ipynb", "%pip uninstall one\n%pip install one")
        make("script.ipynb", "1 + 1", language="javascript")
        outcomes = run(requirements=[file])
        assert {each.verdict for each in outcomes.values()} == {"ok"}, outcomes
        assert executed(tmp_path / "out" / "a.ipynb")[0][1] == "'1.0'"
        assert not any((tmp_path / "sessions").glob("*-*"))
        for text, why in (("two", "two"), ("./x.whl", "line 1"), ("-r gone.txt", "gone.txt")):
            file.write_text(text)
            with pytest.raises(BatchError, match=f"{why}.*Nothing was run"):
                run(requirements=[file])


def test_parameters_reach_the_notebook_and_an_unknown_one_runs_nothing(
    make: Making, run: Running, tmp_path: Path
) -> None:
    make("report.ipynb", code("day = 'mon'", "parameters"), "print('ran on', day)")
    with pytest.raises(BatchError, match="no parameter dya; it has day"):
        run(parameters={"dya": "tue"})
    assert not (tmp_path / "out" / "report.ipynb").exists()
    heard: list[int] = []
    hooks = {"on_cell_executed": lambda cell, cell_index, execute_reply: heard.append(cell_index)}

    async def from_a_notebook() -> bool:
        return run(parameters={"day": "tue"}, hooks=hooks)["report.ipynb"].ok

    assert asyncio.run(from_a_notebook())
    assert heard == [0, 1, 2]
    assert executed(tmp_path / "out" / "report.ipynb")[-1][1] == "ran on tue\n"


def test_wrong_arguments_are_refused_before_any_notebook_and_a_hook_that_fails_is_named(
    make: Making, run: Running, tmp_path: Path
) -> None:
    """Formerly, each notebook failed, as the runner did "in a way that it never should"."""
    make("report.ipynb", "1")
    wrong: dict[str, dict[str, Any]] = {
        "no hook on_cell; there are on_cell_start": {"hooks": {"on_cell": print}},
        "The hook on_cell_start is not a function": {"hooks": {"on_cell_start": 5}},
        "budgets is of type Budgets, not 5": {"budgets": 5},
        "folder is one of none, read, write, not 'all'": {"folder": "all"},
        "ignored names images, .* not 'pictures'": {"ignored": ["pictures"]},
        "network is a list, not 'https://a.org'": {"network": "https://a.org"},
    }
    for words, options in wrong.items():
        with pytest.raises(BatchError, match=words):
            run(**options)
    with pytest.raises(ValueError, match="a path is an empty text"):
        run_notebooks([tmp_path / "in"], tmp_path / "executed", record="")
    with pytest.raises(BatchError, match="out is an empty text"):
        run_notebooks([tmp_path / "in"], "")
    lost = run(hooks={"on_cell_start": lambda **_: 1 / 0})["report.ipynb"]
    assert lost.reason.startswith("The hook on_cell_start failed (ZeroDivisionError: division")


@pytest.mark.parametrize("wrong", ["./a.ipynb", b"a.ipynb", Path("a.ipynb"), 5])
def test_one_path_is_no_list_of_paths(make: Making, tmp_path: Path, wrong: Any) -> None:
    """Formerly, each letter of the path was a path: `/` meant all notebooks of the machine."""
    one, out = make("a.ipynb", "1"), tmp_path / "out"
    calls: tuple[Callable[[], object], ...] = (
        lambda: run_notebooks(wrong, out),
        lambda: run_notebooks([one], out, inputs=wrong),
        lambda: run_notebooks([one], out, requirements=wrong),
        lambda: grade_notebooks(wrong, [one], out),
        lambda: grade_notebooks([], wrong, out),
    )
    for call in calls:
        with pytest.raises(BatchError, match=r"is a list.*Nothing was run"):
            call()
    with pytest.raises(BatchError, match="jobs is a whole number above 0, not '2'"):
        run_notebooks([one], out, jobs="2")  # type: ignore[arg-type]
    assert not out.exists()


def test_a_kernel_that_does_not_start_says_why_and_what_a_killed_run_left_goes(
    make: Making, run: Running, tmp_path: Path
) -> None:
    left = Path(tempfile.mkdtemp(prefix="wasm-kernel-run-"))
    os.utime(left, (0, 0))
    make("a.ipynb", code("1", "raises-exception"))
    (tmp_path / "sessions").mkdir()
    lost = run(mounts=[f"{tmp_path / 'sessions'}:/data"])["a.ipynb"]
    assert (lost.verdict, lost.cells) == ("kernel-lost", 0)
    assert "did not start: mounts /data can't be a root of sessions" in lost.reason
    assert not left.exists()


def test_worker_that_ends_by_itself_is_not_the_notebooks_fault(make: Making, run: Running) -> None:
    over = threading.Event()

    def kill() -> None:
        while not over.wait(0.3):  # a call that a worker has not begun goes to the next one
            for each in psutil.Process(own_workers().fork_server.process).children():
                each.kill()

    def begin(cell_index: int, **_: object) -> None:
        if cell_index == 1:
            threading.Thread(target=kill).start()

    make("a.ipynb", "x = 1", "import time\ntime.sleep(600)", "x")
    lost = run(hooks={"on_cell_complete": begin})["a.ipynb"]
    over.set()
    assert (lost.verdict, lost.cell) == ("kernel-lost", 2) and "has ended" in lost.reason
    make("a.ipynb", "x = 1", "x")
    assert run(resume=True)["a.ipynb"].kept == 1


def test_a_notebook_whose_outputs_can_not_be_cleaned_any_more_says_so(
    make: Making, run: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[WalledCleaner] = []

    def noted(*args: Any) -> WalledCleaner:
        made.append(WalledCleaner(*args))
        return made[0]

    monkeypatch.setattr(notebook_run, "WalledCleaner", noted)
    make("a.ipynb", "'first'", "'second'", "'third'")
    lost = run(hooks={"on_cell_executed": lambda **_: made[0].process.kill()})["a.ipynb"]
    assert (lost.verdict, lost.cell) == ("kernel-lost", 2)
    assert "Outputs up to now are kept" in lost.reason


def len_of(text: str) -> int:
    return len(text)


def test_options_that_clusters_lack_are_refused(make: Making, run: Running, tmp_path: Path) -> None:
    make("a.ipynb", "1")
    lacking: list[dict[str, Any]] = [{"hooks": {"on_cell_start": print}}, {"functions": [len_of]}]
    for options in (*lacking, {"jobs": 2}, {"folder": "write"}):
        with pytest.raises(BatchError, match="On a cluster there is no"):
            run(cluster="127.0.0.1:1", **{"jobs": None, **options})
    with pytest.raises(BatchError, match="at least 1 worker, not 0"):
        run(cluster=0, jobs=None)
    with pytest.raises(BatchError, match="none is named"):
        run(shared=tmp_path)


def test_the_users_settings_of_kernels_hold_and_one_that_cannot_be_read_runs_nothing(
    make: Making, run: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = "from IPython.display import HTML\nHTML('<b onclick=\"f()\">bold</b>')"
    make("a.ipynb", page, "import os\nos.environ['DAY']")
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(tmp_path))
    config = tmp_path / "jupyter_wasm_kernel_config.py"
    for mode in ("safe", "trusted"):
        lines = f"c.WasmKernel.outputs = {mode!r}\nc.WasmKernel.env = {{'DAY': 'mon'}}\n"
        config.write_text(lines)
        assert run()["a.ipynb"].ok
        written = (tmp_path / "out" / "a.ipynb").read_text()
        assert written.count("bold") == 2
        assert written.count("onclick") == (1 if mode == "safe" else 2)
        assert executed(tmp_path / "out" / "a.ipynb")[1][1] == "'mon'"
    for wrong in ("c.WasmKernel.cell_timout = 1", "c.WasmKernel.cell_timeout = ("):
        config.write_text(wrong)
        with pytest.raises(BatchError, match="Nothing was run"):
            run()


def test_fuel_is_counted_and_a_notebook_has_its_own_time(
    warm_metered: None, make: Making, run: Running
) -> None:
    make("hungry.ipynb", "for i in range(10**9): pass")
    assert run(budgets=Budgets(fuel=10**9))["hungry.ipynb"].verdict == "out-of-fuel"
    outcome = run(budgets=Budgets(notebook_seconds=0.5))["hungry.ipynb"]
    assert outcome.verdict == "timeout" and "notebook" in outcome.reason


def test_a_reason_holds_nothing_that_a_terminal_obeys() -> None:
    assert plain("a\x1b[31mb\x1b]0;x\x07\n\u202ec") == "ab ]0;x c"
    assert len(plain("x" * 10_000)) == 300


@pytest.mark.parametrize(
    ("limits", "ename", "verdict"),
    [
        ({"memory_bytes"}, "OutOfMemory", "out-of-memory"),
        ({"workspace_files", "stdout_bytes"}, "OSError", "disk-full"),
        ({"display_count"}, "ValueError", "output-limit"),
        (set(), "MemoryError", "out-of-memory"),
        (set(), "CellTimeout", "error"),
    ],
)
def test_the_verdict_is_what_the_kernel_says(limits: set[str], ename: str, verdict: str) -> None:
    assert verdict_of(limits, ename) == verdict


@pytest.mark.parametrize("wrong", [{"cell_seconds": 0}, {"fuel": 1.5}, {"notebook_seconds": True}])
def test_a_budget_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(PolicyError, match=f"{next(iter(wrong))} must be a .* above 0, not"):
        Budgets(**wrong)


def test_a_large_notebook_is_not_written_after_each_short_cell(
    make: Making, run: Running, tmp_path: Path
) -> None:
    (large := code("x" * 2**22)).update(cell_type="raw")
    for name in ("outputs", "execution_count"):
        del large[name]
    make("large.ipynb", large, *["1"] * 30)
    written = set()

    class Watching(Progress):
        def cell_ended(self, name: str, done: int, cells: int) -> None:
            written.add((tmp_path / "out" / name).stat().st_ino)

    run(progress=Watching())
    assert len(written) < 20
    assert executed(tmp_path / "out" / "large.ipynb") == [("1", "1")] * 30


def test_the_command_says_what_it_can_not_begin_with(
    make: Making, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = ["run", str(make("a.ipynb", "1")), "-o", str(tmp_path / "out")]
    (empty := tmp_path / "empty").mkdir()
    assert main(["run", str(tmp_path / "gone.ipynb"), *named[2:]]) == 2
    assert main([*named, "--input", str(tmp_path / "gone")]) == 2
    assert main([*named, "--cell-seconds=-3"]) == 2
    assert main(["grade", *named[1:], "--tests", str(tmp_path / "gone.py")]) == 2
    assert capsys.readouterr().err.count("Nothing was run") == 3
    for line, why in (
        ([*named, "--mount", "x"], "--mount takes HOST:GUEST"),
        ([*named, "--mount", "/nowhere:/data"], "--mount names a host folder for /data that"),
        ([*named, "--sessions", named[1]], "for sessions can't be made (Not a dir"),
        ([*named[:3], "/proc/nowhere"], "/proc/nowhere can't be written to (No such file"),
        (["run", "", *named[2:]], "A notebook's name is empty"),
        (["run", str(empty), *named[2:]], f"There is no notebook in the folder {empty}."),
    ):
        assert main(line) == 2
        said = capsys.readouterr().err
        assert why in said and "Nothing was run." in said
    assert main([*named, "--memory", "100M"]) == 2
    assert "--memory must be" in capsys.readouterr().err
    for wrong in (["--jobs=-1"], ["--jobs=0"], ["--test-seconds", "nan"]):
        (tmp_path / "tests.py").write_text("")
        assert main(["grade", *named[1:], "--tests", str(tmp_path / "tests.py"), *wrong]) == 2
        assert "Nothing was run." in capsys.readouterr().err
    tests = ["--tests", str(tmp_path / "tests.py")]
    for line, why in (
        ([*named, "--memory", "much"], "--memory: 'much' is not a size such as 512M"),
        # formerly, an empty path was the current folder, and the default folder of sessions
        ([*named, "--record", ""], "--record: a path is an empty text; name one, such as '.'"),
        (["grade", named[1], *tests, "-o", ""], "-o/--out: a path is an empty text"),
        (["sessions", "prune", "--older-than", "1m", "--root", ""], "--root: a path is an empty"),
        (["install", "--prefix", ""], "--prefix: a path is an empty text"),
    ):
        with pytest.raises(SystemExit):
            main(line)
        assert why in capsys.readouterr().err
    for functions, words in _wrong_functions(tmp_path / "tools.py"):
        assert main([*named, "--functions", functions]) == 2
        told = capsys.readouterr()
        assert words in told.err
        assert told.out == ""
    assert not (tmp_path / "out").exists()


def _wrong_functions(file: Path) -> list[tuple[str, str]]:
    file.write_text("print('hello')\ndef ok(n: int): ...\ndef print(): ...\n")
    return [
        (f"{file}.py", "can't be imported (No such file or directory)"),
        ("nowhere.tools", "can't be imported (No module named 'nowhere')"),
        (f"{file}:ok,missing", "tools has no function 'missing'"),
        (str(file), "'print' would hide Python's own"),
        (f"{file}:__doc__", "is callable, not None"),
        ("wasm_kernel.frontends.e2b", "has no public function"),
    ]


def test_a_file_of_functions_takes_no_other_modules_place_and_runs_once(tmp_path: Path) -> None:
    files = [tmp_path / place / "json.py" for place in ("first", "second")]
    for number, file in enumerate(files):
        file.parent.mkdir()
        file.write_text(
            "from __future__ import annotations\nimport dataclasses\n"
            "Mark = int\n@dataclasses.dataclass\nclass Order:\n    mark: Mark\n"
            f"def take{number}(order: Order): ...\ndef other(): ...\n"
        )
    words = [f"{files[0]}:take0", f"{files[1]}:take1", f"{files[0]}:other"]
    first, second, other = (each.__globals__ for each in cast(Any, named_functions(words)))
    assert first is other
    assert second["__file__"] == str(files[1])
    assert sys.modules["json"] is json


NEEDS = {
    "junitparser": ("--junit", "j.xml"),
    "papermill": ("-p", "n", "1"),
    "yaml": ("-f", "values.yaml"),
    "distributed": ("--local-cluster", "1"),
    "cryptography": ("--local-cluster", "1"),
}


@pytest.mark.parametrize("module", NEEDS)
def test_packages_that_an_option_needs_are_looked_for_before_anything_is_run(
    make: Making,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    module: str,
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    named = [str(make("a.ipynb", code("n = 1", "parameters"))), "-o", str(tmp_path / "out")]
    assert main(["run", *named, *NEEDS[module]]) == 2
    extra = "distributed" if "--local-cluster" in NEEDS[module] else "batch"
    said = capsys.readouterr().err
    assert f"needs {module}, which is not installed. Nothing was run." in said
    assert f"'wasm-kernel[{extra}]'" in said
    if module == "junitparser":
        (tmp_path / "tests.py").write_text("")
        graded = ["grade", *named, "--tests", str(tmp_path / "tests.py"), *NEEDS[module]]
        assert main(graded) == 2
        assert f"needs {module}" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_report_must_have_a_place_before_anything_is_run(
    make: Making, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    book = make("a.ipynb", "1")
    (tmp_path / "tests.py").write_text("")
    (tmp_path / "out" / "grades.csv").mkdir(parents=True)
    named = [str(book), "-o", str(tmp_path / "out")]
    for more in (["--junit", str(book / "j.xml")], ["--html", str(book.parent)]):
        assert main(["run", *named, *more]) == 2
    assert main(["grade", *named, "--tests", str(tmp_path / "tests.py")]) == 2
    assert capsys.readouterr().err.count("can't be written (") == 3
    assert not (tmp_path / "out" / "a.ipynb").exists()


DETERMINISTIC = (
    "import datetime, os, random, sys, time, uuid\nprint(random.random(), uuid.uuid4())",
    "print(os.urandom(4), datetime.datetime.now(), time.monotonic())",
    "import numpy as np, pandas as pd\npd.DataFrame({'a': np.random.rand(2)})",
    "np.random.default_rng().random(2)",
    "import sqlite3\nsqlite3.connect(':memory:').execute('select random()').fetchall()",
    "for name in 'zaqb': open(f'/app/{name}', 'w').close()\nos.listdir('/app')",
    "began = time.time()\ntime.sleep(3600)\nprint(time.time() - began > 3600, object())",
    "import matplotlib.pyplot as plt\nplt.plot(np.random.rand(3));",
    "%undo",
    "print(random.random())\nprint('said', file=sys.stderr)\nprint(uuid.uuid1())\n1/0",
)


def test_two_runs_are_alike(make: Making, run: Running, tmp_path: Path) -> None:
    make("a.ipynb", *DETERMINISTIC)
    out = tmp_path / "out" / "a.ipynb"
    found = []
    for _ in range(2):
        assert run(deterministic=True)["a.ipynb"].cell == len(DETERMINISTIC)
        found.append(out.read_bytes())
    assert found[0] == found[1]
    cells = executed(out)
    assert "2000-01-01 00:00:00" in cells[1][1]
    assert cells[5][1] == "['a', 'b', 'q', 'z']"
    assert cells[6][1].startswith("True")
