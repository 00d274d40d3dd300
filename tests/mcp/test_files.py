"""The tools for files and sessions, called like a model does."""

from __future__ import annotations

import base64
import json
import re
import uuid
from contextlib import ExitStack
from pathlib import Path

import pytest
from mcp.shared.exceptions import MCPError

from tests.mcp.clients import Agent, Agents
from wasm_kernel import write_session_file


def test_files_come_in_and_go_out(stdio: Agent) -> None:
    assert not stdio.call("write_file", path="in/data.csv", content="a,b\n1,2\n").failed
    assert stdio.says("open('in/data.csv').read()") == "'a,b\\n1,2\\n'"
    for pattern in ("**/*.csv", "in", "/app/in/", "/app", ".", ""):
        assert "in/data.csv" in stdio.call("list_files", pattern=pattern, session="").text
    assert stdio.call("read_file", path="/app/in/data.csv").text == "a,b\n1,2\n"
    data = base64.b64encode(b"\x00\xff").decode()
    stdio.call("write_file", path="raw.bin", content=data, encoding="base64")
    assert "not a text" in stdio.call("read_file", path="raw.bin").text
    assert stdio.call("read_file", path="raw.bin", encoding="base64").text == data
    assert not stdio.call("delete_file", path="in", recursive=True).failed
    assert "no such file" in stdio.call("list_files", pattern="in/*").text


def test_a_long_text_comes_in_parts(stdio: Agent) -> None:
    stdio.call("write_file", path="long.txt", content="x" * 30_000)
    assert "offset=20000" in stdio.call("read_file", path="long.txt").text
    rest = stdio.call("read_file", path="long.txt", offset=20_000).text
    assert rest == "x" * 10_000


def test_no_path_leads_out_of_a_session(stdio: Agent) -> None:
    stdio.says("1")
    handle = stdio.call("list_sessions").handle
    outer = ("../x", "/etc/passwd", "a/../../x", ".metadata.json", "\x00", "..\\x", "/app/../x")
    calls: dict[str, dict[str, object]] = {"read_file": {}, "write_file": {"content": "x"}}
    calls["delete_file"] = {"recursive": True}
    for path in outer:
        for tool, more in calls.items():
            answer = stdio.call(tool, path=path, **more)
            assert answer.failed, (tool, path)
            assert "/root" not in answer.text
            assert "sessions/" not in answer.text
        with pytest.raises(MCPError):
            stdio.ask("read_resource", f"workspace://{handle}/{path}")


def test_wrong_arguments_are_refused_in_words(stdio: Agent) -> None:
    assert "there are: code" in stdio.call("execute_code", code="1", timeout=5).text
    assert "code" in stdio.call("execute_code").text
    assert "python" in stdio.call("execute_code", code="1", language="cobol").text
    assert "base64" in stdio.call("write_file", path="x", content="?", encoding="base64").text
    answer = stdio.call("read_file", path="nothing.txt")
    assert answer.failed
    assert "nothing.txt" in answer.text


def test_files_of_the_host_count_too_and_stay_if_they_are_kept(
    agents: Agents, tmp_path: Path
) -> None:
    policy, folder = tmp_path / "policy.toml", tmp_path / "kept"
    policy.write_text("workspace_bytes = 1_000_000\nworkspace_files = 10\n")
    options = ("--policy", str(policy), "--workspace", str(folder), "--keep")
    with ExitStack() as leaving:
        agent = Agents(agents.environment, leaving).stdio(*options)
        for number in range(3):
            assert not agent.call("write_file", path=f"{number}.txt", content="x" * 300_000).failed
        refused = agent.call("write_file", path="last.txt", content="x" * 300_000)
        assert refused.failed
        assert "may be 10 and take 976.6 KiB" in refused.text
        cut = agent.call("execute_code", code="print('y' * 150_000)")
        assert "could not be saved" in cut.text
        assert agent.says("1 + 1") == "2"
        assert not agent.call("write_file", path="0.txt", content="y" * 300_000).failed
        for name in ("1.txt", "2.txt"):
            agent.call("delete_file", path=name)
        calls = [agent.begin("write_file", path=f"{n}", content="x" * 300_000) for n in range(9)]
        assert sum(not call.result().is_error for call in calls) == 2  # no more have room
    assert len([*folder.glob("*/[!.]*")]) == 3


