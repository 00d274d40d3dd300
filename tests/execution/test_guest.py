"""The Python guest's knowledge and texts, asked through a real sandbox."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.faces import error_of, says, traceback_of
from wasm_kernel import BaseSandbox, ExecutionPolicy, create_sandbox
from wasm_kernel.outputs.bundle import Mode, clean


def test_memory_errors_name_a_setting_and_deep_code_is_none(module_sandbox: BaseSandbox) -> None:
    error = error_of(module_sandbox.execute("[0] * 10**9"))
    limit = f"{module_sandbox.policy.memory_bytes / 2**20:,.0f} MiB"
    assert error.startswith("MemoryError:")
    assert limit in error
    assert "memory_bytes" in error
    shown = "".join(traceback_of(module_sandbox.execute("eval('-' * 100_000 + '1')")))
    assert "too complex to parse" in shown
    assert "memory_bytes" not in shown


def test_imports_complete_to_modules_inside_the_guests_zips(module_sandbox: BaseSandbox) -> None:
    for typed, name in (("import bis", "bisect"), ("import nump", "numpy")):
        asked = {"op": "complete", "code": typed, "cursor_pos": len(typed)}
        assert module_sandbox.query(asked).result()["matches"] == [name]
    names = {
        "from sklearn.lin": "sklearn.linear_model",
        "from sklearn.linear_model import LogisticR": "LogisticRegression",
        "from scipy.stats import normal": "normaltest",
        "from networkx import draw_net": "draw_networkx",
        "from own import val": "value",
    }
    module_sandbox.execute("open('own.py', 'w').write('value = 1 / 0')")
    for typed, name in names.items():
        asked = {"op": "complete", "code": typed, "cursor_pos": len(typed)}
        assert name in module_sandbox.query(asked).result()["matches"]
    assert (
        says(module_sandbox, "import sys; print({'sklearn', 'scipy'} & sys.modules.keys())")
        == "set()"
    )


def test_streams_traits_and_history_are_as_elsewhere(module_sandbox: BaseSandbox) -> None:
    shown = "import logging; print(logging.StreamHandler())"
    assert says(module_sandbox, shown) == "<StreamHandler stderr (NOTSET)>"
    assert module_sandbox.execute(TRAITS).stdout == "8 5 True\n"
    found = module_sandbox.execute("import platform\nprint(platform.libc_ver())")
    assert found.stdout == "('', '')\n"
    module_sandbox.execute("kept = 1")
    tail = {"op": "history", "hist_access_type": "tail", "n": 1, "output": False, "raw": True}
    session, line, text = module_sandbox.query(tail).result()["history"][-1]
    asked = {"op": "history", "hist_access_type": "range", "output": False, "raw": True}
    asked |= {"session": session, "start": line, "stop": line + 1}
    assert module_sandbox.query(asked).result()["history"] == [[session, line, text]]


def test_modules_run_without_source_and_compile_once_in_zips(
    module_sandbox: BaseSandbox,
) -> None:
    module_sandbox.execute("open('list.json', 'w').write('[1]')")
    assert says(module_sandbox, "%run -m json.tool list.json").startswith("[\n")
    module_sandbox.execute("open('own.py', 'w').write('import sys; words = sys.argv[1:]')")
    assert says(module_sandbox, "%run -m own a b\nprint(words)") == "['a', 'b']"
    assert "not a valid modulename" in error_of(module_sandbox.execute("%run -m no_such_module"))
    assert says(module_sandbox, MODULES).splitlines() == [
        "one.py /app/found.zip/one.py /app/found.zip/one.py",
        "two/three.py /app/found.zip/two/three.py /app/found.zip/two/three.py",
        "3 None",
    ]


MODULES = """
import importlib, importlib.util, sys, zipfile, zipimport
with zipfile.ZipFile("/app/found.zip", "w") as archive:
    for name in ("one.py", "two/__init__.py", "two/three.py"):
        archive.writestr(name, f"name = {name!r}")
sys.path.insert(0, "/app/found.zip")
made, compiled = [], zipimport._compile_source
zipimport._compile_source = lambda *given: made.append(given) or compiled(*given)
for name in ("one", "two.three"):
    module = importlib.import_module(name)
    print(module.name, module.__file__, importlib.util.find_spec(name).origin)
