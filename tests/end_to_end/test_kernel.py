"""The kernel's side of the protocol, over real sockets."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from queue import Empty
from typing import Any

import pytest
import zmq
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.jsonutil import json_default

from tests.end_to_end.conftest import ROOT, SLOW, Starting
from tests.end_to_end.real_kernel import SECONDS, RealKernel
from tests.faces import completed, wait_for
from tests.ports import write_connection
from tests.sampled import sampled

LATER = (
    "import os, time\nwhile not os.path.exists('/app/go'): time.sleep(0.01)\nos.remove('/app/go')\n"
)
"""A cell that waits until the test has sent the messages behind it."""


def go(kernel: RealKernel) -> None:
    """Lets `LATER` end, when the messages behind it have come."""
    (workspace,) = kernel.sessions.iterdir()
    time.sleep(0.3)
    (workspace / "go").touch()


def spinning(kernel: RealKernel) -> str:
    """Sends a cell that computes without end; returns its message's id when it runs."""
    sent = kernel.send("print('on', flush=True)\nwhile True: pass")
    kernel.hear("stream")
    return sent


def ended(kernel: RealKernel) -> None:
    """Waits for the process to end by itself."""
    wait_for(lambda: not kernel.manager.is_alive(), "the kernel's end")


def test_a_failed_cell_aborts_those_sent_behind_it_but_no_comm_message(kernel: RealKernel) -> None:
    kernel.run("import ipywidgets as w; s = w.IntSlider(model_id='a1')")
    first = kernel.send(f"{LATER}1/0")
    behind = [kernel.send("pass") for _ in range(5)]
    kernel.comm("msg", "a1", {"method": "update", "state": {"value": 7}, "buffer_paths": []})
    go(kernel)
    assert kernel.reply(first)["status"] == "error"
    assert [kernel.reply(sent)["status"] for sent in behind] == ["aborted"] * 5
    assert kernel.run("s.value").value == "7"
    first = kernel.send(f"{LATER}1/0", stop_on_error=False)
    second = kernel.send("pass")
    go(kernel)
    assert [kernel.reply(sent)["status"] for sent in (first, second)] == ["error", "ok"]


def test_a_kernel_answers_and_is_interrupted_while_a_cell_computes(kernel: RealKernel) -> None:
    sent = spinning(kernel)
    assert kernel.control("kernel_info_request", {})["implementation"] == "wasm-kernel"
    assert kernel.control("create_subshell_request", {})["status"] == "error"
    assert kernel.client.is_alive()
    assert kernel.control("interrupt_request", {})["status"] == "ok"
    assert kernel.reply(sent)["ename"] == "KeyboardInterrupt"
    os.kill(kernel.pid, signal.SIGINT)
    kernel.run("pass")  # the signal ends this cell, or comes before it and ends none
    assert kernel.run("1").value == "1"


def test_no_stale_answer_is_taken_and_a_lost_guest_gets_none(kernel: RealKernel) -> None:
    kernel.client.input("stale")
    sent = kernel.send("import time; time.sleep(0.3)\nname = input()", allow_stdin=True)
    kernel.client.get_stdin_msg(timeout=SECONDS)
    kernel.client.input("fresh")
    kernel.reply(sent)
    assert kernel.run("name").value == "'fresh'"
    kernel.run("import os\nclass Ends:\n    def __dir__(self): os._exit(3)\nends = Ends()")
    assert kernel.reply(kernel.client.complete("ends.", 5))["matches"] == []
    assert kernel.run("1").value == "1"


def test_silent_cell_shows_nothing_and_only_cells_of_the_history_count(kernel: RealKernel) -> None:
    assert kernel.run("1", silent=True).value == ""
    first, _, last = (
        kernel.run("1", store_history=stays).reply["execution_count"]
        for stays in (True, False, True)
    )
    assert last == first + 1


