"""`%session_publish`: results beside the notebook, and never in place of the user's own files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.publishing.published import Publishing
from tests.tasks import WaitingCell, cancelled_after
from wasm_kernel.errors import PolicyError, WasmKernelError
from wasm_kernel.folders.notebook_file import NotebookFile
from wasm_kernel.guests.base import CommandLine, CommandRefused
from wasm_kernel.linux import files
from wasm_kernel.linux.task import Cancelled
from wasm_kernel.policy import ExecutionPolicy
from wasm_kernel.publishing.names import PublishableNames, PublishError
from wasm_kernel.publishing.place import PublishFiles
from wasm_kernel.publishing.publish import PublishCommand, ResultsNames, UnpublishedNotice
from wasm_kernel.sessions.notebooks import bind


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Publishing]:
    made = Publishing(tmp_path)
    monkeypatch.chdir(made.book)
    yield made
    made.session.closed()


class Cell(WaitingCell):
    """A cell that waits for the command."""

    def __init__(self, one: Publishing) -> None:
        super().__init__({PublishFiles: one.place.publish})
        self.command = PublishCommand(one.session, ResultsNames(one.place.into, one.place.names))

    def says(self, line: str) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = self.command.run(
            CommandLine("session_publish", line), self
        )
        return found

    def link(self, path: str) -> str | None:
        found: str | None = self.command.link(CommandLine("_session_published", path), self)
        return found


class EndedCell(Cell):
    """A cell that has ended, and the notices for its user."""

    told = ""

    def note(self, text: str) -> None:
        self.told += text

    def wrote(self, *paths: str) -> str:
        """Returns the notices after a cell that changed files."""
        self.told = ""
        self.notice.files_changed(paths, self)
        return self.told

    def __init__(self, one: Publishing) -> None:
        super().__init__(one)
        self.notice = UnpublishedNotice(one.session, self.command, self.note)


def test_once_a_session_a_cell_is_told_of_files_not_beside_the_notebook(one: Publishing) -> None:
    cell = EndedCell(one)
    for path in ("x.py", ".hidden.csv", "a/my r.csv", "published.csv"):
        one.write(path)
    cell.says("published.csv")
    (one.app / "link.csv").symlink_to("a/my r.csv")
    assert cell.wrote("x.py", ".hidden.csv", "deleted.csv", "published.csv", "link.csv") == ""
    one.write("b.csv")
    told = cell.wrote("published.csv", "b.csv", "a/my r.csv")
    assert told.startswith("[wasm-kernel] a/my r.csv, b.csv were written into this session, not ")
    assert "`%session_publish 'a/my r.csv' b.csv` copies files beside the notebook;" in told
    assert told.count("\n") == 1
    assert len(cell.says("'a/my r.csv' b.csv")["links"]) == 2
    one.write("next.csv")
    assert cell.wrote("next.csv") == EndedCell(one).wrote("next.csv") == ""


def test_a_published_file_is_replaced_by_another_session(one: Publishing, tmp_path: Path) -> None:
    one.write("r.csv", "1")
    one.publish("r.csv")
    one.write("r.csv", "longer")
    assert one.publish("r.csv").refused == {}
    assert one.files == {"orders.files/r.csv": "longer"}
    tomorrow = Publishing(tmp_path, "two")
    tomorrow.write("r.csv", "3")
    assert tomorrow.publish("r.csv").refused == {}
    assert one.files == {"orders.files/r.csv": "3"}
    tomorrow.session.closed()


def test_files_that_other_notebooks_published_stay_theirs(one: Publishing, tmp_path: Path) -> None:
    other = tmp_path / "other.ipynb"
    other.write_text("{}")
    bind(one.session.root, "one", other)
    one.write("r.csv", "1")
    one.publish("r.csv")
    two = Publishing(tmp_path, "two")
    two.write("r.csv", "2")
    assert "another notebook published" in two.refusal("r.csv")
    assert one.files == {"orders.files/r.csv": "1"}
    with NotebookFile.at(other) as file:  # a second kernel of the same notebook
        two.place = replace(two.place, follows=file)
        assert two.publish("r.csv").links
    one.write("r.csv", "1")
    assert one.publish("r.csv").links
    two.place = replace(two.place, follows=None)
    other.unlink()
    assert two.publish("r.csv").links
    two.session.closed()


def test_a_published_file_keeps_its_permissions_and_is_never_executable(one: Publishing) -> None:
    one.write("r.csv", "1")
    one.publish("r.csv")
    there = one.book / "orders.files/r.csv"
    assert there.stat().st_mode & 0o111 == 0
    there.chmod(0o750)
    one.write("r.csv", "1b")
    assert one.publish("r.csv").links
    assert there.stat().st_mode & 0o777 == 0o640
    one.write("r.csv", "2")
    assert one.publish("r.csv").links
    assert (there.read_text(), there.stat().st_mode & 0o777) == ("2", 0o640)
    there.chmod(0o440)
    one.write("r.csv", "3")
    assert "read-only" in one.refusal("r.csv")
    assert there.read_text() == "2"


@pytest.mark.parametrize("swaps", [True, False])
def test_users_file_stays(one: Publishing, monkeypatch: pytest.MonkeyPatch, swaps: bool) -> None:
    if not swaps:  # a file system that knows only plain renames
        monkeypatch.setattr(files, "renameat2", lambda *_: False)
    (one.book / "orders.files").mkdir()
    mine = one.book / "orders.files" / "mine.csv"
    mine.write_text("mine")
    for name in ("mine.csv", "r.csv", "s.csv"):
        one.write(name)
    assert "was left as it is" in one.refusal("mine.csv")
    assert one.publish("r.csv", "s.csv").refused == {}
    (one.book / "orders.files/r.csv").write_text("edited")  # the same file, another content
    kept = (one.book / "orders.files/s.csv").read_text()
    os.replace(mine, one.book / "orders.files/s.csv")  # another file  # noqa: PTH105
    for name in ("r.csv", "s.csv"):
        one.write(name, "2")
        assert "was changed since" in one.refusal(name)
    assert one.files == {"orders.files/r.csv": "edited", "orders.files/s.csv": "mine"}
    (one.book / "orders.files/s.csv").unlink()
    assert one.publish("s.csv").links
    assert kept == "1"
    assert one.files["orders.files/s.csv"] == "2"


def test_a_record_that_can_not_be_read_leaves_the_files_to_the_user(
    one: Publishing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    one.write("a.csv")
    one.publish("a.csv")
    (record,) = (tmp_path / "wasm-kernel/published").glob("?" * 32)
    record.write_text('{"folder": 1}')
    one.write("a.csv", "3")
    assert "was left as it is" in one.refusal("a.csv")


def test_there_are_bounds(one: Publishing) -> None:
    one.place = replace(one.place, policy=ExecutionPolicy(workspace_bytes=10, workspace_files=2))
    for name, text in {"a.csv": "12345", "b.csv": "123456", "c.csv": "1", "d.csv": "1"}.items():
        one.write(name, text)
    done = one.publish("a.csv", "b.csv", "c.csv", "d.csv")
    assert [*done.links] == ["a.csv", "c.csv"]
    assert all("workspace_bytes (10)" in why for why in done.refused.values())
    (one.book / "orders.files/a.csv").unlink()  # now there is room again
    assert one.publish("d.csv").links


def test_a_stop_leaves_what_was_copied_and_no_part(one: Publishing) -> None:
    one.write("a.csv")
    one.write("b.csv")
    for checks in range(1, 12):
        try:
            one.publish("a.csv", "b.csv", task=cancelled_after(checks))
        except Cancelled:
            pass
        except StopIteration:
            break
        assert set(one.files) <= {"orders.files/a.csv", "orders.files/b.csv"}
    one.write("a.csv", "2")
    assert one.publish("a.csv").refused == {}


def test_a_cell_names_files_in_every_way(one: Publishing) -> None:
    cell = Cell(one)
    for name in ("r.csv", "x.py", "a b.txt", "d/s.csv"):
        one.write(name)
    assert [*cell.says("r.csv 'a b.txt'")["links"]] == ["r.csv", "a b.txt"]
    assert [*cell.says("*.csv /notebook/d/s.csv")["links"]] == ["r.csv", "d/s.csv"]
    assert [*cell.says("/app/r.csv")["links"]] == ["r.csv"]
    assert cell.link("d/s.csv") == "orders.files/d/s.csv"
    assert cell.link("x.py") is None
    assert "only files of data" in cell.says("x.py")["refused"]["x.py"]
    assert "too long" in cell.says("*" * 2000)["refused"]["*" * 2000]
    assert "signs" in cell.says("\ud800.csv")["refused"]["\ud800.csv"]
    assert "no such file" in cell.says("none.csv")["refused"]["none.csv"]
    for line in ("", "--all", "'open", "*.xlsx", "../*.csv", "*.csv " * 21, "r.csv " * 2000):
        with pytest.raises(CommandRefused):
            cell.says(line)


def test_the_setting_is_named_if_no_notebook_is_known(one: Publishing) -> None:
    one.place = replace(one.place, folder=())
    one.write("r.csv")
    assert "`c.WasmKernel.publish_folder = " in EndedCell(one).wrote("r.csv")
    with pytest.raises(CommandRefused, match=r"WasmKernel\.publish_folder"):
        Cell(one).says("r.csv")
    with pytest.raises(PublishError):
        one.publish("r.csv")


def test_without_a_state_folder_nothing_is_published(
    one: Publishing, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one.write("r.csv")
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "open" / "wasm-kernel").mkdir()
    (tmp_path / "open" / "wasm-kernel").chmod(0o777)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "open"))
    with pytest.raises(WasmKernelError, match="folder for state"):
        one.publish("r.csv")
    assert one.files == {}


@pytest.mark.parametrize("suffix", [".py", ".ipynb", "csv", "", ".", ".csv.sh"])
def test_suffixes_that_programs_obey_are_refused(suffix: str) -> None:
    with pytest.raises(PolicyError):
        PublishableNames([suffix])
