"""The kernel's side of the protocol, over real sockets, on a fake sandbox."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty
from typing import Any

import pytest
import zmq
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.jsonutil import json_default

from tests.faces import happens, wait_for
from tests.frontends.conftest import ROOT, SECONDS, Driven
from tests.ports import write_connection
from tests.sampled import sampled

Start = Callable[..., Driven]


def kinds(heard: list[dict]) -> list[str]:  # type: ignore[type-arg]
    return [message["msg_type"] for message in heard]


def spinning(kernel: Driven) -> str:
    """Sends a cell that computes without end; returns its message's id when it runs."""
    mark = kernel.workspace / "mark"
    mark.unlink(missing_ok=True)
    sent: str = kernel.kc.execute("(workspace / 'mark').touch()\nwhile True:\n    pass")
    wait_for(mark.exists)
    return sent


def test_a_cell_is_announced_before_its_output_and_idle_comes_last(kernel: Driven) -> None:
    _, heard = kernel.run("print('x'); result({'text/plain': '1'})")
    assert kinds(heard) == [
        "status",
        "execute_input",
        "stream",
        "stream",
        "execute_result",
        "status",
    ]
    assert heard[-1]["content"]["execution_state"] == "idle"
    assert kinds(kernel.run("pass", silent=True)[1]) == ["status", "status"]


def test_the_guest_counts_the_cells(kernel: Driven) -> None:
    first = kernel.run("pass")[0]["execution_count"]
    assert kernel.run("pass", store_history=False)[0]["execution_count"] == first + 1
    reply, heard = kernel.run("pass")
    announced = next(m for m in heard if m["msg_type"] == "execute_input")
    assert reply["execution_count"] == announced["content"]["execution_count"] == first + 1


def test_an_error_is_told_on_both_channels(kernel: Driven) -> None:
    reply, heard = kernel.run("1/0")
    told = next(m["content"] for m in heard if m["msg_type"] == "error")
    assert (reply["status"], reply["ename"], told["ename"]) == ("error", *["ZeroDivisionError"] * 2)


def test_a_failed_cell_aborts_those_sent_behind_it(kernel: Driven) -> None:
    first = kernel.kc.execute("behind(5); 1/0")
    behind = [kernel.kc.execute("pass") for _ in range(5)]
    assert kernel.reply(first)["status"] == "error"
    assert [kernel.reply(sent)["status"] for sent in behind] == ["aborted"] * 5


def test_without_stop_on_error_the_next_cells_run(kernel: Driven) -> None:
    first = kernel.kc.execute("behind(1); 1/0", stop_on_error=False)
    second = kernel.kc.execute("pass")
    assert kernel.reply(first)["status"] == "error"
    assert kernel.reply(second)["status"] == "ok"


def test_an_interrupt_ends_the_running_cell(kernel: Driven) -> None:
    sent = spinning(kernel)
    assert kernel.control("interrupt_request", {})["status"] == "ok"
    assert kernel.reply(sent)["ename"] == "KeyboardInterrupt"
    assert kernel.run("pass")[0]["status"] == "ok"


def test_sigint_interrupts_the_cell_and_not_the_kernel(kernel: Driven) -> None:
    sent = spinning(kernel)
    os.kill(kernel.km.provisioner.pid, signal.SIGINT)  # type: ignore[union-attr]
    assert kernel.reply(sent)["ename"] == "KeyboardInterrupt"
    os.kill(kernel.km.provisioner.pid, signal.SIGINT)  # type: ignore[union-attr]
    assert kernel.run("pass")[0]["status"] == "ok"


def test_an_interrupt_between_a_message_and_its_cell_ends_the_cell(kernel: Driven) -> None:
    """Before, it found no cell, and one that never ends went on."""
    kernel.run("sandbox.interrupts_next = True")
    assert kernel.run("while True: pass")[0]["ename"] == "KeyboardInterrupt"
    assert kernel.run("pass")[0]["status"] == "ok"


def test_control_and_heartbeat_answer_while_a_cell_computes(kernel: Driven) -> None:
    sent = spinning(kernel)
    assert kernel.control("kernel_info_request", {})["implementation"] == "wasm-kernel"
    assert kernel.kc.is_alive()
    kernel.control("interrupt_request", {})
    kernel.reply(sent)


def test_input_is_asked_for_and_answered(kernel: Driven) -> None:
    sent = kernel.kc.execute("name = input('who? ')", allow_stdin=True)
    asked = kernel.kc.get_stdin_msg(timeout=SECONDS)
    assert asked["content"] == {"prompt": "who? ", "password": False}
    kernel.kc.input("me")
    assert kernel.reply(sent)["status"] == "ok"
    assert kernel.value("name") == "'me'"


def test_a_stale_answer_is_not_taken(kernel: Driven) -> None:
    kernel.kc.input("stale")
    sent = kernel.kc.execute("stdin().poll(60_000)\nname = input()", allow_stdin=True)
    kernel.kc.get_stdin_msg(timeout=SECONDS)
    kernel.kc.input("fresh")
    kernel.reply(sent)
    assert kernel.value("name") == "'fresh'"


