"""Sandboxes and code by E2B's API, as its clients send requests."""

from __future__ import annotations

import http.client
import json
import struct
import time
from base64 import b64decode
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2b.conftest import ADMIN, ANN, Api, SandboxOf
from tests.faces import PATIENCE, wait_for
from tests.mcp.clients import HttpServer

STREAMS = ("stdout", "stderr")


def test_a_sandbox_runs_cells_and_keeps_variables(ann: Api) -> None:
    sandbox = ann.made(envVars={"COLOUR": "red"}, network={"allowPublicTraffic": False})
    lines = sandbox.run("import os, sys\nprint(os.environ['COLOUR'])\nx = 'a'\nx")
    assert [line["type"] for line in lines] == ["stdout", "result", "number_of_executions"]
    assert lines[0]["text"] == "red\n"
    assert abs(lines[0]["timestamp"] / 1e9 - time.time()) < PATIENCE
    assert lines[1]["text"] == "a"  # without quotes, as E2B shows texts
    assert lines[2]["execution_count"] == 1
    assert sandbox.value("x * 3") == "aaa"
    (shown, *_) = sandbox.run("display({'text/html': '<b>a</b>', 'application/x': '1'}, raw=True)")
    assert (shown["html"], shown["extra"], shown["is_main_result"]) == (
        "<b>a</b>",
        {"application/x": "1"},
        False,
    )
    (error, _) = sandbox.run("1 / 0")
    assert (error["type"], error["name"]) == ("error", "ZeroDivisionError")
    assert "line 1" in error["traceback"]
    (shown, *_) = sandbox.run("display({'text/plain': '\\ud800 a'}, raw=True)")
    assert shown["text"].endswith(" a")


def test_a_server_with_a_domain_has_a_name_for_each_sandbox(ann: Api) -> None:
    asked = {"templateID": "base", "allow_internet_access": True}  # as LiteLLM sends
    made = ann.call("POST", "/sandboxes", asked, {"Host": "api.example.org:8443"}).json
    assert made["domain"] == "example.org:8443"
    host = {"Host": f"49999-{made['sandboxID']}.{made['domain']}"}
    sent = [("X-Access-Token", made["envdAccessToken"]), ("X-API-Key", ANN)]
    own, other = (Api(f"http://{ann.place}", {**host, name: value}) for name, value in sent)
    assert own.call("POST", "/execute", {"code": "print(6 * 7)"}).lines[0]["text"] == "42\n"
    assert other.call("POST", "/execute", {"code": "print(1)"}).status == 401
    plain = ann.call("POST", "/sandboxes", asked).json  # such a name leads nowhere
    assert plain["domain"].endswith(".invalid")


CHARTS = """
import datetime, numpy as np, pandas as pd, matplotlib.pyplot as plt
def shown(draw, columns=1):
    figure, axes = plt.subplots(1, columns)
    draw(axes)
    plt.show()
shown(lambda axes: (axes.bar(["a", "b"], [1, 2], label="g"), axes.set_xlabel("x (s)")))
shown(lambda axes: axes.barh(["a", "b"], [3, 3]))
shown(lambda axes: axes.scatter([1, 2], [3, 4]))
shown(lambda axes: axes.pie([1, 3], labels=["p", "q"]))
box = dict(x=[[1, 2, 3, 4, 50, 1.2]], tick_labels=["r"], patch_artist=True)
shown(lambda axes: axes.boxplot(**box))
shown(lambda axes: axes.boxplot(**box, orientation="horizontal"))
shown(lambda axes: axes[0].plot([datetime.date(2020, 1, 1)], [1.0]), columns=2)
shown(lambda axes: axes.plot(range(100_001)))
pd.DataFrame({"n": [1, None], "t": pd.to_datetime(["2020-01-01", None])})
"""
BAR = {
    "type": "bar",
    "title": None,
    "x_label": "x (s)",
    "x_unit": "s",
    "y_label": None,
    "y_unit": None,
    "elements": [
        {"label": "a", "group": "g", "value": 1.0},
        {"label": "b", "group": "g", "value": 2.0},
    ],
}
BOX = {"label": "r", "min": 1.0, "first_quartile": 1.4, "median": 2.5, "third_quartile": 3.75}
BOX |= {"max": 4.0, "outliers": [50.0]}