zipimport._compile_source = compiled
print(len(made), importlib.util.find_spec("two.four"))
"""


ENDLESS = [
    "threading.Event().wait()",
    "threading.Barrier(2).wait()",
    "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "with lock: pass",
    "threading.Semaphore(0).acquire()",
    "queue.Queue().get()",
    "queue.SimpleQueue().get()",
    "concurrent.futures.Future().result()",
]
WITH_TIMEOUT = """
import concurrent.futures, queue, threading
event = threading.Event()
print(event.wait(0.01), threading.Semaphore(0).acquire(timeout=0.01))
for waiting in (queue.Queue().get, queue.SimpleQueue().get, concurrent.futures.Future().result):
    try: waiting(timeout=0.01)
    except (queue.Empty, TimeoutError) as problem: print(type(problem).__name__)
event.set()
full = queue.Queue()
full.put(1)
print(event.wait(), full.get(timeout=1))
lock = threading.Lock()
with lock: print(lock.acquire(False), lock.acquire(timeout=0.01), lock.locked(), lock)
print(lock.acquire(), isinstance(lock, threading.Lock), type(lock))
"""


def test_a_wait_for_another_thread_ends_and_costs_nothing(module_sandbox: BaseSandbox) -> None:
    told = (
        "False False|Empty|Empty|TimeoutError|True 1|False False True <locked _thread.lock object "
        "at 0x…>|True True <class '_thread.lock'>"
    )
    printed = re.sub("0x[0-9a-f]+", "0x…", says(module_sandbox, WITH_TIMEOUT))
    assert printed.splitlines() == told.split("|")
    for code in ENDLESS:
        error = error_of(module_sandbox.execute(code))
        assert error.startswith("RuntimeError:") and "would wait for ever" in error, code
    assert says(module_sandbox, "print(event.is_set())") == "True"


@pytest.mark.soak
def test_jedi_completes_where_it_is_asked_for(tmp_path: Path) -> None:
    with create_sandbox(workspace=tmp_path, policy=ExecutionPolicy(query_seconds=60)) as sandbox:
        assert sandbox.execute("%config Completer.use_jedi = True").success
        code = "def f(table: dict):\n    table.ite"  # no such object exists yet
        asked = {"op": "complete", "code": code, "cursor_pos": len(code)}
        reply = sandbox.query(asked).result()
        assert reply["matches"] == ["items"]
        [row] = reply["metadata"]["_jupyter_types_experimental"]
        assert row["type"] == "function"
        assert not any(sandbox.workspace.glob(".cache/*"))


TRAITS = """
import traitlets
class Doubled(traitlets.Int):
    def get(self, obj, cls=None): return 2 * super().get(obj, cls)
class Thing(traitlets.HasTraits):
    first, second = Doubled(3), traitlets.Int(5)
thing = Thing()
thing.first = 4
print(thing.first, thing.second, Thing.first is Thing.class_traits()["first"])
"""


TESTS = """
import sys, pytest
def test_streams(capfd, tmp_path):
    print("out"); sys.stderr.write("err")
    assert capfd.readouterr() == ("out\\n", "err")
@pytest.mark.parametrize("n", [1, 2])
def test_that_fails(n): assert n == 1
"""


def test_pytest_runs_in_a_cell_and_in_a_script(tmp_path: Path) -> None:
    packages = Path(pytest.__file__).parents[1]
    shutil.copy(packages / "py.py", tmp_path)
    for name in ("pytest", "_pytest", "pluggy", "iniconfig"):
        without = shutil.ignore_patterns("__pycache__")
        shutil.copytree(packages / name, tmp_path / name, ignore=without)
    (tmp_path / "test_own.py").write_text(TESTS)
    with create_sandbox(workspace=tmp_path) as sandbox:
        assert sandbox.execute("import pytest").success
        for options in ("'-q'", "'-q', '-s'"):
            told = says(sandbox, f"print(pytest.main([{options}, '--color=no']).name)")
            assert told.splitlines()[-2].startswith("1 failed, 2 passed in"), told
            assert told.endswith("TESTS_FAILED")
        told = says(sandbox, "!python -m pytest -q | tail -1")
        assert told.startswith("1 failed, 2 passed"), told


ANIMATION = """
import base64, io, re
from IPython.display import HTML
from PIL import Image
from matplotlib import pyplot
from matplotlib.animation import FuncAnimation
figure, axes = pyplot.subplots(figsize=(1, 1))
[line] = axes.plot([0, 1])
moving = FuncAnimation(figure, lambda n: line.set_ydata([n, 1]), frames=3, interval=100)
page = moving.to_jshtml()
pyplot.close(figure)
picture = re.search('<img src="data:image/png;base64,([^"]+)"', page)[1]
with Image.open(io.BytesIO(base64.b64decode(picture))) as image:
    print(image.n_frames, image.info["duration"], image.info["loop"], end="")
    first, last = (image.seek(n) or image.convert("L").tobytes() for n in (0, 2))
    print("", first != last)
