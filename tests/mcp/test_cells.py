"""A model's view of its cells, over stdio; the same code makes it over HTTP."""

from __future__ import annotations

import base64
import json
import re
import struct
import uuid
from contextlib import ExitStack
from pathlib import Path

import pytest
from mcp.shared.exceptions import MCPError

from tests.faces import wait_for
from tests.mcp.clients import Agent, Agents
from tests.network.servers import serving
from wasm_kernel import write_session_file

TOOLS = """\
from textwrap import dedent

print("imported")

async def rate(currency: str = "EUR") -> float:
    '''Returns a rate.

    It is not today's.'''
    print("called")
    return 1.5

def _hidden(): ...
"""


def size_of(png: str) -> tuple[int, int]:
    width, height = struct.unpack(">II", base64.b64decode(png)[16:24])
    return width, height


def test_streams_are_marked_and_the_last_value_or_table_is_shown_as_text(stdio: Agent) -> None:
    answer = stdio.call(
        "execute_code", code="import sys; print('a'); print('b', file=sys.stderr); 6*7"
    )
    assert "[stdout]\na\n[stderr]\nb\n[result]\n42\n[cell " in answer.text
    assert "no output" in stdio.call("execute_code", code="x = 1").text
    assert stdio.begin("execute_code", code="1").result().structured_content is None
    assert "[help]\nSignature: print(" in stdio.call("execute_code", code="print?").text
    said = stdio.says("import pandas as pd; pd.DataFrame({'a': [1, 2], 'b': ['x', 'y']})")
    assert said.split() == ["a", "b", "0", "1", "x", "1", "2", "y"]
    styled = stdio.call("execute_code", code="pd.DataFrame({'a': [1]}).style")
    assert "text/html, saved as" in styled.text
    assert "0x" not in styled.text


def test_errors_have_a_traceback_a_hint_and_the_things_that_are_not_there(stdio: Agent) -> None:
    answer = stdio.fails("def f(): open('nowhere.csv')\nf()")
    assert "FileNotFoundError" in answer
    assert "in f()" in answer
    assert "write_file" in answer
    assert "\x1b" not in answer
    assert "notebook" not in answer
    network = stdio.call("execute_code", code="import urllib.request as u; u.urlopen('http://a.b')")
    assert "network" in network.text
    missing = stdio.call("execute_code", code="import torch")
    assert "torch" in missing.text
    assert "install_packages" not in missing.text  # the tool can't install this package
    missing = stdio.call("execute_code", code="import nonesuch")
    assert "install_packages" in missing.text


def test_a_figure_is_shown_and_saved_a_large_one_smaller_than_it_is_saved(stdio: Agent) -> None:
    code = "import matplotlib.pyplot as p; p.figure(figsize=({}, 1), dpi=100); _ = p.plot([1])"
    for inches, width in ((4, 0), (22, 1568)):
        answer = stdio.call("execute_code", code=code.format(inches))
        (image,) = answer.images
        assert image.mime_type == "image/png"
        saved = stdio.ask("read_resource", answer.links[0].uri).contents[0].blob
        assert (image.data == saved) == (not width)
        assert not width or max(size_of(image.data)) == width < max(size_of(saved))


def test_long_output_is_cut_in_the_reply_and_whole_in_a_file(stdio: Agent) -> None:
    answer = stdio.call("execute_code", code="for i in range(9_000): print('line', i)")
    assert len(answer.text) < 25_000
    assert "line 0\n" in answer.text
    assert "line 8999" in answer.text
    path = answer.links[0].name
    assert path in answer.text
    assert stdio.says(f"text = open({path!r}).read(); print(text.count('line'))") == "9000"
    marks = stdio.call("execute_code", code="print(',' * 50_000)\n'[' * 50_000")
    assert "30,001 characters left out" in marks.text  # a single text, not a list of values
    assert "30,002 characters left out" in marks.text


def test_many_displays_are_bounded_and_half_characters_break_no_reply(stdio: Agent) -> None:
    code = "from IPython.display import display\nfor i in range(100): display('x' * 5_000)"
    answer = stdio.call("execute_code", code=code)
    assert len(answer.text) < 70_000
    (link,) = answer.links
    assert len(stdio.ask("read_resource", link.uri).contents[0].text) > 400_000
    code = "from IPython.display import display; display({'text/plain': 'a\\ud800b'}, raw=True)"
    assert "[display]\na?b" in stdio.call("execute_code", code=code).text
    answer = stdio.call("execute_code", code="print('\\udcff' if False else 'fine'); '\\ud800'")
    assert "fine" in answer.text
    stdio.call("execute_code", code="open(b'\\xff.txt', 'w').close()")
    assert not stdio.call("list_files").failed
    assert "KeyError" in stdio.call("execute_code", code="raise KeyError('\\ud800')").text