def test_figures_and_tables_come_with_their_data(ann: Api) -> None:
    results = [line for line in ann.made().run(CHARTS) if line["type"] == "result"]
    charts: list[Any] = [result.get("chart") for result in results[:-1]]
    bar, lying, scatter, pie, *boxes, line, large = charts
    assert all("png" in result for result in results[:-1])
    assert bar == BAR
    assert [each["value"] for each in lying["elements"]] == [3.0, 3.0]
    assert scatter["elements"][0]["points"] == [[1.0, 3.0], [2.0, 4.0]]
    assert (scatter["type"], scatter["x_scale"]) == ("scatter", "linear")
    parts = [(each["label"], each["angle"]) for each in pie["elements"]]
    assert parts == [("p", 90.0), ("q", 270.0)]
    assert [box["elements"] for box in boxes] == [[BOX], [BOX]]
    assert line["type"] == "superchart"
    assert line["elements"][0]["x_scale"] == "datetime"
    assert line["elements"][0]["elements"][0]["points"] == [["2020-01-01", 1.0]]
    assert large is None  # too many points to send beside the picture
    assert results[-1]["data"] == {"n": [1.0, None], "t": ["2020-01-01T00:00:00", None]}
    assert all(not result["extra"] for result in results)


def test_cells_of_a_context_that_is_restarted_end_in_words(ann: Api) -> None:
    sandbox = ann.made()
    assert sandbox.value("1") == "1"
    line = sandbox.begin("POST", "/execute", {"code": "print(1)\nwhile True: pass"})
    runs = line.getresponse()
    runs.readline()
    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(sandbox.call, "POST", "/execute", {"code": "2"})
        time.sleep(1)  # the server has it
        assert sandbox.call("POST", f"/contexts/{sandbox.name}/restart").status == 204
    assert b"its sandbox was closed" in runs.read()
    line.close()
    assert "before it began" in waits.result().words
    assert sandbox.value("1") == "1"


def test_an_answer_begins_while_the_cell_runs_and_a_client_that_leaves_ends_it(ann: Api) -> None:
    sandbox = ann.made()
    began = time.monotonic()
    for code in ("", "print('first', flush=True); "):
        line = sandbox.begin("POST", "/execute", {"code": f"import time; {code}time.sleep(60)"})
        answer = line.getresponse()
        assert answer.status == 200
        if code:
            assert b"first" in answer.readline()
        line.close()
    assert sandbox.value("1") == "1"
    assert time.monotonic() - began < 50


def test_contexts_have_their_own_variables(ann: Api) -> None:
    sandbox = ann.made()
    sandbox.run("own = 1")
    assert sandbox.value("let y = 6; y * 7", language="typescript") == "42"
    assert sandbox.value("y", language="javascript") == "6"
    sandbox.files("MakeDir", path="data")
    made = sandbox.call("POST", "/contexts", {"cwd": "data"}).json
    assert (made["language"], made["cwd"]) == ("python", "/home/user/data")
    assert sandbox.value("'own' in dir()", context_id=made["id"]) == "False"
    languages = [each["language"] for each in sandbox.call("GET", "/contexts").json]
    assert languages == ["python", "javascript", "python"]
    assert sandbox.call("POST", f"/contexts/{sandbox.name}/restart").status == 204
    assert sandbox.value("'own' in dir()") == "False"
    for _ in range(2):
        assert sandbox.value("import os; os.getcwd()", context_id=made["id"]) == made["cwd"]
        sandbox.call("POST", f"/contexts/{made['id']}/restart")
    assert sandbox.call("DELETE", f"/contexts/{made['id']}").status == 204
    assert "There is no context" in sandbox.refusal(
        404, "POST", "/execute", {"code": "1", "context_id": made["id"]}
    )
    assert sandbox.call("DELETE", f"/contexts/{sandbox.name}").status == 400