def test_input_is_refused_if_no_client_answers(kernel: Driven) -> None:
    reply, _ = kernel.run("input()", allow_stdin=False)
    assert "does not support input requests" in reply["evalue"]


def test_an_interrupt_ends_the_wait_for_input(kernel: Driven) -> None:
    sent = kernel.kc.execute("input()", allow_stdin=True)
    kernel.kc.get_stdin_msg(timeout=SECONDS)
    kernel.control("interrupt_request", {})
    assert kernel.reply(sent)["ename"] == "KeyboardInterrupt"


def test_a_cell_with_a_lone_surrogate_is_answered(kernel: Driven) -> None:
    # no client sends such a message, but JSON's escapes can carry it
    kernel.kc.session.pack = lambda message: json.dumps(message, default=json_default).encode()
    assert kernel.run("x = '\ud800'")[0]["status"] in ("ok", "error")


def test_while_the_guest_starts_the_kernel_tells_of_itself_and_of_the_start(
    start: Start, tmp_path: Path
) -> None:
    kernel = start(FAKE_START=str(tmp_path / "go"))
    assert kernel.reply(kernel.kc.kernel_info())["language_info"]["version"].startswith("3.")
    interrupted = kernel.kc.execute("pass")
    line = kernel.hear("stream")["text"]
    assert re.match(r"\r\[wasm-kernel\] compiling the fake \([1-9]\d* s so far\)", line)
    kernel.control("interrupt_request", {})
    reply, heard = kernel.wait(interrupted)
    assert reply["ename"] == "KeyboardInterrupt"
    assert kinds(heard)[-3:] == ["clear_output", "error", "status"]
    assert heard[-2]["content"]["evalue"].endswith("goes on getting ready; run the cell again.")
    sent = kernel.kc.execute("print('ran')")
    kernel.hear("stream")
    (tmp_path / "go").touch()
    _, heard = kernel.wait(sent)
    shown = kinds(heard)[kinds(heard).index("clear_output") :]
    assert shown == ["clear_output", "stream", "stream", "status"]


def test_questions_are_answered_while_a_cell_waits_for_a_long_start(
    start: Start, tmp_path: Path
) -> None:
    kernel = start(FAKE_START=str(tmp_path / "go"))
    kc, asked = kernel.kc, {}
    cell = kc.execute("print('ran')")  # the first cell, from a page that was open before
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
    assert message["content"]["text"].startswith("\r[wasm-kernel] compiling the fake")
    assert state == "busy"  # despite all the answers
    other = kc.session.msg("execute_request", {"code": "pass", "silent": False})
    other["header"]["session"] = "a page that was loaded anew"
    kc.session.send(kc.shell_channel.socket, other)
    told = ""
    while told != other["header"]["session"]:  # the pages are told in turn
        told = kc.get_iopub_msg(timeout=SECONDS)["parent_header"].get("session")
    (tmp_path / "go").touch()
    assert kernel.wait(cell)[0]["status"] == "ok"


def test_a_start_that_fails_is_the_cells_error(start: Start) -> None:
    reply, heard = start(FAKE_START="fault").run("pass")
    assert reply["ename"] == "LookupError"
    assert reply["evalue"].startswith("The kernel failed")
    assert "/a/path" not in str(heard)
    assert "error" in kinds(heard)


def test_shutdown_ends_a_kernel_whose_cell_computes_and_nothing_is_said(fresh: Driven) -> None:
    fresh.run("print('x')")
    spinning(fresh)
    assert fresh.control("shutdown_request", {"restart": False})["status"] == "ok"
    ended(fresh)
    assert fresh.log.read_bytes() == b""


def test_exit_ends_the_kernel_after_its_reply(fresh: Driven) -> None:
    reply, _ = fresh.run("payload({'source': 'ask_exit', 'keepkernel': False})")
    assert reply["payload"] == [{"source": "ask_exit", "keepkernel": False}]
    ended(fresh)


def test_the_session_is_named_after_the_kernel(kernel: Driven) -> None:
    # Jupyter's servers name the connection file so, and keep the name over a restart
    named = Path(kernel.km.connection_file).stem.removeprefix("kernel-")
    assert kernel.value("session_id") == repr(named)


def test_settings_reach_the_policy_without_a_word(start: Start, tmp_path: Path) -> None:
    (tmp_path / "jupyter_wasm_kernel_config.py").write_text("c.WasmKernel.grace_seconds = 7.5\n")
    limits = {"cell_timeout": 0, "stdout_bytes": 5}
    own = limits | {"session_id": "mine", "resume": "always"}
    of_ipython = ("--HistoryManager.hist_file=:memory:", "--profile-dir", "somewhere")
    kernel = start(
        *(f"--WasmKernel.{name}={value}" for name, value in own.items()),
        *(*of_ipython, "--IPKernelApp.quiet=True"),  # options that other kernels know
        JUPYTER_CONFIG_DIR=str(tmp_path),
    )
    policy = "policy.cell_timeout, policy.stdout_bytes, policy.grace_seconds"
    assert kernel.value(f"({policy}, session_id)") == "(None, 5, 7.5, 'mine')"
    assert kernel.log.read_bytes() == b""