def test_invalid_and_too_large_pictures_are_not_shown(stdio: Agent) -> None:
    code = (
        "from IPython.display import display, Image\ndisplay(Image(data=b'x' * 50, format='png'))"
    )
    answer = stdio.call("execute_code", code=code)
    assert not answer.images
    assert "can't be shown" in answer.text
    stdio.call("write_file", path="a.png", content="no image")
    assert not stdio.call("read_file", path="a.png").images
    for width, shown in ((9000, 0), (900, 1)):
        head = b"\xff\xd8\xff\xe0\x00\x04ab\xff\xc0\x00\x11\x08" + struct.pack(">HH", 600, width)
        data = base64.b64encode(head + b"\x03" * 10 + b"\xff\xd9").decode()
        stdio.call("write_file", path="a.jpg", content=data, encoding="base64")
        assert len(stdio.call("read_file", path="a.jpg").images) == shown
    code = "from PIL import Image; Image.new('RGB', (2400, 600)).save('a.jpg')"
    stdio.call("execute_code", code=code)
    (smaller,) = stdio.call("read_file", path="a.jpg").images
    assert max(size_of(smaller.data)) == 1568


def test_changed_files_are_named_and_linked(stdio: Agent) -> None:
    answer = stdio.call("execute_code", code="open('made.csv', 'w').write('a,b'); None")
    assert "created made.csv" in answer.text
    (link,) = answer.links
    assert stdio.ask("read_resource", link.uri).contents[0].text == "a,b"
    assert link.uri in [str(each.uri) for each in stdio.ask("list_resources").resources]


def test_a_long_cell_tells_how_far_it_is_and_can_be_cancelled(stdio: Agent) -> None:
    stdio.says("kept = 5")
    heard: list[str] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message or "")

    code = "import time\nkept = 6\nprint('half way', flush=True)\ntime.sleep(300)"
    call = stdio.begin("execute_code", hear, code=code)
    wait_for(lambda: any("half way" in each for each in heard), "progress")
    call.cancel()
    assert stdio.says("print(kept)") == "6"


def test_a_running_cell_is_ended_by_another_call_and_info_answers_during_it(stdio: Agent) -> None:
    stdio.says("before = [1, 2, 3]")
    call = stdio.begin("execute_code", code="import time; time.sleep(300)")
    wait_for(lambda: "busy" in stdio.call("list_sessions").text)
    info = stdio.call("get_workspace_info").text
    assert "before: list (3 items)" in info
    assert "as of the last cell" in info
    assert "A cell runs" in stdio.call("undo").text
    assert "interrupted" in stdio.call("cancel_execution").text
    assert "KeyboardInterrupt" in call.result().content[0].text
    assert stdio.says("print(before)") == "[1, 2, 3]"


def test_a_time_limit_keeps_variables(stdio: Agent) -> None:
    stdio.says("kept = 7")
    answer = stdio.fails("kept = 8\nwhile True: pass", timeout_seconds=1)
    assert "CellTimeout" in answer
    assert "The variables are as they were before this cell" in answer
    assert stdio.says("print(kept)") == "7"
    assert "timeout_seconds" in stdio.call("execute_code", code="1", timeout_seconds=-1).text
    late = stdio.call("execute_code", code="kept", timeout_seconds=100_000)
    assert "600 seconds here" in late.text.splitlines()[0]
    assert "[result]\n7" in late.text


def test_advice_is_what_an_agent_can_do(agents: Agents, tmp_path: Path) -> None:
    """An agent can set nothing, so no sentence names a setting of kernels or programs."""
    policy = tmp_path / "policy.toml"
    policy.write_text("workspace_bytes = 1_000_000\nstdout_bytes = 1_000\ndisplay_count = 1\n")
    options = ("--sessions", "1", "--output-characters", "1000")
    agent = agents.stdio("--policy", str(policy), *options)
    answer = agent.call("execute_code", code="'y' * 5_000")
    assert 1_000 < len(answer.text) < 1_500
    assert "all of it is in /app/outputs" in answer.text
    assert "offset=1000" in agent.call("read_file", path=answer.links[0].name).text
    show = "from IPython.display import display; display(1); display(2)"
    said = [
        agent.call("execute_code", code=code).text
        for code in (
            "open('/nowhere/data.csv')",
            "open('large', 'wb').write(b'x' * 2_000_000)",
            "print('x' * 2_000)",
            "__import__('os')._exit(3)",
            show,
        )
    ]
    said.append(agent.call("create_session").text)
    for text in said:
        assert not re.search(r"WasmKernel|Raise|raise |notebook|_bytes|_count|policy\.", text), text
    assert "write_file brings a file in" in said[0]
    assert "Delete what you no longer need" in said[1]
    assert "list_sessions shows yours" in said[-1]


