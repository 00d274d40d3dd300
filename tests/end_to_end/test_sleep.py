"""A kernel without messages gives its worker back, and goes on unnoticed at the next one."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Starting
from tests.end_to_end.real_kernel import RealKernel
from tests.end_to_end.test_widgets import SLIDER, move
from tests.faces import PATIENCE, happens, wait_for
from wasm_kernel import SessionInUse, export_session, get_session_sandbox, prune_sessions

WITH_A_WORKER = 3
"""The processes below a kernel: its broker, the process that forks workers, and its worker."""


@pytest.fixture(scope="module", autouse=True)
def _sleepy(installed_kernelspec: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    data = tmp_path_factory.mktemp("share")
    folder = data / "kernels" / "wasm-python"
    shutil.copytree(installed_kernelspec / "kernels" / "wasm-python", folder)
    spec = json.loads((folder / "kernel.json").read_text())
    spec["argv"][spec["argv"].index("wasm_kernel")] = "tests.end_to_end.sleepy_kernel"
    (folder / "kernel.json").write_text(json.dumps(spec))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(data))
        yield


def descendants(process: int) -> list[int]:
    """The processes below a process."""
    found: list[int] = []
    with suppress(OSError):  # the worker has ended
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *descendants(child)]
    return found


def fall_asleep(kernel: RealKernel) -> None:
    """Waits until the kernel has no worker any more."""
    wait_for(lambda: len(descendants(kernel.pid)) == WITH_A_WORKER - 1, "a sleep")


def test_a_sleeping_kernel_has_no_worker_and_goes_on_with_everything(kernel: RealKernel) -> None:
    kernel.run("x = [1]; y = x; f = open('/app/notes', 'w+'); f.write('one, '); f.flush()")
    kernel.run("%checkpoint early")
    assert len(descendants(kernel.pid)) == WITH_A_WORKER
    fall_asleep(kernel)
    said = kernel.run("y.append(2); f.write('two'); f.seek(0); print(x, f.read(), len(In))")
    assert said.stdout == "[1, 2] one, two 4\n"
    assert (said.stderr, said.error) == ("", "")
    kernel.run("f.close()")
    kernel.run("y.append(3)")
    fall_asleep(kernel)
    assert "Undone: In[5]" in kernel.run("%undo").stdout
    fall_asleep(kernel)
    assert kernel.run("x").value == "[1, 2]"
    assert kernel.run("%restore early").error == ""
    assert "after 0.5 seconds of rest" in kernel.run("%session_info").value


def test_a_kernel_with_a_file_without_a_name_stays_awake(kernel: RealKernel) -> None:
    """The kernel's next worker could not open such a file again."""
    kernel.run("import os; gone = open('gone', 'w+'); gone.write('still'); os.remove('gone')")
    assert not happens(lambda: len(descendants(kernel.pid)) < WITH_A_WORKER, 1.5)
    assert kernel.run("gone.seek(0); print(gone.read()); gone.close()").stdout == "still\n"
    fall_asleep(kernel)


def test_the_first_message_may_be_a_question_or_a_widgets(kernel: RealKernel) -> None:
    kernel.run(SLIDER)
    fall_asleep(kernel)
    assert "now 7" in kernel.heard(move(kernel, 7)).stdout
    fall_asleep(kernel)
    open_comms = kernel.client.comm_info("jupyter.widget", reply=True, timeout=PATIENCE)
    assert "s1" in open_comms["content"]["comms"]
    fall_asleep(kernel)
    reply = kernel.client.complete("s.val", 5, reply=True, timeout=PATIENCE)
    assert "value" in reply["content"]["matches"]
    assert kernel.run("x, s.value").value == "(7, 7)"


def test_an_interrupt_while_a_kernel_wakes_ends_the_cell(kernel: RealKernel) -> None:
    kernel.run("x = 1")
    for _ in range(2):
        fall_asleep(kernel)
        sent = kernel.send("x = 2\nwhile True: pass")
        kernel.hear("execute_input")
        kernel.manager.interrupt_kernel()
        assert kernel.reply(sent)["ename"] == "KeyboardInterrupt"
    assert kernel.run("print(x in (1, 2))").stdout == "True\n"


def test_a_kernel_that_ends_in_its_sleep_leaves_what_it_would_awake(start: Starting) -> None:
    """By default variables outlive a crash, but not a shutdown."""
    kernel = start(session_id="mine")
    kernel.run("x = 1")
    fall_asleep(kernel)
    kernel.kill()
    kernel.autorestart()
    assert kernel.run("x").value == "1"
    fall_asleep(kernel)
    kernel.shut_down()
    assert start(session_id="mine").run("globals().get('x')").value == ""


def test_nobody_else_takes_the_session_or_variables_of_a_kernel_that_has_no_worker(
    start: Starting, root: Path, tmp_path: Path
) -> None:
    first = start(session_id=(shared := str(uuid.uuid4())), resume="always")
    first.run("x = 1; open('/app/file', 'w').close()")
    fall_asleep(first)
    second = start(session_id=shared, resume="always")
    said = second.run("globals().get('x'), __import__('os').listdir('/app')")
    assert said.value == "(None, ['file'])"
    assert "This session is already open" in said.stderr
    second.end()
    with get_session_sandbox(shared, workspace_root=root) as program:
        assert program.execute("print(globals().get('x'))").stdout == "None\n"
    with pytest.raises(SessionInUse):
        export_session(shared, tmp_path / "session.tar.gz", root)
    pruned = prune_sessions(0, root)
    assert (pruned.deleted_sessions, [*pruned.in_use]) == ([], [shared])
    assert first.run("x").value == "1"


def test_a_mount_that_was_swapped_under_a_sleeping_kernel_is_not_followed(
    start: Starting, tmp_path: Path
) -> None:
    shared, secret = tmp_path / "shared", tmp_path / "secret"
    for folder in (shared, secret):
        folder.mkdir()
        (folder / "file").write_text(folder.name)
    kernel = start(mounts=f"{shared}:/data")
    assert kernel.run("print(open('/data/file').read())").stdout == "shared\n"
    fall_asleep(kernel)
    shared.rename(tmp_path / "away")
    shared.symlink_to(secret)
    assert "secret" not in kernel.run("print(open('/data/file').read())").stdout