HTML(page)
"""


SCHEMAS = """
import nbformat, jsonschema
from nbformat import v4
nbformat.validate(v4.new_notebook(cells=[v4.new_code_cell("1")]))
schema = {"$defs": {"n": {"type": "integer"}}, "additionalProperties": {"$ref": "#/$defs/n"}}
jsonschema.validate({"a": 1}, schema)
try:
    jsonschema.validate({"a": "1"}, schema)
except jsonschema.ValidationError as problem:
    print(problem.message)
"""


def test_schemas_for_figures_are_there_and_scripts_give_way(module_sandbox: BaseSandbox) -> None:
    result = module_sandbox.execute(SCHEMAS)
    assert result.stdout == "'1' is not of type 'integer'\n", result.error
    result = module_sandbox.execute(f"{ANIMATION}\nmoving.to_html5_video()")
    assert "to_jshtml" in "".join(traceback_of(result))
    code = "%matplotlib widget\nimport matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()"
    result = module_sandbox.execute(code)
    assert "drawn inline instead" in result.stderr
    assert [output.data for output in result.outputs if "image/png" in output.data]


def test_an_animation_moves_without_its_script(module_sandbox: BaseSandbox) -> None:
    result = module_sandbox.execute(ANIMATION)
    assert result.stdout == "3 100.0 0 True\n"
    [shown] = [output.data for output in result.outputs if "text/html" in output.data]
    safe = clean(shown, {}, Mode.SAFE)
    assert safe.removed == ()
    page = safe.data["text/html"]
    assert '<img src="data:image/png;base64,' in page
    assert ".anim-controls {display: none}" in page
    assert "<script" not in page


NAMED_FILES = {
    'HTML(\'<p><img alt="x" src="red dot.png"></p>\')': '<p><img alt="x" src="{red}"></p>',
    "HTML(\"<IMG\\n src = 'red%20dot.png'><img src='x.png'>\")": (
        "<IMG\n src = \"{red}\"><img src='x.png'>"
    ),
    'Markdown(\'![a](dot.png "t") `![](dot.png)` ![](/x.png) <img src="/app/dot.png">\')': (
        '![a]({red} "t") `![](dot.png)` ![](/x.png) <img src="{red}">'
    ),
    "Image(url='dot.png')": '<img src="{red}"/>',
    "HTML('<img src=\"large.png\">')": '<img src="large.png">',
    'HTML(\'<a href="dot.png">a</a> <img src="https://x.y/dot.png">\')': (
        '<a href="dot.png">a</a> <img src="https://x.y/dot.png">'
    ),
}
MAKE_FILES = """
from IPython.display import HTML, Image, Markdown, Video
import PIL.Image
for name in ("dot.png", "red dot.png"):
    PIL.Image.new("RGB", (1, 1), "red").save(name)
open("film.mp4", "wb").write(b"\\0\\0\\0\\x18ftypmp42")
open("large.png", "wb").write(open("dot.png", "rb").read() + bytes(8_000_000))
__import__("base64").b64encode(open("dot.png", "rb").read()).decode()
"""


def test_files_that_an_output_names_are_in_the_output(module_sandbox: BaseSandbox) -> None:
    """Before, they were left out: a page reaches no file of the session."""
    made = module_sandbox.execute(MAKE_FILES)
    red = f"data:image/png;base64,{made.outputs[0].data['text/plain'][1:-1]}"
    for code, text in NAMED_FILES.items():
        data = module_sandbox.execute(code).outputs[0].data
        assert data.get("text/html", data.get("text/markdown")) == text.replace("{red}", red)
    film = module_sandbox.execute("Video('film.mp4')").outputs[0].data
    assert 'src="data:video/mp4;base64,AAAAGGZ0eXBtcDQy"' in film["text/html"]
    assert clean(film, {}, Mode.SAFE).removed == ()