def test_lone_surrogates_are_answered(kernel: RealKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    # no client sends such a message, but JSON's escapes can carry it
    with monkeypatch.context() as patch:
        plain = lambda message: json.dumps(message, default=json_default).encode()  # noqa: E731
        patch.setattr(kernel.client.session, "pack", plain)
        sent = kernel.send("x = '\ud800'")
    assert kernel.reply(sent)["status"] in ("ok", "error")


def test_while_the_guest_starts_the_kernel_tells_of_itself_and_of_the_start(
    start: Starting, tmp_path: Path
) -> None:
    kernel = start(name="wasm-slow", variables={"SLOW_START": str(tmp_path / "go")})
    opened = kernel.comm("open", "c1", {}, target_name="jupyter.widget.control")
    # a page does not wait for its widgets
    assert kernel.heard(opened).of("comm_close") == [{"comm_id": "c1", "data": {}}]
    interrupted = kernel.send("pass")
    line = kernel.hear("stream")["text"]
    assert re.match(r"\r\[wasm-kernel\] compiling the guest \([1-9]\d* s so far\)", line)
    kernel.control("interrupt_request", {})
    assert kernel.reply(interrupted)["ename"] == "KeyboardInterrupt"
    heard = kernel.heard(interrupted)
    assert heard.kinds[-3:] == ["clear_output", "error", "status"]
    [error] = heard.of("error")
    assert error["evalue"].endswith("goes on getting ready; run the cell again.")
    sent = kernel.send("print('ran')")
    kernel.hear("stream")
    (tmp_path / "go").touch()
    kernel.reply(sent)
    shown = kernel.heard(sent).kinds
    assert shown[shown.index("clear_output") :] == ["clear_output", "stream", "status"]


def test_questions_are_answered_while_cells_await_a_start(start: Starting, tmp_path: Path) -> None:
    kernel = start(name="wasm-slow", variables={"SLOW_START": str(tmp_path / "go")})
    kc, asked = kernel.client, {}
    cell = kernel.send("print('ran')")  # the first cell, from a page that was open before
    asked["language_info"] = kc.kernel_info()
    asked["history"] = kc.history()
    asked["comms"] = kc.comm_info()
    asked["matches"] = kc.complete("pri")
    asked["found"] = kc.inspect("print")
    replies = {name: kernel.reply(sent)[name] for name, sent in asked.items()}
    assert replies.pop("language_info")["name"] == "python"
    assert replies == {"history": [], "comms": {}, "matches": [], "found": False}
    assert kernel.reply(kc.is_complete("for x in y:"))["status"] == "unknown"
    state = ""
    while (message := kc.get_iopub_msg(timeout=SECONDS))["msg_type"] != "stream":
        state = message["content"].get("execution_state", state)
    assert state == "busy"  # despite all the answers
    other = kc.session.msg("execute_request", {"code": "pass", "silent": False})
    other["header"]["session"] = "a page that was loaded anew"
    kc.session.send(kc.shell_channel.socket, other)
    told = ""
    while told != other["header"]["session"]:  # the pages are told in turn
        told = kc.get_iopub_msg(timeout=SECONDS)["parent_header"].get("session")
    (tmp_path / "go").touch()
    assert kernel.reply(cell)["status"] == "ok"


def test_shutdown_ends_a_kernel_whose_cell_computes_and_nothing_is_said(
    start: Starting, tmp_path: Path
) -> None:
    kernel = start(log=tmp_path / "said")
    spinning(kernel)
    assert kernel.control("shutdown_request", {"restart": False})["status"] == "ok"
    ended(kernel)
    assert (tmp_path / "said").read_bytes() == b""


def test_exit_ends_the_kernel_after_its_reply(start: Starting) -> None:
    kernel = start()
    payload = [{"source": "ask_exit", "keepkernel": False}]
    assert kernel.reply(kernel.send("exit"))["payload"] == payload
    ended(kernel)


def test_settings_hold_without_a_word(start: Starting, tmp_path: Path) -> None:
    (tmp_path / "jupyter_wasm_kernel_config.py").write_text("c.WasmKernel.env = {'A': 'file'}\n")
    of_ipython = ("--HistoryManager.hist_file=:memory:", "--profile-dir", "somewhere")
    kernel = start(
        words=(*of_ipython, "--IPKernelApp.quiet=True"),  # options that other kernels know
        variables={"JUPYTER_CONFIG_DIR": str(tmp_path)},
        log=tmp_path / "said",
        cell_timeout="0",
        stdout_bytes="5",
        session_id="mine",
    )
    assert kernel.run("import os; os.environ['A']").value == "'file'"
    assert kernel.run("print('x' * 99)").stdout.startswith("xxxxx\n")
    assert [path.name for path in kernel.sessions.iterdir()] == ["mine"]
    assert (tmp_path / "said").read_bytes() == b""


BAD_SETTINGS = {
    "--WasmKernel.cell_timeout=soon": ("cell_timeout", "'soon'", "argv"),
    "--WasmKernel.cell_timout=5": ("Is cell_timeout meant? The setting", "argv"),
    "--WasmKernel.workspace_root=/proc/x": ("Set workspace_root to", "argv"),
    "--WasmKernel.policy_file=/none.toml": ("file names none.toml, which", "argv"),
    "--WasmKernel.mounts=/:/x": ("mounts /x can't be a folder", "argv"),
    "--loud": ("command line can't be read",),
    "--WasmKernel.session_id=../x": ("session id", "argv"),
}


@pytest.mark.parametrize("argument", sampled({name: name for name in BAD_SETTINGS}, 7))
def test_a_bad_setting_is_the_error_of_each_cell_and_touches_no_session(
    start: Starting, tmp_path: Path, argument: str
) -> None:
    kernel = start(words=[argument], log=tmp_path / "said")
    assert kernel.reply(kernel.client.history())["history"] == []
    for _ in range(2):
        shown = kernel.run("print('ran')")
        assert shown.reply["ename"] == "KernelNotStarted"
        assert all(part in shown.reply["evalue"] for part in BAD_SETTINGS[argument])
        assert shown.kinds == ["status", "execute_input", "error", "status"]
    assert kernel.control("shutdown_request", {"restart": False})["status"] == "ok"
    ended(kernel)
    assert f"wasm-kernel: {shown.reply['evalue'][:40]}" in (tmp_path / "said").read_text()
    assert not kernel.sessions.exists()


def test_an_unreadable_config_file_is_told_in_the_cell(start: Starting, tmp_path: Path) -> None:
    file = tmp_path / "jupyter_wasm_kernel_config.py"
    file.write_text("c.WasmKernel.env = = {'A': 'file'}\n")
    kernel = start(variables={"JUPYTER_CONFIG_DIR": str(tmp_path)})
    assert "jupyter_wasm_kernel_config.py, line 1" in kernel.run("1").reply["evalue"]
    file.write_text("c.WasmKernel.env = {'A': 'file'}\n")
    kernel.restart()  # a restart reads it again
    assert kernel.run("import os; os.environ['A']").value == "'file'"


def test_without_a_front_end_a_start_that_fails_ends_with_one_line(tmp_path: Path) -> None:
    far = ["--transport=ipc", f"--ip={tmp_path / ('x' * 100)}"]
    wrong = {"cell_timeout": ["--WasmKernel.cell_timeout=soon"]}
    for words, options in (wrong | {"can't listen on its shell channel": far}).items():
        done = completed(
            [sys.executable, "-m", "wasm_kernel", "-f", str(tmp_path / "k.json"), *options],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert words in done.stderr


def test_a_client_whose_iopub_connection_comes_up_late_misses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "late.json"
    write_connection(path)
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, *SLOW, "-f", str(path)], env=environ) as process:
        client: Any = BlockingKernelClient(connection_file=str(path))
        client.load_connection_file()
        try:
            client.start_channels(shell=False, iopub=False, stdin=False, hb=False, control=True)
            client.control_channel.send(client.session.msg("kernel_info_request"))
            client.get_control_msg(timeout=SECONDS)  # the connection is up
            client.start_channels(shell=True, iopub=False, stdin=False, hb=False, control=False)
            sent = client.execute("pass")
            time.sleep(0.2)
            client.start_channels(shell=False, iopub=True, stdin=False, hb=False, control=False)
            while (message := client.get_iopub_msg(timeout=SECONDS))["msg_type"] != "execute_input":
                pass
            assert message["parent_header"]["msg_id"] == sent
        finally:
            client.stop_channels()
            process.terminate()


def test_only_a_client_with_the_curve_keys_is_heard(tmp_path: Path) -> None:
    public, secret = zmq.curve_keypair()
    path = tmp_path / "curve.json"
    write_connection(path, curve_publickey=public, curve_secretkey=secret)
    command = [sys.executable, "-m", "wasm_kernel", "-f", str(path)]
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)}) as process:
        try:
            assert answered(path, SECONDS)
            facts = json.loads(path.read_text())
            path.write_text(json.dumps({k: v for k, v in facts.items() if "curve" not in k}))
            assert not answered(path, 1)
        finally:
            process.terminate()


def answered(path: Path, seconds: float) -> bool:
    client: Any = BlockingKernelClient(connection_file=str(path))
    client.load_connection_file()
    client.start_channels()
    client.shell_channel.socket.sndtimeo = int(seconds * 1000)  # a refused client can't send
    try:
        client.kernel_info()
        client.get_shell_msg(timeout=seconds)
    except (Empty, zmq.Again):
        return False
    finally:
        client.stop_channels()
    return True
