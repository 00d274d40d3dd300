"""The advice about the sandbox in a guest's errors, and the source that `inspect` finds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.faces import error_of, traceback_of
from wasm_kernel import BaseSandbox, create_sandbox
from wasm_kernel.errors import Door
from wasm_kernel.policy import MIB, ExecutionPolicy
from wasm_kernel.result import SandboxResult


def shown(result: SandboxResult) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", "\n".join(traceback_of(result)))


MODULES = {
    "requests": "has no network",
    "torch": "MLPClassifier",
    "ipympl": "%matplotlib inline",
    "dotenv": "%pip install python-dotenv",
    "resource": "belongs to an operating system",
}
NO_NETWORK = "the sandbox has no network, so example.org can't be reached"
NO_SOCKET = "no socket can listen or connect"
AVIF = "from PIL import Image; open('g.avif', 'wb').write(b'    ftypavif'); "
NO_AVIF = "neither read nor write AVIF"
ADVICE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(  # advice for programs; kernels name the notebook
        (
            "open('data/sales.csv')",
            "open('/home/jo/sales.csv')",
            "import pandas; pandas.read_csv('sales.csv')",
            "import os; os.listdir('data')",
        ),
        ("No such file", "write_session_file", "[wasm-kernel]"),
    ),
    "x = [1,\n": ("x = [1,\n        ^\nSyntaxError: '[' was never closed",),
    **dict.fromkeys(
        ("'x'.ljust(3 * 10**9)", "import numpy; numpy.zeros(3 * 10**9)"),
        ("one object has at most 2,147,483,647 bytes or items",),
    ),
    "f = open('/app/f', 'wb')\nf.truncate(10**12)": (
        *("No space left on device", "workspace_bytes", "[wasm-kernel]"),
    ),
    **{f"import {module}": (sentence,) for module, sentence in MODULES.items()},
    "import urllib.request; urllib.request.urlopen('https://example.org')": (NO_NETWORK,),
    "import socket; socket.create_connection(('example.org', 80))": (NO_NETWORK,),
    "import pandas; pandas.read_csv('http://example.org/a.csv')": (NO_NETWORK,),
    "import socket; socket.socket()": (NO_SOCKET,),
    "import os; os.getloadavg()": (
        "os.getloadavg is there elsewhere, it belongs to an operating system",
    ),
    **dict.fromkeys(
        (
            "import os; os.makedirs('/mnt/data')",
            "open('/out.txt', 'w')",
            "import pandas; pandas.DataFrame([1]).to_csv('/content/x.csv')",
        ),
        ("Cells write into /app and /tmp alone", "by a relative path"),
    ),
    "import sqlite3; sqlite3.connect('/content/x.db')": ("Make it first",),
    "import asyncio; await asyncio.start_server(print, '127.0.0.1', 0)": (NO_SOCKET,),
    "import venv": ("%pip install NAME, on a line of its own",),
    "import seaborn; seaborn.load_dataset('tips')": ("plotly.express.data.tips()",),
    "from sklearn import datasets; datasets.fetch_openml('iris')": ("load_iris",),
    "import turtle": ("tkinter opens windows", "ipywidgets"),
    "import pandas; pandas.read_clipboard()": ("has no clipboard", "read_csv"),
    "import distutils": ("before 3.13", "%pip install standard-distutils"),
    "import signal; signal.alarm(1)": ("signal.alarm is there", "%%limit seconds=5"),
    "from multiprocessing import shared_memory": ("belongs to an operating system",),
    "import multiprocessing; multiprocessing.Queue()": ("Use queue.Queue instead",),
    "from multiprocessing import connection, sharedctypes, synchronize; synchronize.Lock()": (
        "Use threading.Lock instead",
    ),
    "eval('(' * 150 + '1' + ')' * 150)": ("brackets inside each other",),
    "import subprocess; subprocess.run(['pytest'])": ("use python -m pytest",),
    "import socketserver; socketserver.TCPServer(('', 80), None)": (NO_SOCKET,),
    f"{AVIF}Image.open('g.avif')": (NO_AVIF,),
    f"{AVIF}Image.new('L', (1, 1)).save('g.avif')": (NO_AVIF,),
    f"{AVIF}Image.new('L', (1, 1)).save('g.jp2')": (NO_AVIF,),
    "from statsmodels.datasets import spector; spector.load_pandas()": (
        "pandas.read_csv('spector.csv')",
    ),
}


@pytest.mark.parametrize("code", ADVICE)
def test_an_error_says_what_can_be_done(module_sandbox: BaseSandbox, code: str) -> None:
    text = shown(module_sandbox.execute(code))
    for words in ADVICE[code]:
        assert words in text
    assert text.count("[wasm-kernel]") <= 1
    assert "[wasm-kernel]" not in text.splitlines()[-1]


def test_an_error_of_memory_names_no_setting_to_an_agent(tmp_path: Path) -> None:
    policy = ExecutionPolicy(memory_bytes=512 * MIB).at(Door.AGENT)
    with create_sandbox(workspace=tmp_path, policy=policy) as sandbox:
        for code in ("bytes(600_000_000)", "z = []\nwhile True: z.append(bytes(90_000_000))"):
            text = shown(sandbox.execute(code))
            assert "512 MiB" in text
            assert not re.search("[Rr]aise|memory_bytes|WasmKernel", text)


def test_a_hint_knows_nothing_of_hosts_and_comes_if_it_helps(module_sandbox: BaseSandbox) -> None:
    there, missing = ("/etc/passwd", "/etc/no-such-thing")
    texts = [shown(module_sandbox.execute(f"open({name!r})")) for name in (there, missing)]
    hints = {text.partition("[wasm-kernel]")[2].partition("\n")[0] for text in texts}
    assert len(hints) == 1
    assert "[wasm-kernel]" not in shown(module_sandbox.execute("open('/tmp/nope')"))
    assert "%pip" not in shown(module_sandbox.execute("import numpy.nonesuch"))


def test_errors_of_imports_blame_no_option_locales_tell_once(
    module_sandbox: BaseSandbox,
) -> None:
    code = (
        "import traceback\ntry:\n    import nosuch\nexcept ImportError:\n    traceback.print_exc()"
    )
    lines = module_sandbox.execute(code).stderr.splitlines()
    assert lines[-1] == "ModuleNotFoundError: No module named 'nosuch'"
    code = "import locale; print(locale.setlocale(locale.LC_ALL, 'de_DE.UTF-8'))"
    module_sandbox.execute("import locale; locale.setlocale(locale.LC_ALL, '')")
    told = [module_sandbox.execute(code) for _ in range(2)]
    assert [each.stdout for each in told] == ["de_DE.UTF-8\n"] * 2
    assert told[0].stderr.startswith("[wasm-kernel] the sandbox has no locale but C")
    assert told[1].stderr == ""


def test_packages_find_what_they_import_of_ssl(module_sandbox: BaseSandbox) -> None:
    names = (  # names that urllib3 and httpx import
        "CERT_REQUIRED, HAS_NEVER_CHECK_COMMON_NAME, OP_NO_COMPRESSION, OP_NO_TICKET, SSLContext, "
        "OPENSSL_VERSION, PROTOCOL_TLS_CLIENT, VERIFY_X509_STRICT, TLSVersion, SSLWantReadError"
    )
    code = f"""