REFUSED_CODE = (
    ("/execute", {"code": "1", "language": "r"}, "Cells are Python"),
    ("/execute", {"code": "1", "env_vars": {"A=": "b"}}, "can't hold the variable"),
    ("/execute", {"code": 1}, "can't be read"),
    ("/execute", b"{", "can't be read"),
    ("/contexts", {"cwd": "/app/data"}, "can't begin in /app/data"),
)


def test_a_sandbox_is_described_listed_and_killed(server: HttpServer, ann: Api, bob: Api) -> None:
    before = time.time()
    one = ann.made(metadata={"user": "a b", "run": "1"}, timeout=100)
    two = ann.made(metadata={"user": "c"})
    facts = ann.call("GET", one.path).json
    assert facts["state"] == "running"
    assert facts["metadata"] == {"user": "a b", "run": "1"}
    assert facts["lifecycle"] == {"autoResume": False, "onTimeout": "kill"}
    assert facts["envdAccessToken"] == one.headers["X-Access-Token"]
    assert facts["startedAt"][:4] == time.strftime("%Y", time.gmtime(before))

    def named(query: str) -> list[str]:
        answer = ann.call("GET", f"/v2/sandboxes?{query}")
        return [each["sandboxID"] for each in answer.json]

    assert named("") == [two.name, one.name]
    assert named("order=asc") == [one.name, two.name]
    assert named("metadata=user%3Da%252520b") == [one.name]
    assert named("state=paused") == []
    first = ann.call("GET", "/v2/sandboxes?limit=1")
    assert [each["sandboxID"] for each in first.json] == [two.name]
    assert named(f"limit=1&nextToken={first.headers['x-next-token']}") == [one.name]
    assert bob.call("GET", "/v2/sandboxes").json == []
    assert Api(server.url, {"X-API-Key": ADMIN}).call("GET", one.path).status == 200
    assert "envdAccessToken" not in first.json[0]
    one.run("1")
    (metric,) = ann.call("GET", f"{one.path}/metrics").json
    assert metric["diskTotal"] == 4_000_000
    assert metric["memUsed"] > 0
    assert ann.call("DELETE", one.path).status == 204
    assert ann.call("DELETE", one.path).status == 404
    assert "was not found" in one.refusal(502, "GET", "/health")


def test_the_time_of_a_sandbox_ends_or_pauses_it_until_it_is_asked(ann: Api) -> None:
    sandbox = ann.made(timeout=600)
    assert ann.call("POST", f"{sandbox.path}/timeout", {"timeout": 1}).status == 204
    wait_for(lambda: sandbox.call("GET", "/health").status == 502)
    assert ann.call("GET", sandbox.path).status == 404
    assert "86400" in ann.refusal(
        400, "POST", "/sandboxes", {"templateID": "base", "timeout": 10**8}
    )
    sandbox = ann.made(timeout=600, autoPause=True, autoResume={"enabled": True})
    sandbox.run("x = 6")
    ann.call("POST", f"{sandbox.path}/timeout", {"timeout": 0})
    wait_for(lambda: ann.call("GET", sandbox.path).json["state"] == "paused")
    assert sandbox.value("x") == "6"
    assert ann.call("GET", sandbox.path).json["state"] == "running"


def test_a_paused_sandbox_wakes_with_its_variables(ann: Api) -> None:
    sandbox = ann.made()
    sandbox.run("x = 5")
    assert ann.call("POST", f"{sandbox.path}/pause", {}).status == 204
    assert ann.call("POST", f"{sandbox.path}/pause", {}).status == 409
    assert "it is paused" in sandbox.refusal(502, "POST", "/execute", {"code": "x"})
    assert ann.call("GET", sandbox.path).json["state"] == "paused"
    assert ann.call("POST", f"/v2{sandbox.path}/connect", {"timeout": 60}).status == 201
    assert sandbox.value("x") == "5"
    sandbox.upload("a.txt", b"1")
    assert ann.call("POST", f"{sandbox.path}/pause", {"memory": False}).status == 204
    ann.call("POST", f"{sandbox.path}/resume", {})
    assert sandbox.value("'x' in dir(), open('a.txt').read()") == "(False, '1')"


