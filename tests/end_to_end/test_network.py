"""A kernel whose cells have a network and %pip: its front end has no sockets, its broker has."""

from __future__ import annotations

import json
import os
import signal
import uuid
from pathlib import Path
from threading import Thread

import pytest

from tests.end_to_end.conftest import Starting
from tests.end_to_end.real_kernel import RealKernel
from tests.faces import wait_for
from tests.guests.python.packages.conftest import make_wheel
from tests.network.servers import serving, tls


def test_a_kernels_cells_reach_the_hosts_that_its_settings_allow_and_end_when_interrupted(
    start: Starting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, log, file = tls(tmp_path), tmp_path / "events", tmp_path / "policy.toml"
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "ca.pem"))
    with serving(context) as server:
        rule = {"host": "localhost", "ports": [server.port], "addresses": ["127.0.0.0/8", "::1"]}
        lines = [f"{key} = {json.dumps(value)}" for key, value in rule.items()]
        file.write_text("\n".join(["[[network]]", *lines]))
        kernel = start(policy_file=str(file), event_log=str(log), confinement="required")
        get = "import urllib.request as u\nprint(len(u.urlopen({!r}).read()))"
        assert kernel.run(get.format(f"{server.url}/csv?key=secret")).stdout == "12\n"
        assert kernel.run(get.format(f"{server.url}/zeros/5000000")).stdout == "5000000\n"
        refused = kernel.run(get.format("https://example.org"))
        assert refused.error == "URLError"
        assert "WasmKernel.network" in refused.stderr
        kernel.run("kept = 42")

        def interrupt() -> None:
            wait_for(lambda: "/slow" in f"{server.seen}")
            os.kill(kernel.pid, signal.SIGINT)

        Thread(target=interrupt).start()
        amid = kernel.run(f"u.urlopen('{server.url}/slow/40').read()")
        assert amid.error == "KeyboardInterrupt"
        code = f"print(kept, len(u.urlopen('{server.url}/csv?key=secret').read()))"
        assert kernel.run(code).stdout == "42 12\n"
    events = [json.loads(line) for line in log.read_text().splitlines()]
    sent = [each for each in events if each["event"] == "network.request"]
    told = [(each["path"], each["status"]) for each in sent if each["path"] != "/slow/40"]
    assert told == [("/csv", 200), ("/zeros/5000000", 200), ("/csv", 200)]
    assert "secret" not in log.read_text()


def test_a_kernel_replays_what_it_recorded_before(start: Starting, tmp_path: Path) -> None:
    rule = {"host": "localhost", "schemes": ["http"]}
    session, told = str(uuid.uuid4()), []
    with serving() as server:
        lines = [f"{key} = {json.dumps(value)}" for key, value in rule.items()]
        rules = "\n".join(["[[network]]", *lines, f"ports = [{server.port}]"])
        for mode in ("record", "replay"):
            file = tmp_path / f"{mode}.toml"
            file.write_text(f"network_mode = {mode!r}\n{rules}")
            kernel = start(policy_file=str(file), session_id=session, confinement="required")
            code = f"import urllib.request as u; print(u.urlopen('{server.url}/count').read())"
            told += [kernel.run(code).stdout, kernel.run(code).stdout]
            assert kernel.run("u.urlopen('http://localhost:1')").error == "URLError"
            kernel.end()
    assert told == ["b'1'\n", "b'2'\n"] * 2


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """The environment of a user whose pip reads one small index."""
    folder = tmp_path / "index" / "one"
    folder.mkdir(parents=True)
    name = make_wheel(folder, "one").name
    (folder / "index.html").write_text(f'<a href="{name}">{name}</a>')
    (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = {(tmp_path / 'index').as_uri()}\n")
    told = {name: "" for name in os.environ if name.startswith("PIP_")}
    return told | {"PIP_CONFIG_FILE": str(tmp_path / "pip.conf"), "PIP_NO_CACHE_DIR": "1"}


def test_a_package_is_there_at_once_and_in_a_kernel_that_may_not_install(
    tmp_path: Path, env: dict[str, str]
) -> None:
    with RealKernel(session_id="packages", cwd=tmp_path, variables=env) as notebook:
        shown = notebook.run("%pip install one\nimport one\none.version")
        assert shown.data("text/plain") == ["'1.0'"], shown.stderr
        assert "Successfully installed one-1.0" in shown.stdout
        assert str(tmp_path) not in shown.stdout
    with RealKernel(session_id="packages", pip="False", cwd=tmp_path, variables=env) as notebook:
        assert notebook.run("import one\none.version").data("text/plain") == ["'1.0'"]
        shown = notebook.run("%pip install one")
        assert "switched off in this kernel" in shown.stderr
        assert shown.reply["status"] == "error"