def test_history_is_taken_back_and_forked(stdio: Agent) -> None:
    stdio.says("n = 1")
    stdio.call("checkpoint", name="one")
    stdio.says("n = 2")
    stdio.says("n = 3; open('three', 'w').close()")
    undone = stdio.call("undo").text
    assert "n = 3" in undone
    assert "Files that stay as they are: three. Run the cell %restore --files to" in undone
    assert "1 removed (three)" in stdio.call("execute_code", code="%restore --files").text
    refused = stdio.call("execute_code", code="new = %fork")
    assert "fork_session" in refused.text  # no tool could reach the fork
    assert stdio.says("n") == "2"
    fork = stdio.call("fork_session").handle
    stdio.says("n += 40", session=fork)
    assert stdio.says("n", session=fork) == "42"
    assert stdio.says("n") == "2"
    stdio.call("restore", name="one")
    assert stdio.says("n") == "1"
    assert "no" in stdio.call("restore", name="nowhere").text
    number = stdio.call("execute_code", code="n = 7").text.split("cell ")[1].split()[0]
    stdio.says("n = 8")
    assert not stdio.call("restore", name=int(number)).failed
    assert stdio.says("n") == "7"
    stdio.call("destroy_session", session=fork)


def test_a_new_session_follows_on_one_that_was_reset_or_destroyed(stdio: Agent) -> None:
    stdio.says("open('kept.txt', 'w').write('x'); gone = 1")
    stdio.call("reset_session")
    assert "NameError" in stdio.call("execute_code", code="gone").text
    assert "kept.txt" in stdio.call("list_files").text
    page = "from IPython.display import HTML, display\ndisplay(HTML('<i></i>'))"
    saved = []
    for _ in range(2):
        stdio.call("reset_session")  # numbers of cells begin again
        saved += re.findall(r"/app/(\S+\.html)", stdio.call("execute_code", code=page).text)
    assert len({*saved}) == 2
    assert all(name in stdio.call("list_files").text for name in saved)
    stdio.call("destroy_session")
    assert "No files yet" in stdio.call("list_files").text
    assert not stdio.says("import os; os.listdir()").strip("[]")


def test_packages_that_cannot_be_installed_name_what_is_there(stdio: Agent) -> None:
    assert "without options" in stdio.call("install_packages", packages=["--index-url", "x"]).text
    runtimes = stdio.call("list_runtimes").text
    assert "python: Python 3" in runtimes
    assert "pandas" in runtimes
    assert "numpy" in stdio.call("install_packages", packages=["numpy"]).text
    other = stdio.call("create_session", language="typescript").handle
    refused = stdio.call("install_packages", packages=["Not/A/Name"], session=other)
    assert "not the name of a package, such as lodash" in refused.text
    stdio.call("destroy_session", session=other)


def test_tools_tell_what_they_do(stdio: Agent) -> None:
    tools = {each.name: each for each in stdio.ask("list_tools").tools}
    assert len(tools) == 18
    assert tools["list_files"].annotations.read_only_hint
    assert tools["destroy_session"].annotations.destructive_hint
    assert all(each.output_schema is None for each in tools.values())
    assert all(len(each.description) < 400 for each in tools.values())
    assert len(stdio.client.instructions or "") < 2000
    shown = [
        each.model_dump(mode="json", by_alias=True, exclude_none=True) for each in tools.values()
    ]
    assert len(json.dumps(shown, separators=(",", ":"))) < 6_300  # each conversation has them
    languages = ["python", "javascript", "typescript"]
    named = [each.input_schema["properties"].get("language") for each in tools.values()]
    assert {"type": "string", "enum": languages} in named


def test_folders_of_a_policy_are_told_of_listed_and_read(
    agents: Agents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, rest = tmp_path / "data", tmp_path / "rest"
    others = rest / "sessions"
    monkeypatch.setenv("XDG_STATE_HOME", agents.environment["XDG_STATE_HOME"])
    write_session_file(str(uuid.uuid4()), "theirs.txt", b"x", others)
    (data / "in").mkdir(parents=True)
    (data / "in" / "a.csv").write_text("a,b\n1,2\n")
    (data / "out").symlink_to("/etc")
    policy = tmp_path / "policy.toml"
    policy.write_text('mounts = ["data:/data"]\n')
    agent = agents.stdio("--policy", str(policy), "--mount", f"{rest}:/rest:rw")
    assert "/data (read-only), /rest (writable)" in (agent.client.instructions or "")
    for pattern in ("/data", "/data/in/", "/data/*/*.csv"):
        assert agent.call("list_files", pattern=pattern).text == "/data/in/a.csv"
    assert agent.call("read_file", path="/data/in/a.csv").text == "a,b\n1,2\n"
    assert agent.says("open('/data/in/a.csv').read()") == "'a,b\\n1,2\\n'"
    assert "/data (read-only)" in agent.call("get_workspace_info").text
    refused = [agent.call("write_file", path="/data/x", content="x")]
    refused.append(agent.call("delete_file", path="/data/in/a.csv"))
    assert all("/app alone" in each.text for each in refused)
    hidden = [f"/rest/sessions/{each.name}/theirs.txt" for each in others.iterdir()]
    assert hidden
    for path in (*hidden, "/data/out/hostname", "/data/../data/in/none", "/data/in"):
        assert agent.call("read_file", path=path).failed
    for folder in ("/rest", "/rest/sessions", "/data/out"):
        assert "theirs.txt" not in agent.call("list_files", pattern=folder).text
