"""Outputs are cleaned behind a wall: a process that was taken over can harm one page only."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.linux.inside import needs_walls
from tests.sampled import but_for
from wasm_kernel.engine.cache import default_folder
from wasm_kernel.outputs.bundle import Mode
from wasm_kernel.outputs.cleaner import Cleaner
from wasm_kernel.result import CommMessage
from wasm_kernel.service import cleaning, fork_process
from wasm_kernel.service.cleaning import CleanerLost, WalledCleaner
from wasm_kernel.service.fork_server import ForkServer

ROOT = Path(__file__).parents[2]
PAGE = {"text/html": "<b>bold</b><script>run()</script>", "text/plain": "bold"}
ORDERS = ("end", "hang", "deaf", "half", "another type", "too deep")
OPENED = CommMessage("open", "a" * 32, {"state": {}}, target_name="elsewhere")


def never_stop() -> bool:
    return False


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with closing(ForkServer(fork_process.start())) as made:
        yield made


@pytest.fixture(scope="module")
def obeying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """A server whose cleaners obey the outputs that they get."""
    folder = tmp_path_factory.mktemp("obeying")
    secret = folder / "private" / "secret"
    secret.parent.mkdir()
    secret.write_text("as it was")
    (folder / "work").mkdir()
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        port = str(listening.getsockname()[1])
        probe = {"PROBE_SECRET": str(secret), "PROBE_PORT": port, "PYTHONPATH": str(ROOT)}
        probe |= {"PROBE_CACHE": str(default_folder()), "XDG_STATE_HOME": str(folder)}
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder / "work")  # the probe writes there, if nothing prevents it
            for name, value in (probe | {"PROBE_RESULTS": str(folder / "results")}).items():
                patch.setenv(name, value)
            patch.setattr(fork_process, "VARIABLES", (*fork_process.VARIABLES, "PROBE_"))
            patch.setattr(fork_process, "PROGRAM", "tests.service.probed_cleaner")
            server = ForkServer(fork_process.start())
        with closing(server):
            yield server


def test_a_program_whose_first_folder_is_gone_has_cleaners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    with closing(ForkServer(fork_process.start())) as server:
        (tmp_path / "gone").rmdir()
        with closing(WalledCleaner(server, Mode.SAFE, "auto")) as walled:
            assert walled.bundle(PAGE, {}, never_stop).data["text/plain"] == "bold"


@pytest.mark.parametrize("mode", Mode)
def test_outputs_are_cleaned_as_in_this_process(server: ForkServer, mode: Mode) -> None:
    with closing(WalledCleaner(server, mode, "auto")) as walled:
        own = Cleaner(mode)
        assert walled.bundle(PAGE, {}, never_stop) == own.bundle(PAGE, {}, never_stop)
        assert walled.comm(OPENED, never_stop) == own.comm(OPENED, never_stop)


def test_outputs_that_wait_to_be_cleaned_at_an_interrupt_are_left_out(
    server: ForkServer,
) -> None:
    with closing(WalledCleaner(server, Mode.SAFE, "auto")) as walled:
        shown = walled.bundle({"text/html": "<p>a</p>" * 10**6}, {}, lambda: True)
        assert "text/html" not in shown.data and shown.removed == cleaning.STOPPED
        assert walled.bundle(PAGE, {}, never_stop).data["text/plain"] == "bold"


@needs_walls
@pytest.mark.parametrize("confinement", ["required", "off"])
def test_cleaner_that_was_taken_over_reaches_nothing(obeying: ForkServer, confinement: str) -> None:
    with closing(WalledCleaner(obeying, Mode.SAFE, confinement)) as walled:
        found = walled.bundle({"text/plain": "probe"}, {}, never_stop).data
    reached = {name for name, came in found.items() if came == "done"}
    if confinement == "off":  # shows what the probe reaches without walls
        assert reached >= {"secret", "passwords", "program", "tcp"}
        return
    assert reached == {"own files"}


@pytest.mark.parametrize(
    "order", but_for(dict(zip(ORDERS, ORDERS, strict=True)), "hang", "deaf", "another type")
)
def test_the_end_of_a_cleaner_is_told_in_words(
    obeying: ForkServer, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    with closing(WalledCleaner(obeying, Mode.SAFE, "auto")) as walled:
        if order in ("hang", "deaf", "half"):
            monkeypatch.setattr(cleaning, "ANSWER_SECONDS", 1.0)
        with pytest.raises(CleanerLost, match=r"Outputs up to now are kept\. Run the notebook"):
            walled.bundle({"text/plain": order}, {}, never_stop)
            time.sleep(0.5)
            walled.bundle({"text/plain": "x" * 2**23}, {}, never_stop)  # larger than a socket


def test_an_output_that_is_too_large_once_it_is_cleaned_is_named_and_others_are_shown(
    obeying: ForkServer,
) -> None:
    with closing(WalledCleaner(obeying, Mode.SAFE, "auto")) as walled:
        shown = walled.bundle({"text/plain": "too large"}, {}, never_stop)
        assert not shown.data and "more than 64 MiB" in shown.removed[0]
        assert walled.bundle({"text/plain": "well"}, {}, never_stop).data == {"text/plain": "well"}
