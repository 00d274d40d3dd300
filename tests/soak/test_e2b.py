"""E2B's own clients, from their registries, against `wasm-kernel serve`."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.e2b.conftest import ANN, server
from tests.faces import completed
from tests.mcp.clients import HttpServer
from tests.soak.test_many_servers import free_place

__all__ = ["server"]
pytestmark = pytest.mark.soak
_ARCHIVE = "https://github.com/e2b-dev/code-interpreter/archive/7df1757.tar.gz"
_SETTINGS = """[pytest]
markers = skip_debug: they run
asyncio_mode = auto
asyncio_default_fixture_loop_scope = session
asyncio_default_test_loop_scope = session
"""
_HERE = (
    "not (systemd or test_java.py or (cwd_java and not cwd_javascript) or java_kernel"
    " or test_r.py or cwd_r or r_kernel or context_with_options"
    " or box_and_whiskers or image_on_save)"
)
"""The tests without those that `docs/e2b.md` lists."""
CLIENTS = Path(__file__).parent / "clients"
HTTPS = Path(__file__).parents[2] / "examples" / "servers" / "https.cfg"
PYTHON = """\
['red\\n']
['text', 'html', 'data']
ZeroDivisionError 42
42
/home/user/in/a.csv
a\\n1\\n ['a', '1']
['/home/user/in', '/home/user/in/a.csv'] False
True /home/user/b/a.csv
NameError 3
41 True
1 {'run': '1'} True
1
True False
TimeoutException
41
FileNotFoundException
RED
CommandExitException
SandboxException
SandboxException
AuthenticationException
True False False
TimeoutException
SandboxNotRunningException
['0\\n', '1\\n', '2\\n']
timed out True
ab b'ab'
True
"""
JAVASCRIPT = """\
[["out\\n"],"{'a': 1}"]
ZeroDivisionError
42
/home/user/a/b.txt
text false
/home/user/a,/home/user/a/b.txt
true /home/user/n/a
FileNotFoundError
0
CommandExitError
SandboxError
TimeoutError
5
true 6
true 2
true false
TimeoutError
"""


def run(server: HttpServer, folder: Path, *command: str, **variables: str) -> str:
    url = server.url.removesuffix("/mcp")
    named = variables or {"E2B_API_URL": url, "E2B_SANDBOX_URL": url}
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = completed(command, env={**kept, **named, "E2B_API_KEY": ANN}, cwd=folder, timeout=300)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def installed(folder: Path, *packages: str) -> str:
    """Returns the Python of a new environment with the clients and other packages."""
    python = str(folder / "venv" / "bin" / "python")
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    needed = ["e2b>=2.63,<3", "e2b-code-interpreter>=2.11,<3", *packages]
    subprocess.run([python, "-m", "pip", "install", "--quiet", *needed], check=True)
    return python


def test_the_clients_of_python(server: HttpServer, tmp_path: Path) -> None:
    python = installed(tmp_path)
    assert run(server, tmp_path, python, str(CLIENTS / "e2b_client.py")) == PYTHON


def test_the_own_tests_of_the_clients_of_python(server: HttpServer, tmp_path: Path) -> None:
    python = installed(tmp_path, "pytest", "pytest-asyncio")
    folder = os.environ.get("E2B_TESTS")
    if folder is None:
        with urllib.request.urlopen(_ARCHIVE, timeout=120) as reply:
            data = reply.read()
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            archive.extractall(tmp_path / "source", filter="data")
        folder = str(next((tmp_path / "source").iterdir()))
    shutil.copytree(Path(folder, "python", "tests"), tmp_path / "tests")  # away from the source
    (tmp_path / "pytest.ini").write_text(_SETTINGS)
    options = ("--import-mode=importlib", "-q", "-k", _HERE, "tests")
    assert "119 passed" in run(server, tmp_path, python, "-m", "pytest", *options)


def test_the_executor_of_smolagents(server: HttpServer, tmp_path: Path) -> None:
    python = installed(tmp_path, "smolagents>=1.26,<2", "python-dotenv")
    said = run(server, tmp_path, python, str(CLIENTS / "e2b_agent.py"))
    assert said == "answer: {'sum': 3, 'price': 3}\nTrue True\n"


def test_the_code_interpreter_of_litellm(server: HttpServer, tmp_path: Path) -> None:
    """LiteLLM calls sandboxes at names of their own, by HTTPS: HAProxy has both."""
    python, address = installed(tmp_path, "litellm>=1.110,<2"), free_place()
    own = ["-subj", "/CN=sandboxes.test", "-addext", "subjectAltName=DNS:*.sandboxes.test"]
    made = ["-newkey", "rsa:2048", "-nodes", "-keyout", "key", "-out", "certificate"]
    subprocess.run(["openssl", "req", "-x509", *made, *own], cwd=tmp_path, check=True)
    certificate, both = tmp_path / "certificate", tmp_path / "both"
    both.write_bytes((tmp_path / "key").read_bytes() + certificate.read_bytes())
    places = {"ADDRESS": address, "CERTIFICATE": str(both), "SERVER": urlsplit(server.url).netloc}
    named = {"E2B_DOMAIN": address.replace("127.0.0.1", "sandboxes.test")}
    command = ["haproxy", "-f", str(HTTPS)]
    with subprocess.Popen(command, env={**os.environ, **places}) as proxy:
        try:
            script = str(CLIENTS / "litellm_client.py")
            said = run(server, tmp_path, python, script, SSL_CERT_FILE=str(certificate), **named)
        finally:
            proxy.terminate()
    assert said == "'42\\n' None\n'' ZeroDivisionError\n['7\\n', '4\\n']\n"


def test_the_description_has_the_names_of_e2bs_own(server: HttpServer, tmp_path: Path) -> None:
    python = installed(tmp_path)
    assert run(server, tmp_path, python, str(CLIENTS / "e2b_names.py")) == "13\n"


def test_the_client_of_npm(server: HttpServer, tmp_path: Path) -> None:
    package = "@e2b/code-interpreter@^2.8"
    subprocess.run(["npm", "install", "--silent", package], cwd=tmp_path, check=True)
    script = str(shutil.copy(CLIENTS / "e2b_client.mjs", tmp_path))
    assert run(server, tmp_path, "node", script) == JAVASCRIPT
