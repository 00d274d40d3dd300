"""The timeline's comm at the kernel, over real sockets, on a fake sandbox whose worker lies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.frontends.conftest import SECONDS, Driven, starting_in
from wasm_kernel.frontends.jupyter.timeline import TARGET

LIES = """
from wasm_kernel.result import Checkpoint
from wasm_kernel.service.messages import States
from wasm_kernel.result import Ran
def state(one, parent):
    return Checkpoint('', one, f'cell {one}', 0.0, 1, one == 1, one, parent)
def on_call(request):
    return States([state(1, 2), state(2, 1), state(3, 99)], 77, {1: Ran(sent=True), 5: Ran()})
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driven]:
    with starting_in(tmp_path_factory.mktemp("timeline")) as start:
        yield start()


def test_a_worker_that_sends_a_circle_of_states_holds_up_no_kernel(kernel: Driven) -> None:
    kernel.run(LIES)
    session, socket = kernel.kc.session, kernel.kc.shell_channel.socket
    opened = {"comm_id": "view", "target_name": TARGET, "data": {}}
    session.send(socket, session.msg("comm_open", opened))
    tree: dict[str, Any] = {}
    while not tree:
        got = kernel.kc.get_iopub_msg(timeout=SECONDS)
        if got["content"].get("comm_id") == "view":
            tree = got["content"]["data"]
    assert [each["id"] for each in tree["states"]] == [1, 2, 3]
    assert (tree["here"], tree["redo"]) == (1, 0)
    assert [each["sent"] for each in tree["states"]] == [True, False, False]
    assert kernel.value("6 * 7") == "42"


def test_a_cell_that_speaks_on_a_views_comm_is_not_heard(kernel: Driven, tmp_path: Path) -> None:
    session, socket = kernel.kc.session, kernel.kc.shell_channel.socket
    opened = {"comm_id": "secret", "target_name": TARGET, "data": {}}
    session.send(socket, session.msg("comm_open", opened))
    _, heard = kernel.run(
        "comm('msg', 'secret', {'forged': 1}); comm('close', 'secret')\n"
        f"comm('open', 'mine', {{}}, target_name={TARGET!r})"
    )
    spoken = [each for each in heard if each["msg_type"].startswith("comm_")]
    assert [each for each in spoken if "event" not in each["content"]["data"]] == []
