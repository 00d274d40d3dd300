# mypy: disable-error-code="no-untyped-call"
# (nbformat carries no types)

"""Requests of cells that are recorded, and answered again without a network."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.faces import fall_asleep, says, wait_for
from tests.guests.javascript.conftest import value
from tests.network.servers import Server, rule_for, serving
from tests.network.test_attacks import Events, exchange, get, network
from wasm_kernel import (
    ExecutionPolicy,
    RuntimeType,
    Service,
    create_session_sandbox,
    export_session,
    get_session_sandbox,
    import_session,
)
from wasm_kernel.frontends.batch.grading import grade_notebooks
from wasm_kernel.frontends.batch.outcome import BatchError, Outcome
from wasm_kernel.frontends.batch.runner import run_notebooks
from wasm_kernel.network.judge import NetworkRefused
from wasm_kernel.service.messages import Timeline
from wasm_kernel.service.sandbox import Sandbox

LEAVES = """
import http.client
c = http.client.HTTPConnection(H.removeprefix('http://'))
c.request('GET', '/zeros/5000000')
print(len(c.getresponse().read(1000)))
c.close()
"""
SEVEN = (
    "import requests, urllib.request\nget = requests.get",
    "print(get(H + '/to?/csv').text, get(H + '/to?/csv').history)",
    "print(get(H + '/count').text, get(H + '/count').text)",
    "print(requests.post(H + '/form', data={'a': 'b' * 1000}).text)",
    "print(get(H + '/gzip').text.strip()[-5:], urllib.request.urlopen(H + '/chunks/3').read())",
    "print(get(H + '/status/503').status_code, get(H + '/csv').headers['Date'])",
    LEAVES,
)


ASK = "import urllib.request as u; ask = lambda path, data=None: u.urlopen(H + path, data).read()"
THREE = (
    ASK,
    "print(ask('/count'), ask('/count'), ask('/form', b'a=b'))",
    "print(u.urlopen(H + '/csv').headers['Date'])",
)


def policy_for(server: Server, mode: str, **limits: Any) -> ExecutionPolicy:
    """Returns a policy that allows a server."""
    return ExecutionPolicy(network=[rule_for(server)], network_mode=mode, **limits)


def session_on(workspace: Path, runtime: str = "python", *, policy: ExecutionPolicy) -> Sandbox:
    """Opens the session whose folder is a workspace."""
    return get_session_sandbox(workspace.name, runtime, policy, workspace.parent)


def outputs(sandbox: Sandbox, server: Server, cells: Sequence[str] = SEVEN) -> list[str]:
    """Returns what cells print."""
    return [says(sandbox, f"H = {server.url!r}\n{cell}") for cell in cells]


@pytest.fixture
def workspace(clients: Path, tmp_path: Path) -> Path:
    """A workspace whose cells have clients of HTTP."""
    return Path(shutil.copytree(clients, tmp_path / "workspace"))


def test_a_session_replays_what_it_recorded(workspace: Path, server: Server) -> None:
    with session_on(workspace, policy=policy_for(server, "record")) as made:
        recorded = outputs(made, server)
        assert any(each.sent for each in made.call(Timeline()).result().ran.values())
        assert "stay sent" in says(made, "%undo")
        made.close(discard_variables=True)
    before = len(server.seen)
    assert recorded[2] != recorded[2][::-1]
    assert recorded[-1] == "1000"  # an answer that a client left is replayed as far as it came
    with session_on(workspace, policy=policy_for(server, "replay")) as made:
        assert outputs(made, server) == recorded
        assert not any(each.sent for each in made.call(Timeline()).result().ran.values())
        assert "stay sent" not in says(made, "%undo")
    assert len(server.seen) == before


def test_other_requests_are_refused_in_words(server: Server, tmp_path: Path) -> None:
    cells = (ASK, "print(ask('/count', b'a'))")
    with session_on(tmp_path / "one", policy=policy_for(server, "record")) as made:
        outputs(made, server, cells)
    with session_on(tmp_path / "one", policy=policy_for(server, "replay")) as made:
        outputs(made, server, cells[:1])
        for other in ("'/count', b'b'", "'/count'", "'/a?b=secret'"):
            result = made.execute(f"ask({other})")
            assert "is not among the recorded requests" in result.stderr
            assert "The setting is network_mode." in result.stderr
            assert "secret" not in result.stderr
        outputs(made, server, cells)
        result = made.execute("ask('/count', b'a')")
        assert "was given already (of 1 recorded)" in result.stderr
    assert server.connections == 1


def test_a_fork_gets_the_answers_of_its_later_cells(server: Server, tmp_path: Path) -> None:
    cell = f"{ASK}\nprint(ask('/count').decode())"
    with session_on(tmp_path / "one", policy=policy_for(server, "record")) as made:
        recorded = outputs(made, server, [cell] * 3)
        made.close(discard_variables=True)
    assert recorded == ["1", "2", "3"]
    policy = policy_for(server, "replay")
    with session_on(tmp_path / "one", policy=policy) as made:
        says(made, "1")
        [fork] = made.fork(1)
        with fork:
            assert outputs(fork, server, [cell] * 2) == recorded[1:]
        assert outputs(made, server, [cell] * 2) == recorded[:2]


def test_javascript_replays_from_archives_what_it_recorded(server: Server, tmp_path: Path) -> None:
    cell = f"await (await fetch('{server.url}/count', {{method: 'GET'}})).text()"
    roots, archive = [tmp_path / name for name in ("here", "there")], tmp_path / "session.tar.gz"
    policy = policy_for(server, "record")
    name, made = create_session_sandbox(RuntimeType.JAVASCRIPT, policy, roots[0])
    with made:
        assert [value(made, cell), value(made, cell)] == ["'1'", "'2'"]
    export_session(name, archive, roots[0])
    found = import_session(archive, roots[1])
    policy = policy_for(server, "replay")
    with get_session_sandbox(found.session_id, RuntimeType.JAVASCRIPT, policy, roots[1]) as made:
        assert [value(made, cell), value(made, cell)] == ["'1'", "'2'"]
    assert len(server.seen) == 2


def test_requests_are_counted_for_each_opening_and_fork(server: Server, tmp_path: Path) -> None:
    ask, count = f"{ASK}\n_ = ask('/csv?a=b')", "info = %session_info\nprint({})"
    count = count.format(
        "info['network_requests'], info['network_bytes'] > 16, *info['network_last']"
    )
    with session_on(tmp_path / "one", policy=policy_for(server, "live")) as made:
        outputs(made, server, [ask, "_ = ask('', b'abc')"])
        said = "2 True GET localhost/csv -> 200 POST localhost/ -> 200"
        wait_for(lambda: says(made, count) == said)
        says(made, "%undo")
        assert says(made, count) == said
        assert "network_requests" in says(made, "info = %session_info\nprint(info)")
        [fork] = made.fork(1)
        with fork:
            assert says(fork, count) == "0 False"
            outputs(fork, server, [ask])
            assert says(fork, count).startswith("1 ")
        assert says(made, count) == said
    with session_on(tmp_path / "one", policy=policy_for(server, "live")) as made:
        assert says(made, count) == "0 False"


def test_a_service_lists_the_requests_of_its_sessions(server: Server, tmp_path: Path) -> None:
    with Service(tmp_path, policy=policy_for(server, "live")) as service:
        made = service.create()
        says(made, f"import urllib.request as u; u.urlopen('{server.url}/csv').read()")
        [info] = service.list()
        assert info.requests == 1
        assert 12 < info.request_bytes < 1000  # the heads count, too
        fall_asleep(made)
        [info] = service.list()
        assert info.requests == 1


def test_an_answer_beyond_the_bound_is_refused_and_not_kept(server: Server, tmp_path: Path) -> None:
    policy = policy_for(server, "record", network_record_bytes=200_000)
    with session_on(tmp_path / "one", policy=policy) as made:
        outputs(made, server, [f"{ASK}\n_ = ask('/csv')"])
        result = made.execute("ask('/zeros/400000')")
        assert not result.success
        assert "does not fit into this session's record of 200,000 bytes" in result.stderr
        assert "The setting is network_record_bytes." in result.stderr
        again = "try: ask('/zeros/400000')\n    except OSError: pass"
        outputs(made, server, [f"for _ in range(9):\n    {again}"])
        outputs(made, server, ["_ = ask('/csv')"])
    with session_on(tmp_path / "one", policy=policy_for(server, "replay")) as made:
        outputs(made, server, [f"{ASK}\n_ = ask('/csv')"])
        result = made.execute("ask('/zeros/400000')")
        assert "is not among the recorded requests" in result.stderr


# -- without a guest


def asked(server: Server, folder: Path, mode: str, path: str, events: Events | None = None) -> Any:
    """Sends a request for a path; returns the answer's bytes."""
    net = network(rule_for(server), events=events, folder=folder, network_mode=mode)
    return asyncio.run(exchange(net, server.port, get(server.port, f"GET {path} HTTP/1.1")))