from ssl import {names}
import ssl
context = ssl.create_default_context()
context.minimum_version = TLSVersion.TLSv1_2
context.options |= OP_NO_TICKET
context.hostname_checks_common_name = False
context.load_verify_locations('/nowhere')
context.set_alpn_protocols(["h2"])
print(context.verify_mode == CERT_REQUIRED, context.check_hostname, context.minimum_version.name)
"""
    assert module_sandbox.execute(code).stdout == "True True TLSv1_2\n"


def test_a_traceback_ends_with_the_error_and_not_with_a_hint(module_sandbox: BaseSandbox) -> None:
    code = "try:\n    open('a.csv')\nexcept OSError as e:\n    e.add_note('mine'); raise"
    *_, hint, error, note = shown(module_sandbox.execute(code)).splitlines()
    assert hint.startswith("[wasm-kernel] ")
    assert error == "FileNotFoundError: [Errno 44] No such file or directory: 'a.csv'"
    assert note == "mine"
    code = "def dive(n): dive(n + 1)\nimport sys; sys.setrecursionlimit(20_000); dive(0)"
    assert shown(module_sandbox.execute(code)).splitlines()[-1].startswith("RecursionError")


def test_compiled_code_calls_itself_through_python_at_length(module_sandbox: BaseSandbox) -> None:
    """On WASI, CPython assumes a stack of 128 KiB. Memoised functions that recurse are common."""
    code = """
