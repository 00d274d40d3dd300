"""Files that go back together with memory, in the real guest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.faces import error_of, says
from tests.faults import Does, faulty
from tests.private import kept_sandbox, private_of
from wasm_kernel import Sandbox
from wasm_kernel.errors import TravelError
from wasm_kernel.execution.commands import TRAVELS, words_of
from wasm_kernel.folders.locks import Resume
from wasm_kernel.guests.base import CommandLine
from wasm_kernel.guests.python.language import PythonCell
from wasm_kernel.policy import ExecutionPolicy

Opening = Callable[..., Sandbox]
TRAP = "import os; os._exit(3)"


@pytest.fixture
def opened(tmp_path: Path, ending: ExitStack) -> Opening:
    """Opens sandboxes on one workspace, one after the other."""

    def one(**policy: Any) -> Sandbox:
        ending.close()
        limits = ExecutionPolicy(**policy)
        made = kept_sandbox(workspace=tmp_path, policy=limits, resume=Resume.ALWAYS)
        made.execute("import os", silent=True)
        return ending.enter_context(closing(made))

    return one


@pytest.fixture
def sandbox(opened: Opening) -> Sandbox:
    return opened()


def state(sandbox: Sandbox) -> dict[str, str]:
    """The files as they are on the host."""
    files = list(sandbox.workspace.rglob("*"))
    return {str(p.relative_to(sandbox.workspace)): p.read_text() for p in files if p.is_file()}


def test_an_undo_without_files_says_which_stay_and_how_they_go(sandbox: Sandbox) -> None:
    says(sandbox, "_ = open('a', 'w').write('old'); _ = open('b', 'w').write('b'); x = 1")
    says(sandbox, "_ = open('a', 'w').write('new'); os.remove('b'); os.mkdir('d'); open('d/c','x')")
    assert sandbox.undo().files_left == ("a", "b", "d/c")
    assert sandbox.redo().files_left == ()  # the files of that state are unchanged
    said = sandbox.execute("%undo").stdout
    assert "Files in /app stay as they are: a, b, d/c. %restore --files takes that" in said
    assert sandbox.execute("%restore --files").success
    assert state(sandbox) == {"a": "old", "b": "b"}
    says(sandbox, "y = 1")
    assert sandbox.undo().files_left == ()
    assert says(sandbox, "print(x)") == "1"


def test_an_undo_takes_back_what_a_cell_did_to_files(sandbox: Sandbox) -> None:
    says(sandbox, "_ = open('a', 'w').write('old'); _ = open('b', 'w').write('b')")
    says(
        sandbox, "_ = open('a', 'a').write(' new'); os.remove('b'); os.mkdir('d'); open('d/c','x')"
    )
    result = sandbox.execute("%undo --files")
    assert "Undone: In[2]" in result.stdout
    assert "Files in /app: 2 brought back (a, b), 1 removed (d/c).\n" in result.stdout
    assert state(sandbox) == {"a": "old", "b": "b"}
    assert result.files_created == ("b",)
    assert result.files_modified == ("a", "b")
    assert result.files_deleted == ("d/c",)


def test_after_a_failed_cell_the_files_can_be_had_back(sandbox: Sandbox) -> None:
    says(sandbox, "x = 1; _ = open('a', 'w').write('good')")
    assert "%restore --files takes that back" in error_of(
        sandbox.execute(f"x = 2; _ = open('a', 'w').write('half'); {TRAP}")
    )
    assert "--files" not in error_of(sandbox.execute(TRAP))
    assert state(sandbox) == {"a": "half"}
    assert "Files in /app: 1 brought back (a)." in says(sandbox, "%restore --files")
    assert state(sandbox) == {"a": "good"}
    assert says(sandbox, "print(x)") == "1"


def test_the_same_from_outside(sandbox: Sandbox) -> None:
    says(sandbox, "_ = open('a', 'w').write('1')")
    sandbox.checkpoint("one")
    says(sandbox, "_ = open('a', 'w').write('2'); open('b', 'x').close()")
    back = sandbox.undo(files=True)
    assert (back.files_back, back.files_removed, back.files_missed) == (("a",), ("b",), {})
    assert sandbox.redo(files=True).files_back == ("a", "b")
    assert sandbox.restore("one", files=True).files_removed == ("b",)
    (sandbox.workspace / "a").write_text("another")
    sandbox.execute("_ = open('a', 'a').write('!'); 1/0")
    sandbox.rollback(files=True)
    assert state(sandbox)["a"] == "another!"


def test_files_that_were_open_then_are_open_again(sandbox: Sandbox) -> None:
    says(sandbox, "f = open('a', 'w+'); _ = f.write('0123456789'); f.flush(); _ = f.seek(3)")
    says(sandbox, "_ = f.write('changed'); f.flush()")
    says(sandbox, "os.replace('a', 'b')")
    sandbox.undo(2, files=True)
    assert says(sandbox, "print(f.read(), os.listdir())") == "3456789 ['a']"
    says(sandbox, "_ = f.write('!'); f.close()")
    assert state(sandbox) == {"a": "0123456789!"}


def test_a_file_that_was_too_large_is_told(tmp_path: Path) -> None:
    policy = ExecutionPolicy(file_copy_bytes=1000)
    with (
        faulty("wasm_kernel.linux.files:FileCopier.clone") as faults,
        faults["FileCopier.clone"].on(Does.RETURN_NONE),
        kept_sandbox(workspace=tmp_path, policy=policy) as sandbox,
    ):
        says(sandbox, "_ = open('big', 'w').write('x' * 5000); _ = open('small', 'w').write('s')")
        told = sandbox.execute("_ = open('big', 'a').write('y'); _ = open('small', 'w').write('t')")
        assert "big (too large, 4.9 KiB) could not be kept" in told.stderr
        assert sandbox.execute("_ = open('big', 'a').write('z')").stderr == ""
        back = sandbox.execute("%undo 2 --files")
        assert "1 brought back (small)" in back.stdout
        assert "Not brought back: big (too large" in back.stderr
        assert state(sandbox) == {"big": "x" * 5000 + "yz", "small": "s"}


def test_a_file_of_any_size_is_kept_when_it_is_removed_or_moved(opened: Opening) -> None:
    sandbox = opened(file_copy_bytes=0)
    says(sandbox, "_ = open('big', 'w').write('x' * 5000); _ = open('other', 'w').write('o')")
    says(sandbox, "os.remove('big'); os.rename('other', 'moved')")
    assert sandbox.undo(files=True).files_missed == {}
    assert state(sandbox) == {"big": "x" * 5000, "other": "o"}


def test_kept_versions_stay_below_their_cap(opened: Opening) -> None:
    sandbox = opened(files_history_bytes=100_000)
    for number in range(16):
        says(sandbox, f"_ = open('a', 'w').write('{number % 10}' * 20_000)")
    kept = private_of(sandbox.workspace) / "files"
    assert sum(path.stat().st_size for path in kept.iterdir() if path.name.isdecimal()) <= 100_000
    assert sandbox.undo(files=True).files_back == ("a",)
    assert "no room" in sandbox.undo(12, files=True).files_missed["a"]


def test_without_kept_files_a_travel_with_files_is_refused_in_words(opened: Opening) -> None:
    sandbox = opened(files_history_bytes=0)
    says(sandbox, "x = 1")
    says(sandbox, "open('a', 'x').close()")
    assert "files_history_bytes is 0" in error_of(sandbox.execute("%undo --files"))
    with pytest.raises(TravelError, match="Nothing was changed"):
        sandbox.undo(files=True)
    assert state(sandbox) == {"a": ""}


def test_another_process_brings_them_back_too(opened: Opening) -> None:
    first = opened()
    says(first, "_ = open('a', 'w').write('1'); f = open('a')")
    says(first, "_ = open('a', 'w').write('2')")
    again = opened()
    assert again.undo(files=True).files_back == ("a",)
    assert says(again, "print(f.read())") == "1"


def test_a_cell_that_asks_and_changes_files_takes_that_back_too(sandbox: Sandbox) -> None:
    says(sandbox, "_ = open('a', 'w').write('1')")
    says(sandbox, "_ = open('a', 'w').write('2')")
    says(sandbox, "_ = open('a', 'w').write('3'); open('b', 'x').close()\n%undo --files")
    assert state(sandbox) == {"a": "1"}


def test_links_and_the_hosts_own_names_are_safe(sandbox: Sandbox, tmp_path: Path) -> None:
    (sandbox.workspace / ".metadata.json").write_text("mine")
    says(sandbox, "os.symlink('there', 'link'); _ = open('there', 'w').write('t')")
    says(sandbox, "os.remove('link'); os.symlink('elsewhere', 'link'); os.remove('there')")
    sandbox.undo(files=True)
    assert (sandbox.workspace / "link").readlink() == Path("there")
    assert (sandbox.workspace / "link").read_text() == "t"
    assert (sandbox.workspace / ".metadata.json").read_text() == "mine"


def test_undo_beyond_what_is_known_is_refused(opened: Opening) -> None:
    first = opened(files_history_bytes=0)
    says(first, "x = 1")
    says(first, "x = 2")
    again = opened()
    says(again, "x = 3")
    with pytest.raises(TravelError, match="not known"):
        again.undo(2, files=True)
    assert says(again, "print(x)") == "3"
    says(again, "_ = open('a', 'w').write('a')")
    assert again.undo(files=True).files_removed == ("a",)


def test_files_without_a_name_go_when_nothing_knows_them(opened: Opening) -> None:
    sandbox = opened(history_cells=1)
    loose = private_of(sandbox.workspace) / "loose"
    says(sandbox, "import tempfile\nfor _ in range(50): tempfile.TemporaryFile().write(b'x')")
    assert list(loose.iterdir()) == []
    says(sandbox, "t = tempfile.TemporaryFile(); os.listdir()")
    assert len(list(loose.iterdir())) == 1
    says(sandbox, "t.close()")
    for number in range(10):
        says(sandbox, f"_ = open('a', 'w').write('{number}')")
    sandbox.rollback()
    assert list(loose.iterdir()) == []
    assert says(sandbox, "print(os.listdir('/tmp'))") == "[]"


def test_silent_cell_is_no_reason_to_keep_the_files_of_a_failed_cell(sandbox: Sandbox) -> None:
    says(sandbox, "_ = open('a', 'w').write('good')")
    sandbox.execute(f"_ = open('a', 'w').write('half'); {TRAP}")
    sandbox.execute("len(globals())", silent=True)
    sandbox.execute("%checkpoints")
    says(sandbox, "%restore --files")
    assert state(sandbox) == {"a": "good"}


@pytest.fixture
def travelled(tmp_path: Path) -> Iterator[Sandbox]:
    """A session whose cells set x to 1, 2 and 3."""
    with kept_sandbox(workspace=tmp_path / "app", resume=Resume.ALWAYS) as made:
        for value in (1, 2, 3):
            assert made.execute(f"x = {value}").success
        yield made


def x(travelled: Sandbox) -> str:
    result = travelled.execute("print(x)", silent=True)
    return result.stdout.strip()


def test_two_undos_in_one_cell_take_back_two_cells(travelled: Sandbox) -> None:
    told = travelled.execute("%undo\n%undo").stdout
    assert told == "Undone: In[3] x = 3\nUndone: In[2] x = 2\n"
    assert x(travelled) == "1"


def test_a_checkpoint_before_an_undo_names_what_is_left(travelled: Sandbox) -> None:
    travelled.execute("y = 'here'\n%checkpoint far\n%undo 2")
    assert x(travelled) == "1"
    travelled.restore("far")
    assert travelled.execute("print(x, y)").stdout == "3 here\n"


def test_a_checkpoint_after_an_undo_names_where_it_leads(travelled: Sandbox) -> None:
    travelled.execute("%undo 2\n%checkpoint back")
    travelled.execute("x = 99")
    travelled.restore("back")
    assert x(travelled) == "1"


@pytest.mark.parametrize("code", ["%undo 99", "%timeline", "%checkpoint a"])
def test_a_cell_that_only_asks_is_not_one_to_undo(travelled: Sandbox, code: str) -> None:
    travelled.execute(code)
    assert travelled.execute("%undo").stdout == "Undone: In[3] x = 3\n"
    assert x(travelled) == "2"


def test_a_silent_cell_goes_with_the_cell_before(travelled: Sandbox) -> None:
    travelled.execute("z = 1", silent=True)
    travelled.execute("z = 2", store_history=False)
    assert travelled.undo().cells == ("x = 3",)
    assert travelled.execute("print('z' in globals())").stdout == "False\n"


def test_a_redo_waits_while_cells_only_ask_and_until_one_runs(travelled: Sandbox) -> None:
    travelled.undo(2)
    travelled.execute("%checkpoints")
    travelled.execute("%undo 99")
    assert travelled.redo().cells == ("x = 2", "x = 3")
    assert x(travelled) == "3"
    travelled.undo()
    travelled.execute("x = 5")
    with pytest.raises(TravelError, match="nothing to redo"):
        travelled.redo()


def test_a_redo_is_possible_in_another_process(travelled: Sandbox) -> None:
    travelled.undo()
    travelled.undo()
    travelled.close()
    with kept_sandbox(workspace=travelled.workspace, resume=Resume.ALWAYS) as again:
        assert again.redo().cells == ("x = 2",)
        assert again.redo().cells == ("x = 3",)
        assert x(again) == "3"


def test_a_crash_of_the_asking_cell_is_no_reason_to_do_more(travelled: Sandbox) -> None:
    travelled.execute(
        "get_ipython().events.register('pre_run_cell', lambda *a: __import__('os')._exit(4))"
    )
    assert error_of(travelled.execute("x = 9\n%undo")).startswith("GuestExited:")
    assert "Undone" in travelled.execute("%undo").stdout
    assert x(travelled) == "3"


def test_the_tree_shows_branches(travelled: Sandbox) -> None:
    travelled.undo(2)
    travelled.execute("x = 'branch'")
    [shown] = travelled.execute("%timeline").outputs
    text = shown.data["text/plain"]
    assert "├─○ In[2]" in text
    assert "│ ○ In[3]" in text
    assert "<ul><li>In[2]" in shown.data["text/html"]


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("  %undo   3  \n", [CommandLine("undo", "3")]),
        (
            "# a\n\n%undo 2\r\n%restore a b",
            [CommandLine("undo", "2"), CommandLine("restore", "a b")],
        ),
        ("%checkpoint\n%timeline\n#", [CommandLine("checkpoint"), CommandLine("timeline")]),
    ],
)
def test_a_cell_that_only_travels_is_read(code: str, found: list[CommandLine]) -> None:
    assert PythonCell(code).only_commands(TRAVELS) == found


@pytest.mark.parametrize(
    "code",
    [
        *("", "#", "x = 1", "%undo; x", "x = 1\n%undo", "%%time\n%undo", "%hist", "%undone"),
        "#\n" * 60_000 + "%undo",
        *("%undo?", "%restore {name}", "%restore $name", "%restore a?", "%restore \\\na"),
    ],
)
def test_other_cells_are_the_guests(code: str) -> None:
    assert PythonCell(code).only_commands(TRAVELS) is None


@pytest.mark.parametrize(
    ("travel", "target"),
    [
        (CommandLine("undo"), (1, "", False)),
        (CommandLine("undo", "3 --files"), (3, "", True)),
        (CommandLine("undo", "9" * 5_000), (2**31, "", False)),
        (CommandLine("redo", "--files"), (1, "", True)),
        (CommandLine("restore", "In[3]"), (1, "In[3]", False)),
        (CommandLine("restore", "--files"), (1, "", True)),
    ],
)
def test_words_are_read(travel: CommandLine, target: tuple[int, str, bool]) -> None:
    assert words_of(travel) == target


@pytest.mark.parametrize(
    "travel", [CommandLine("undo", "x"), CommandLine("redo", "1"), CommandLine("restore")]
)
def test_words_that_say_nothing_are_refused(travel: CommandLine) -> None:
    with pytest.raises(TravelError, match=f"%{travel.name} takes"):
        words_of(travel)