def test_a_new_sandbox_can_be_paused_and_one_that_runs_a_cell_can_not(ann: Api) -> None:
    assert ann.call("POST", f"{ann.made().path}/pause", {}).status == 204
    sandbox = ann.made()
    line = sandbox.begin("POST", "/execute", {"code": "print(1)\nwhile True: pass"})
    answer = line.getresponse()
    answer.readline()
    assert "A cell runs" in ann.refusal(503, "POST", f"{sandbox.path}/pause", {})
    assert ann.call("DELETE", sandbox.path).status == 204
    with pytest.raises(http.client.IncompleteRead):  # the sign of an answer cut off
        answer.read()
    line.close()


def test_a_fork_has_the_variables_and_files(ann: Api) -> None:
    sandbox = ann.made(metadata={"a": "b"})
    sandbox.run("x = 1; open('f.txt', 'w').write('f')")
    (made,) = ann.call("POST", f"{sandbox.path}/fork", {"count": 1, "timeout": 100}).json
    name, token = made["sandbox"]["sandboxID"], made["sandbox"]["envdAccessToken"]
    headers = {"E2b-Sandbox-Id": name, "X-Access-Token": token}
    body = {"code": "x += 1; (x, open('f.txt').read())"}
    notice, value, _ = sandbox.call("POST", "/execute", body, headers).lines
    assert (notice["type"], value["text"]) == ("stderr", "(2, 'f')")
    assert sandbox.value("x") == "1"


REFUSED_SANDBOXES: tuple[dict[str, Any], ...] = (
    {"templateID": "my-image"},
    {"templateID": "base", "mcp": {"a": {}}},
    {"templateID": "base", "volumeMounts": [{"name": "v", "path": "/v"}]},
    {"templateID": "base", "network": {"allowOut": ["a.com"]}},
    {"templateID": "base", "envVars": {"A=B": "c"}},
)


def test_sandboxes_and_code_that_are_not_here_are_refused_in_words(ann: Api) -> None:
    for asked in REFUSED_SANDBOXES:
        answer = ann.call("POST", "/v2/sandboxes", asked)
        assert (answer.status, answer.json["code"]) == (400, 400), asked
    assert ann.call("GET", "/v2/sandboxes").json == []
    sandbox = ann.made()
    for path, body, words in REFUSED_CODE:
        assert words in sandbox.refusal(400, "POST", path, body)


def command(
    sandbox: SandboxOf, script: str, headers: Mapping[str, str] | None = None, **more: Any
) -> list[dict[str, Any]]:
    """Runs a script, and returns the messages of the answer."""
    process = {"cmd": "/bin/bash", "args": ["-l", "-c", script], **more}
    content = json.dumps({"process": process}).encode()
    body = struct.pack(">BI", 0, len(content)) + content
    headers = {"Content-Type": "application/connect+json", **(headers or {})}
    answer = sandbox.call("POST", "/process.Process/Start", body, headers)
    assert answer.status == 200, answer.words
    found, left = [], answer.content
    while left:
        size = int.from_bytes(left[1:5], "big")
        found.append(json.loads(left[5 : 5 + size]))
        left = left[5 + size :]
    return found


def told(messages: list[dict[str, Any]]) -> tuple[bytes, bytes, int]:
    """Returns the output, the errors and the status of a command."""
    events = [each["event"] for each in messages[:-1]]
    assert "start" in events[0]
    data = [each["data"] for each in events[1:-1]]
    texts = [b"".join(b64decode(each.get(name, "")) for each in data) for name in STREAMS]
    return texts[0], texts[1], events[-1]["end"]["exitCode"]


def test_commands_run_in_the_shell_of_the_sandbox(ann: Api) -> None:
    sandbox = ann.made(envVars={"ONE": "1"})
    sandbox.upload("b/x.txt", b"1\n2\n")
    script = "cat b/x.txt | wc -l; echo $ONE $TWO; echo bad >&2; exit 4"
    assert told(command(sandbox, script, envs={"TWO": "2"})) == (b"2\n1 2\n", b"bad\n", 4)
    assert told(command(sandbox, "ls", cwd="/home/user/b")) == (b"x.txt\n", b"", 0)
    quoted = "'\"; import os #"
    assert told(command(sandbox, 'printf %s "$A"', envs={"A": quoted}))[0] == quoted.encode()
    assert told(command(sandbox, "sudo ls"))[2] == 127
    sandbox.run("x = 1")
    assert sandbox.value("x, In") == "(1, ['', 'x = 1', 'x, In'])"  # commands are not cells