import functools, json
@functools.cache
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
print(fib(500) % 1000)
"""
    assert module_sandbox.execute(code).stdout == "125\n"
    deep = module_sandbox.execute("json.loads('[' * 100_000 + ']' * 100_000)")
    assert shown(deep).splitlines()[-1].startswith("RecursionError")


def test_deep_compiled_code_that_counts_fuel_has_an_error_of_its_own(
    tmp_path: Path, warm_metered: None
) -> None:
    with create_sandbox(workspace=tmp_path, policy=ExecutionPolicy(fuel_budget=10**12)) as sandbox:
        deep = sandbox.execute("import json; json.loads('{\"a\": [' * 100_000)")
        assert error_of(deep).startswith("RecursionError")


def test_a_recursion_that_is_too_deep_looks_for_no_file(module_sandbox: BaseSandbox) -> None:
    """Formerly, a thousand frames looked at the files of all modules, which took a second."""
    code = """
import sys, types
class Probe(types.ModuleType):
    looks = 0
    @property
    def __file__(self):
        Probe.looks += 1
sys.modules["probe"] = Probe("probe")
sys.setrecursionlimit(1000)
def f(): f()
"""
    module_sandbox.execute(code)
    text = shown(module_sandbox.execute("f()"))
    assert re.search(r"skipping similar frames: f at line 9 \(9\d\d times\)", text)
    assert int(module_sandbox.execute("print(Probe.looks); del sys.modules['probe']").stdout) < 10


def test_frames_that_show_nothing_are_one_line(module_sandbox: BaseSandbox) -> None:
    """The source of built-in libraries is not there to be shown."""
    text = shown(module_sandbox.execute("import pandas\npandas.read_csv('sales.csv')"))
    lines = [line for line in text.splitlines() if line.startswith("File ")]
    assert len(lines) == 1
    [places] = [re.sub(r":\d+", "", line) for line in lines]
    assert places.startswith("File pandas/io/parsers/readers.py, in read_csv ... 3 frames ... ")
    assert places.endswith(" pandas/io/common.py, in get_handle")
    assert "----> 2 pandas.read_csv('sales.csv')" in text

    called = "def mine(_): return 1 / 0\npandas.Series([1]).apply(mine)"
    text = shown(module_sandbox.execute(called))
    assert text.count("\nFile ") == 1
    assert text.index("in Series.apply ... ") < text.index("in mine(_)")

    text = shown(module_sandbox.execute("%xmode Verbose\npandas.read_csv('sales.csv')"))
    module_sandbox.execute("%xmode Context")
    assert "filepath_or_buffer='sales.csv'" in text


GROUP = """
def fail():
    raise ExceptionGroup("several", [ValueError(1), ExceptionGroup("more", [KeyError(2)])])
fail()
"""


def test_groups_of_exceptions_have_parts_and_code_a_source(module_sandbox: BaseSandbox) -> None:
    result = module_sandbox.execute(GROUP)
    text = shown(result)
    assert error_of(result).startswith("ExceptionGroup:")
    for part in ("ValueError", "KeyError", "in fail", "Cell In["):
        assert part in text
    assert "interactiveshell" not in text
    result = module_sandbox.execute("f = lambda: 1 / 0\nprint(f.__code__.co_filename)\nf()")
    assert result.stdout.startswith("/tmp/ipykernel_")
    assert result.error is not None
    trace = "\n".join(result.error.traceback)
    assert "ipykernel" not in trace
    assert "\x1b[30;43m" in trace, "IPython marks the part of the line that failed"
    body = "    def area(self): return 1"
    module_sandbox.execute(f"class Shape:\n{body}")
    [page] = module_sandbox.execute("Shape??").reply["payload"]
    assert "Source:" in page["data"]["text/plain"]
    printed = module_sandbox.execute("import inspect; print(inspect.getsource(Shape))").stdout
    assert printed.rstrip() == f"class Shape:\n{body}"