def test_each_language_has_a_session_that_calls_can_name(stdio: Agent) -> None:
    """Formerly, files went to the language of the last cell."""
    stdio.says("x = 'python'")
    javascript = stdio.call("execute_code", code="let x = 'javascript'; x", language="ts")
    assert "of your javascript session" in javascript.text
    assert "in your javascript session" in stdio.call("write_file", path="b", content="1").text
    written = stdio.call("write_file", path="a.csv", content="1", language="python")
    assert "in your python session" in written.text
    assert stdio.says("import os; [os.path.exists(each) for each in ('a.csv', 'b')]") == (
        "[True, False]"
    )
    listed = stdio.call("list_files", language="python").text.splitlines()
    assert listed[0] == "In your python session:"
    assert "a.csv" in listed
    stdio.says("x", language="javascript")
    for tool in ("read_file", "delete_file"):
        assert "in your javascript session" in stdio.call(tool, path="a.csv").text
    assert "in your javascript session" in stdio.call("list_files", pattern="a.csv").text
    assert "let x" in stdio.call("undo", cells=2, language="javascript").text
    assert stdio.says("x") == "'python'"
    handles = re.findall(r'session="([\w-]+)": automatic, (\w+)', stdio.call("list_sessions").text)
    named = {language: handle for handle, language in handles}
    for tool, arguments in (("execute_code", {"code": "x"}), ("checkpoint", {"name": "a"})):
        language = {"language": "python", "session": named["javascript"]}
        refused = stdio.call(tool, **arguments, **language)
        assert refused.failed
        assert "runs javascript, not python" in refused.text
    stdio.call("destroy_session", language="javascript")


def test_functions_of_the_operator_are_described_to_the_model_and_requests_are_counted(
    agents: Agents, tmp_path: Path
) -> None:
    file = tmp_path / "tools.py"
    file.write_text(TOOLS)
    with serving() as server:
        named = ("--functions", str(file), "--functions", "textwrap:shorten")
        agent = agents.stdio("--network", server.url, *named)
        tools = {each.name: each.description for each in agent.ask("list_tools").tools}
        assert tools["execute_code"].endswith(
            "await rate(currency: str = 'EUR') -> float: Returns a rate.\n"
            "shorten(text, width, **kwargs): Collapse and truncate the given text to fit in the "
            "given width."
        )
        assert agent.says("print(await rate(), shorten('many words', 7))") == "1.5 [...]"
        assert agent.call("execute_code", code="_hidden()").failed
        agent.says(f"import urllib.request as u; u.urlopen('{server.url}/csv').read()")
        assert "(1 requests so far, " in agent.call("get_workspace_info").text
        assert "1 requests to the network" in agent.call("list_sessions").text


def test_the_content_of_a_session_is_told_with_times_and_names(stdio: Agent) -> None:
    stdio.says("import math as mm, json; import os.path; from os import path; n = 1")
    info = stdio.call("get_workspace_info").text
    assert stdio.call("list_sessions").handle in info.splitlines()[0]
    assert re.search(r"made 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC", info)
    assert re.search(r"import math as mm, json.* -> ok, .* s, at \d\d:\d\d:\d\d", info)
    assert "math as mm" in info
    assert re.search(r"imported: .*\bjson\b(?! as)", info)
    listed = stdio.call("list_active_sessions").text
    assert re.search(r'session="[\w-]+" of process: .* disk \d', listed)
    assert not stdio.call("get_workspace_info", session=re.findall(r'"([\w-]+)"', listed)[0]).failed


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


def test_a_long_text_comes_in_parts_and_wrong_arguments_are_refused(stdio: Agent) -> None:
    stdio.call("write_file", path="long.txt", content="x" * 30_000)
    assert "offset=20000" in stdio.call("read_file", path="long.txt").text
    rest = stdio.call("read_file", path="long.txt", offset=20_000).text
    assert rest == "x" * 10_000
    assert "there are: code" in stdio.call("execute_code", code="1", timeout=5).text
    assert "code" in stdio.call("execute_code").text
    assert "python" in stdio.call("execute_code", code="1", language="cobol").text
    assert "base64" in stdio.call("write_file", path="x", content="?", encoding="base64").text
    answer = stdio.call("read_file", path="nothing.txt")
    assert answer.failed
    assert "nothing.txt" in answer.text


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


def test_files_of_the_host_count_too_and_stay_if_kept(agents: Agents, tmp_path: Path) -> None:
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