def test_a_cell_has_variables_that_the_next_one_does_not_have(ann: Api) -> None:
    sandbox = ann.made(envVars={"ONE": "1"})
    envs = {"ONE": "one", "TWO": "it's 2"}
    asked = {
        "python": ("import os; print(os.environ['ONE'], os.environ.get('TWO'))", "1 None\n"),
        "javascript": ("`${process.env.ONE} ${process.env.TWO}`", "1 undefined"),
        "Bash": ("echo $ONE $TWO; pwd", "1\n/home/user\n"),
    }
    for language, (code, after) in asked.items():
        (line, *_) = sandbox.run(code, language=language, env_vars=envs)
        assert "one" in line["text"]
        assert "it's 2" in line["text"]
        (line, *_) = sandbox.run(code, language=language)
        assert line["text"] == after


def test_a_signal_ends_a_command(ann: Api) -> None:
    sandbox = ann.made()
    sandbox.run("1")
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(command, sandbox, "python -c 'while True: pass'")
        listed: list[dict[str, int]] = []
        headers = {"Content-Type": "application/json"}

        def runs() -> bool:
            listed[:] = sandbox.call("POST", "/process.Process/List", {}, headers).json["processes"]
            return bool(listed)

        wait_for(runs)
        ended = {"process": {"pid": listed[0]["pid"]}, "signal": "SIGNAL_SIGKILL"}
        assert sandbox.call("POST", "/process.Process/SendSignal", ended, headers).status == 200
        assert told(running.result())[2] == 130
    gone = sandbox.call("POST", "/process.Process/SendSignal", ended, headers)
    assert (gone.status, gone.json["code"]) == (404, "not_found")


def test_a_command_ends_when_the_time_of_its_client_is_over(ann: Api) -> None:
    sandbox = ann.made()
    sandbox.run("x = 1")
    *_, last = command(sandbox, "echo a; sleep 25", {"Connect-Timeout-Ms": "800"})
    assert last["error"]["code"] == "deadline_exceeded"
    assert sandbox.value("x") == "1"
    assert told(command(sandbox, "echo b", {"Connect-Timeout-Ms": "60000"})) == (b"b\n", b"", 0)


def test_terminals_and_watching_are_refused_in_words(ann: Api) -> None:
    sandbox = ann.made()
    stream = {"Content-Type": "application/connect+json"}
    watched = sandbox.call("POST", "/filesystem.Filesystem/WatchDir", b"", stream)
    assert watched.status == 200  # the protocol ends a stream with its error
    assert b'"unimplemented"' in watched.content
    assert b"can't be watched" in watched.content
    content = b'{"process": {"cmd": "bash"}, "pty": {}}'
    body = struct.pack(">BI", 0, len(content)) + content
    terminal = sandbox.call("POST", "/process.Process/Start", body, stream)
    assert b"no terminal" in terminal.content
    assert sandbox.call("POST", "/process.Process/Start", b"\1\0\0\0\1x", stream).status == 400
    plain = {"Content-Type": "application/json"}
    sent = sandbox.call("POST", "/process.Process/SendInput", {}, plain)
    assert (sent.status, sent.json["code"]) == (501, "unimplemented")
    assert "There is no such call here" in ann.refusal(404, "GET", "/templates")


def test_the_description_names_all_calls(ann: Api) -> None:
    page = ann.call("GET", "/openapi.json").json
    assert page["openapi"] == "3.1.0"
    assert {"/v2/sandboxes", "/execute", "/files", "/filesystem.Filesystem/Stat"} <= {
        *page["paths"]
    }
    assert "templateID" in page["components"]["schemas"]["NewSandbox"]["properties"]
    listing = page["paths"]["/v2/sandboxes"]["get"]
    assert {"metadata", "nextToken"} <= {each["name"] for each in listing["parameters"]}
    refused = listing["responses"]["default"]["content"]["application/json"]["schema"]
    assert refused["$ref"].endswith("/Error")