def test_an_event_says_that_an_answer_was_replayed(server: Server, tmp_path: Path) -> None:
    events: Events = []
    for mode in ("record", "replay"):
        asked(server, tmp_path, mode, "/csv", events)
    assert [each["replayed"] for each in events] == [None, True]
    assert [each["status"] for each in events] == [200, 200]


def edited(file: Path, old: str, new: str) -> None:
    file.write_text(file.read_text().replace(old, new))


def linked(file: Path) -> None:
    file.symlink_to(file.rename(file.parent.parent / "elsewhere"))


DAMAGED: dict[str, Callable[[Path, Path], object]] = {
    "record": lambda record, _: record.write_text('{"request": 1}'),
    "status": lambda record, _: edited(record, "200", "201"),
    "header": lambda record, _: edited(record, "Server", "Sörver☃"),
    "linked record": lambda record, _: linked(record),
    "linked body": lambda _, body: linked(body),
    "missing": lambda _, body: body.unlink(),
    "longer": lambda _, body: edited(body, "4\n", "4\n5"),
    "body": lambda _, body: edited(body, "4\n", "5\n"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_record_is_refused_in_words(kind: str, server: Server, tmp_path: Path) -> None:
    (folder := tmp_path / "kept").mkdir()
    asked(server, folder, "record", "/csv")
    body, record = sorted(folder.iterdir(), key=lambda each: "." in each.name)
    DAMAGED[kind](record, body)
    with pytest.raises(NetworkRefused, match=r"is damaged .* must be recorded again"):
        asked(server, folder, "replay", "/csv")
    assert len(server.seen) == 1


def test_recording_again_takes_the_place_of_the_first_time(server: Server, tmp_path: Path) -> None:
    for _ in range(3):
        found = asked(server, tmp_path, "record", "/count")
    assert len([*tmp_path.iterdir()]) <= 3  # the last record with its body, and an earlier body
    assert asked(server, tmp_path, "replay", "/count") == found


# -- batches


@pytest.fixture
def notebook(tmp_path: Path, server: Server) -> Path:
    """A notebook with some requests."""
    cells = [nbformat.v4.new_code_cell(f"H = {server.url!r}\n{cell}") for cell in THREE]
    file = tmp_path / "in" / "three.ipynb"
    file.parent.mkdir()
    nbformat.write(nbformat.v4.new_notebook(cells=cells), file)
    return file


def ran(file: Path, server: Server, out: Path, **options: Any) -> Outcome:
    """Runs a notebook."""
    [outcome] = run_notebooks(
        [file], out, network=[server.url], deterministic=True, folder="read", **options
    )
    return outcome


def test_a_recorded_notebook_runs_twice_without_a_network(notebook: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with serving() as server:
        text = notebook.read_text()
        port = text.split("localhost:")[1].split("'")[0]
        notebook.write_text(text.replace(f":{port}", f":{server.port}"))
        outcome = ran(notebook, server, tmp_path / "first", record=kept)
        assert outcome.ok, outcome
    files = []
    for name in ("second", "third"):
        outcome = ran(notebook, server, tmp_path / name, replay=kept)
        assert outcome.ok, outcome
        files.append((tmp_path / name / "three.ipynb").read_bytes())
    assert files[0] == files[1] == (tmp_path / "first" / "three.ipynb").read_bytes()
    assert b"'http" not in b"".join(each.read_bytes() for each in kept.rglob("*") if each.is_file())


def test_resumed_notebooks_get_answers_of_later_cells(server: Server, tmp_path: Path) -> None:
    ask = f"import urllib.request as u; print(u.urlopen({server.url!r} + '/count').read())"
    cells = [ask, ask, f"assert __import__('os').path.exists('/data/ready'); {ask}", ask]
    file, data = tmp_path / "three.ipynb", tmp_path / "data"
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in cells])
    nbformat.write(made, file)
    data.mkdir()
    ready = data / "ready"
    options: Any = {"mounts": [f"{data}:/data"], "folder": "none", "network": [server.url]}
    ready.touch()
    run_notebooks([file], tmp_path / "first", record=tmp_path / "kept", **options)
    ready.unlink()
    options |= {"replay": tmp_path / "kept"}
    [outcome] = run_notebooks([file], tmp_path / "again", **options)
    assert outcome.verdict == "error"
    ready.touch()
    [outcome] = run_notebooks([file], tmp_path / "again", resume=True, **options)
    assert (outcome.ok, outcome.kept) == (True, 2)
    written = (tmp_path / "again" / "three.ipynb").read_text()
    assert re.findall(r"b'(\d)'", written) == ["1", "2", "3", "4"]
    assert len(server.seen) == 4


def test_a_submission_is_graded_with_recorded_answers(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the session of the run that fails stays in `workspace`
    code = f"import urllib.request as u\nn = len(u.urlopen({server.url!r} + '/csv').read())"
    for name in ("solution", "student"):
        cells = [nbformat.v4.new_code_cell(code)]
        nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / f"{name}.ipynb")
    (tmp_path / "tests.py").write_text(
        "from wasm_kernel_grading import test\n\n"
        "@test(probes=['n'])\ndef length(n):\n    assert n == 12\n"
    )
    ran(tmp_path / "solution.ipynb", server, tmp_path / "out", record=tmp_path / "kept")
    seen = len(server.seen)
    [grade] = grade_notebooks(
        [tmp_path / "tests.py"],
        [tmp_path / "student.ipynb"],
        tmp_path / "graded",
        network=[server.url],
        replay=tmp_path / "kept" / "solution",
    )
    assert grade.earned == grade.points > 0
    outcome = ran(tmp_path / "student.ipynb", server, tmp_path / "alone", replay=tmp_path / "kept")
    assert "can't be opened" in outcome.reason
    assert [each.name for each in (tmp_path / "kept").iterdir()] == ["solution"]
    assert len(server.seen) == seen


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"network": ["https://"]}, "--network takes https://HOST"),
        ({"network": ["htp:/a.org"]}, "--network takes"),
        ({"network": ["http//a.org"]}, "--network takes"),
        ({"record": "kept"}, "need --network"),
        ({"network": ["https://a.org"], "replay": "absent"}, "no folder absent"),
        ({"network": ["https://a.org"], "record": "a", "replay": "a"}, "not both"),
        ({"network": ["https://a.org"], "record": "k/a", "mounts": ["k:/k:rw"]}, "a mount has it"),
    ],
)
def test_options_that_fail_every_notebook_are_refused_once(
    options: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "k").mkdir()
    for name in "ab":
        nbformat.write(nbformat.v4.new_notebook(), tmp_path / f"{name}.ipynb")
    with pytest.raises(BatchError, match=said):
        run_notebooks(["a.ipynb", "b.ipynb"], "out", **options)
    assert not (tmp_path / "out").exists()
