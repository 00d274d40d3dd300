"""Features that people expect of a Python kernel: magics, debugger, figures, tables, tracebacks."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.real_kernel import RealKernel

PNG = b"\x89PNG\r\n\x1a\n"
PATH = "/home/jo/secret/report.ipynb"
ASK = "import os; os.environ.get('JPY_SESSION_NAME')"
PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nNone"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKernel]:
    with RealKernel(cwd=tmp_path_factory.mktemp("notebook"), notebook=Path(PATH)) as notebook:
        yield notebook


@pytest.fixture
def nb(shared: RealKernel) -> RealKernel:
    """One kernel for all tests; each begins without variables."""
    shared.run("%reset -f\nimport os; os.chdir('/app')")
    return shared


def size_of(png: str) -> tuple[int, int]:
    """The width and height of a PNG in pixels."""
    data = base64.b64decode(png)
    assert data.startswith(PNG)
    width, height = struct.unpack(">II", data[16:24])
    return width, height


# Magics: files, history, IPython's own


def test_ipythons_own_magics_for_files_and_history_work(nb: RealKernel) -> None:
    for code, part in MAGICS.items():
        shown = nb.run(code)
        assert (shown.reply["status"], shown.traceback) == ("ok", ""), code
        assert part in "\n".join([shown.stdout, *shown.data("text/plain"), shown.page]), code
    nb.run("%%writefile tool.py\ndef double(n):\n    return n * 2\nvalue = double(21)")
    assert nb.run("%run tool.py\nvalue").data("text/plain") == ["42"]
    [payload] = nb.run("%load tool.py").reply["payload"]
    assert payload["source"] == "set_next_input"
    assert payload["replace"] is True
    assert payload["text"].startswith("# %load tool.py\ndef double")
    assert nb.run("%%writefile -a tool.py\nmore = 1").stdout == "Appending to tool.py\n"
    assert nb.run("%cat tool.py").stdout.endswith("more = 1\n")
    first = nb.run("print('one')").reply["execution_count"]
    assert nb.run(f"%history {first}").stdout == "print('one')\n"
    [payload] = nb.run(f"%recall {first}").reply["payload"]
    assert payload == {"source": "set_next_input", "text": "print('one')", "replace": False}
    assert nb.run(f"%rerun {first}").stdout.endswith("one\n")
    nb.run(f"%macro -q again {first}")
    assert nb.run("again").stdout == "one\n"
    assert "were written to file `out.py`" in nb.run(f"%save -f out.py {first}").stdout


QUIET = (
    "%lsmagic", "%magic", "%quickref", "%colors nocolor\n%colors neutral", "%config", "%alias",
    "%config InlineBackend", "%config IPCompleter.greedy", "%pprint\n%pprint", "%autoawait",
    "%doctest_mode\n%doctest_mode", "%automagic\n%automagic", "%logstart log.txt\n%logstop",
    "%dirs", "%bookmark -l", "%rehashx", "%code_wrap", "%load_ext storemagic", "%psearch o*",
    "%gui", "%matplotlib --list", "%xdel nonesuch", "%reset_selective -f nonesuch", "%page os",
)  # fmt: skip
INTERACTIVITY = "%config InteractiveShell.ast_node_interactivity = "
MAGICS = dict.fromkeys(QUIET, "") | {
    "%env GREETING=hello": "env: GREETING=hello\n",
    "%env GREETING": "'hello'",
    "%set_env TWICE {1 + 1}": "env: TWICE=2\n",
    "os.environ['TWICE']": "'2'",
    "apple = 1; pear = 'x'\n%who_ls": "['apple', 'os', 'pear']",
    "%who int": "apple",
    "%whos": "pear       str       x",
    "%prun sum(range(10))": "function calls",
    "%time 40 + 2": "Wall time",
    "%timeit -n 2 -r 2 sum(range(9))": "per loop",
    "%%time\nx = 1": "CPU times",
    "%precision 2\n3.14159": "3.14",
    "%precision": "",
    f"{INTERACTIVITY}'all'": "",
    "1\n2": "1\n2",
    f"{INTERACTIVITY}'last_expr'": "",
}


# Help


def test_question_marks_and_tracebacks_show_the_source(nb: RealKernel) -> None:
    nb.run("def area(a, b=2):\n    'How large.'\n    return a * b")
    page = nb.run("area?").page
    assert "area(a, b=2)" in page
    assert "How large." in page
    assert "return a * b" in nb.run("area??").page
    assert "text/html" not in str(nb.run("area?").reply["payload"])  # as under ipykernel
    assert "area" in nb.run("are*?").page
    assert "not found" in nb.run("nonesuch?").stdout
    assert "def area" in nb.run("%psource area").page
    defined = nb.run("def earlier():\n    return 1 / 0").reply["execution_count"]
    text = nb.run("earlier()").traceback
    assert f"Cell In[{defined}], line 2, in earlier()" in text
    assert "----> 2     return 1 / 0" in text


# Debugging


def test_debuggers_walk_frames_go_on_or_end_at_an_interrupt(nb: RealKernel) -> None:
    nb.run("def inner(n):\n    return 1 / n\ndef outer():\n    m = 5\n    return inner(0)")
    assert "ZeroDivisionError" in nb.run("outer()").traceback
    shown = nb.run("%debug", ["p n", "up", "p m", "ll", "q"])
    assert shown.asked == ["ipdb> "] * 5
    assert "\n0\n" in "\n" + shown.stdout
    assert "\n5\n" in shown.stdout
    assert shown.stdout.count("return inner(0)") >= 2
    assert shown.reply["status"] == "ok"
    nb.run("def work():\n    z = 3\n    breakpoint()\n    return z")
    shown = nb.run("work()", ["p z + 1", "n", "z = 40", "c"])
    assert "4\n" in shown.stdout
    assert shown.data("text/plain") == ["40"]
    for code in ("breakpoint()", "import pdb; pdb.set_trace()", "%debug 1 + 1"):
        assert len(nb.run(f"{code}\nafter = 1", ["p 1"], interrupt=True).asked) == 2, code
        assert nb.run("40 + 2").data("text/plain") == ["42"]


# Tracebacks and warnings


def test_a_warning_is_shown_once_and_calls_that_can_not_work_are_named(nb: RealKernel) -> None:
    cell = "import warnings\nfor _ in range(3): warnings.warn('careful')"
    assert nb.run(cell).stderr.count("UserWarning: careful") == 1
    assert nb.run("import logging; logging.error('oh')").stderr == "ERROR:root:oh\n"
    for code, sentence in REFUSED.items():
        assert sentence in nb.run(code).stderr, code


# Input


def test_input_getpass_and_help_ask(nb: RealKernel) -> None:
    shown = nb.run("import getpass\ninput('name? '), getpass.getpass()", ["Jo", "secret"])
    assert shown.asked == ["name? ", "Password: "]
    assert shown.data("text/plain") == ["('Jo', 'secret')"]
    shown = nb.run("help()", ["len", "q"])
    assert shown.asked == ["help> ", "help> "]
    assert "len(obj, /)" in shown.stdout


# Displays, figures, tables


@pytest.fixture
def figures(nb: RealKernel) -> Iterator[RealKernel]:
    """Gives the settings of figures their first values after the test."""
    yield nb
    nb.run(
        "%config InlineBackend.figure_formats = ['png']\n"
        "%config InlineBackend.print_figure_kwargs = {'bbox_inches': 'tight'}\n"
        "%config InlineBackend.close_figures = True\n"
        "%config InlineBackend.rc = {}\n"
        "import matplotlib.pyplot as plt\nplt.rcdefaults(); plt.close('all')\n%matplotlib inline"
    )


def test_figures_take_the_formats_of_the_inline_backend(figures: RealKernel) -> None:
    plain = size_of(figures.run(PLOT).data("image/png")[0])
    figures.run("%config InlineBackend.figure_format = 'retina'")
    retina = figures.run(PLOT)
    wide, high = size_of(retina.data("image/png")[0])
    assert wide / plain[0] == pytest.approx(2, rel=0.05)
    assert retina.of("display_data")[0]["metadata"]["image/png"] == {
        "width": wide // 2,
        "height": high // 2,
    }
    figures.run("%config InlineBackend.figure_formats = ['svg']")
    vector = figures.run(PLOT)
    assert "<svg" in vector.data("image/svg+xml")[0]
    assert not vector.data("image/png")


def test_figures_take_inline_options_and_stay_inline(figures: RealKernel) -> None:
    figures.run("%config InlineBackend.print_figure_kwargs = {'bbox_inches': None, 'dpi': 50}")
    assert size_of(figures.run(PLOT).data("image/png")[0]) == (320, 240)
    figures.run("%config InlineBackend.rc = {'figure.figsize': (2, 1)}\n%matplotlib inline")
    assert size_of(figures.run(PLOT).data("image/png")[0]) == (100, 50)
    for magic in ("%matplotlib", "%pylab"):
        assert figures.run(magic).reply["status"] == "ok", magic
        assert len(figures.run(PLOT).data("image/png")) == 1, magic
    name = "import matplotlib, os\n(matplotlib.get_backend(), os.environ['MPLBACKEND'])[1]"
    backend = ["'module://matplotlib_inline.backend_inline'"]  # as libraries look for it
    assert figures.run(name).data("text/plain") == backend
    for asked in ("%matplotlib qt", "matplotlib.use('nbagg')", "plt.switch_backend('TkAgg')"):
        told = figures.run(f"import matplotlib\n{asked}").stderr
        assert "Figures are drawn inline" in told
        assert len(figures.run(PLOT).data("image/png")) == 1, asked


# What a sandbox can't do


REFUSED = {
    "%%perl\nprint 1": "has no processes",
    "%%script perl\nprint 1": "bash, sh and python alone",
    "!wget http://example.org": "Bring the data in as a file",
    "!nvidia-smi": "no graphics processor",
    "%conda install x": "%pip install",
    "%edit": "no editor",
    "%man ls": "help()",
    "%pastebin 1": "no network",
    "%subshell": "no subshells",
    "%connect_info": "outside the sandbox",
}


# The kernel itself


def test_monitors_hear_of_the_guest_and_debuggers_of_a_refusal(nb: RealKernel) -> None:
    nb.run("big = bytearray(100_000_000)")
    told = nb.control("usage_request", {})
    assert told["guest_memory"] > 100_000_000
    assert told["guest_memory_limit"] == 2048 * 2**20
    assert told["kernel_memory"] > 100_000_000
    nb.run("for i in range(2_000_000): pass")
    assert nb.control("usage_request", {})["kernel_cpu"] > 0
    assert told["host_virtual_memory"]["total"] > 0
    assert {"hostname", "pid", "kernel_cpu", "cpu_count", "fuel_consumed"} <= set(told)
    request = {"seq": 7, "type": "request", "command": "initialize"}
    told = nb.control("debug_request", request)
    assert (told["type"], told["request_seq"], told["success"]) == ("response", 7, False)
    assert told["command"] == "initialize"
    info = nb.control("kernel_info_request", {})
    assert info["debugger"] is False
    assert "debugger" not in info["supported_features"]


def test_the_notebooks_path_is_told_to_cells_if_wanted(nb: RealKernel, tmp_path: Path) -> None:
    assert nb.run(ASK).data("text/plain") == []
    assert "secret" not in nb.run("dict(os.environ)").data("text/plain")[0]
    with RealKernel(cwd=tmp_path, notebook=Path(PATH), tell_notebook="True") as notebook:
        assert notebook.run(ASK).value == repr(PATH)