BAD_SETTINGS = {
    "--WasmKernel.cell_timeout=soon": ("cell_timeout", "'soon'", "argv"),
    "--WasmKernel.cell_timout=5": ("Is cell_timeout meant? The setting", "argv"),
    "--WasmKernel.fuel_budget=-1": ("fuel_budget must be from 1", "argv"),
    "--WasmKernel.workspace_root=/proc/x": ("Set workspace_root to", "argv"),
    "--WasmKernel.policy_file=/none.toml": ("file names none.toml, which", "argv"),
    "--WasmKernel.mounts=/:/x": ("mounts /x can't be a folder", "argv"),
    "--loud": ("command line can't be read",),
    "--log-level=loud": ("log_level",),
    "--WasmKernel.session_id=../x": ("session id", "argv"),
}


@pytest.mark.parametrize("argument", sampled({name: name for name in BAD_SETTINGS}, 9))
def test_a_bad_setting_is_the_error_of_each_cell_and_touches_no_session(
    start: Start, tmp_path: Path, argument: str
) -> None:
    kernel = start(argument)
    assert kernel.reply(kernel.kc.kernel_info())["language_info"]["name"] == "python"
    assert kernel.reply(kernel.kc.history())["history"] == []
    for _ in range(2):
        reply, heard = kernel.run("print('ran')")
        assert reply["ename"] == "KernelNotStarted"
        assert all(part in reply["evalue"] for part in BAD_SETTINGS[argument])
        assert kinds(heard) == ["status", "execute_input", "error", "status"]
    assert kernel.control("shutdown_request", {"restart": False})["status"] == "ok"
    ended(kernel)
    assert f"wasm-kernel: {reply['evalue'][:40]}" in kernel.log.read_text()
    assert not (tmp_path / "sessions").exists()


def test_a_config_file_that_can_not_be_read_is_told_in_the_cell(
    start: Start, tmp_path: Path
) -> None:
    file = tmp_path / "jupyter_wasm_kernel_config.py"
    file.write_text("c.WasmKernel.grace_seconds = = 7.5\n")
    kernel = start(JUPYTER_CONFIG_DIR=str(tmp_path))
    assert "jupyter_wasm_kernel_config.py, line 1" in kernel.run("1")[0]["evalue"]
    file.write_text("c.WasmKernel.grace_seconds = 7.5\n")
    kernel.km.restart_kernel(now=True)  # a restart reads it again
    kernel.kc.wait_for_ready(timeout=SECONDS)
    assert kernel.value("policy.grace_seconds") == "7.5"


def test_without_a_front_end_a_start_that_fails_ends_with_one_line(
    warm: None, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.frontends.fake_kernel", "-f", str(tmp_path / "k.json")]
    far = ["--transport=ipc", f"--ip={tmp_path / ('x' * 100)}"]
    wrong = {"cell_timeout": ["--WasmKernel.cell_timeout=soon"]}
    for words, options in (wrong | {"can't listen on its shell channel": far}).items():
        done = subprocess.run(
            [*command, *options],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert words in done.stderr


def test_a_client_whose_iopub_connection_comes_up_late_misses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "late.json"
    write_connection(path)
    command = [sys.executable, "-m", "tests.frontends.fake_kernel", "-f", str(path)]
    environ = os.environ | {"PYTHONPATH": str(ROOT), "FAKE_UNHEARD": str(SECONDS)}
    with subprocess.Popen(command, env=environ) as process:
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
            process.kill()


def test_only_a_client_with_the_curve_keys_is_heard(start: Start, tmp_path: Path) -> None:
    public, secret = zmq.curve_keypair()
    path = tmp_path / "curve.json"
    write_connection(path, curve_publickey=public, curve_secretkey=secret)
    command = [sys.executable, "-m", "tests.frontends.fake_kernel", "-f", str(path)]
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)}) as process:
        try:
            assert answered(path, SECONDS)
            facts = json.loads(path.read_text())
            path.write_text(json.dumps({k: v for k, v in facts.items() if "curve" not in k}))
            assert not answered(path, 1)
        finally:
            process.kill()


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


def test_a_subshell_is_refused(kernel: Driven) -> None:
    assert kernel.control("create_subshell_request", {})["status"] == "error"


def test_a_query_that_fails_has_an_empty_answer(kernel: Driven) -> None:
    kernel.run("answers = {'complete': ValueError('no')}")
    assert kernel.reply(kernel.kc.complete("x", 1))["matches"] == []
    kernel.run("del answers")


def ended(kernel: Driven) -> None:
    """Waits for the process to end by itself."""
    assert happens(lambda: not kernel.km.is_alive()), "the kernel is still there"
