"""`wasm-kernel sessions ...`, as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import datetime
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from tests.aged import aged
from tests.faces import completed
from tests.private import folders_of
from wasm_kernel import write_session_file
from wasm_kernel.folders.folders import STATE
from wasm_kernel.folders.locks import note_evicted
from wasm_kernel.folders.places import ROOTS
from wasm_kernel.frontends.cli.main import main
from wasm_kernel.linux import trees
from wasm_kernel.sessions import archives, ids
from wasm_kernel.sessions.metadata import Lineage
from wasm_kernel.sessions.notebooks import bind
from wasm_kernel.sessions.root import SessionsRoot
from wasm_kernel.sessions.session import Session
from wasm_kernel.state.archive_in import Imported

ID = "abc-123"
Done = subprocess.CompletedProcess[str]
Command = Callable[..., Done]


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "sessions"
    trees.remove_tree(tmp_path / "sessions")


@pytest.fixture
def command(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs the command on the sessions in `root`, in this process."""
    monkeypatch.setenv("WASM_KERNEL_WORKSPACE_ROOT", str(root))
    monkeypatch.chdir(tmp_path)

    def run(*words: str, typed: str = "", asks: bool = False) -> Done:
        streams = [TextIOWrapper(BytesIO(text), "utf-8") for text in (typed.encode(), b"", b"")]
        with pytest.MonkeyPatch.context() as patch:
            for name, stream in zip(("stdin", "stdout", "stderr"), streams, strict=True):
                patch.setattr(sys, name, stream)
            patch.setattr(sys.stdin, "isatty", lambda: asks)
            try:
                status = main(["sessions", *words])
            except SystemExit as ended:  # raised by argparse
                status = int(str(ended.code))
        said = []
        for stream in streams[1:]:
            stream.seek(0)
            said.append(stream.read())
        return Done(words, status, *said)

    return run


def good(done: Done) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def failed(done: Done) -> str:
    """The text of a failing command: one sentence, no traceback."""
    assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
    assert done.stderr.startswith("wasm-kernel: ")
    assert "Traceback" not in done.stderr
    return done.stderr


def test_sessions_are_listed_the_last_used_first(command: Command, root: Path) -> None:
    for number, name in enumerate(("old", "new", "middle")):
        write_session_file(name, "a", b"x" * 2000, root)
        aged(root / name, (30, 1, 10)[number] * 24)
    (root / "no session").mkdir()
    lines = good(command("list")).splitlines()
    assert lines[0].split()[:3] == ["SESSION", "LAST", "USED"]
    assert [line.split()[0] for line in lines[1:]] == ["new", "middle", "old"]
    found = json.loads(good(command("list", "--json")))
    assert [one["session_id"] for one in found] == ["new", "middle", "old"]
    assert found[0]["file_bytes"] == 2000
    assert [" ".join(line.split()[3:5]) for line in lines[1:]] == ["24 hours", "10 days", "30 days"]
    assert datetime.fromisoformat(found[0]["updated_at"]).tzinfo is not None


def test_a_list_says_whose_sessions_they_are_and_what_they_take(
    command: Command, root: Path, tmp_path: Path
) -> None:
    write_session_file(ID, "a", b"x" * 100_000, root)
    with closing(folders_of(root / ID)) as folders:
        folders.private.enter(STATE, make=True).close()
        (folders.private.path / STATE / "index").write_bytes(b"x" * 2**20)
        note_evicted(folders.private, "room")
        notebook = tmp_path / "orders.ipynb"
        notebook.write_text("{}")
        bind(SessionsRoot(root), ID, notebook)
    done = command("list")
    assert "1.1 MiB  orders.ipynb  variables were removed to make room" in done.stdout
    assert "1.1 MiB in all" in done.stderr
    notebook.unlink()
    assert good(command("list")).rstrip().endswith("make room; notebook is gone")
    assert str(notebook) in good(command("show", ID))


def test_a_list_without_sessions_is_no_error_and_bad_usage_is_status_2(command: Command) -> None:
    done = command("list")
    assert good(done) == ""
    assert "no sessions" in done.stderr
    assert json.loads(good(command("list", "--json"))) == []
    for words in ("", "frob", f"read {ID}", "prune", f"fork {ID} -n x", f"fork {ID} -n 0"):
        assert command(*words.split()).returncode == 2


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"updated_at": "9999-12-31T23:59:59+00:00"}, f"{ID}  unknown"),
        ({"notebook": "x" * 500_000}, "492.0 KiB\n"),
    ],
    ids=["a time that not all time zones have", "a name that no file can have"],
)
def test_one_sessions_metadata_hides_no_other_session(
    command: Command,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, str],
    shown: str,
) -> None:
    """Before, none were listed, or all between blanks that filled the terminal."""
    write_session_file(ID, "a", b"", root)
    metadata = root / ID / ".metadata.json"
    metadata.write_text(json.dumps(json.loads(metadata.read_text()) | fields))
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert shown in good(command("list"))


def test_another_folder_may_be_named_before_or_behind(command: Command, tmp_path: Path) -> None:
    write_session_file(ID, "a", b"", tmp_path / "other")
    for words in (("--root", "other", "list", "--json"), ("list", "--json", "--root", "other")):
        assert [one["session_id"] for one in json.loads(good(command(*words)))] == [ID]
    trees.remove_tree(tmp_path / "other")


def test_a_session_is_shown(command: Command, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_session_file(ID, "a/b", b"12345", root)
    shown = good(command("show", ID))
    assert str(root / ID) in shown
    assert "1 (5 bytes)" in shown
    assert json.loads(good(command("show", ID, "--json")))["in_use"] is False
    assert "no such session" in failed(command("show", "missing"))
    assert "no such session" in failed(command("show", "../x"))
    assert "has more files than" not in shown
    monkeypatch.setattr("wasm_kernel.sessions.overview.ENTRIES_MOST", 1)
    assert "has more files than are counted" in good(command("show", ID))
    session = Session(SessionsRoot(root), ID)
    assert json.loads(good(command("show", ID, "--json")))["in_use"] is True
    assert "Use %fork" in failed(command("fork", ID))
    assert "Nothing was exported" in failed(command("export", ID))
    session.closed()


def test_files_are_written_listed_and_deleted(command: Command, tmp_path: Path, root: Path) -> None:
    write_session_file(ID, "first", b"", root)
    good(command("write", ID, "notes.txt", typed="hello\n"))
    (tmp_path / "local.bin").write_bytes(b"\xff\x00")
    good(command("write", ID, "data/x.bin", "local.bin"))
    assert good(command("files", ID)).split() == ["data/x.bin", "first", "notes.txt"]
    assert good(command("files", ID, "**/*.bin")) == "data/x.bin\n"
    assert json.loads(good(command("files", ID, "--json"))) == ["data/x.bin", "first", "notes.txt"]
    assert "6 bytes" in good(command("files", ID, "--long"))
    assert good(command("read", ID, "notes.txt")) == "hello\n"
    good(command("read", ID, "data/x.bin", "--output", "back.bin"))
    assert (tmp_path / "back.bin").read_bytes() == b"\xff\x00"
    assert "already" in failed(command("write", ID, "first", "--no-overwrite", typed="x"))
    good(command("delete", ID, "notes.txt"))
    assert "notes.txt" in failed(command("read", ID, "notes.txt"))
    assert "not empty" in failed(command("delete", ID, "data"))
    assert "--yes" in failed(command("delete", ID, "data", "--recursive"))
    good(command("delete", ID, "data", "--recursive", "--yes"))
    assert good(command("files", ID)) == "first\n"


def test_names_are_escaped_in_the_terminal(command: Command, root: Path) -> None:
    write_session_file(ID, "\x1b]0;t\x07", b"", root)
    for words in (("files", ID), ("files", ID, "-l"), ("read", ID, "\x1b[2J")):
        done = command(*words)
        assert "\x1b" not in done.stdout + done.stderr


def test_a_typing_error_makes_no_session(command: Command, root: Path) -> None:
    root.mkdir()
    assert "no such session" in failed(command("write", "abc-132", "a", typed="x"))
    assert list(root.iterdir()) == []


def test_a_session_is_deleted_only_when_the_user_says_so(command: Command, root: Path) -> None:
    write_session_file(ID, "a", b"", root)
    assert "--yes" in failed(command("delete", ID, typed="y\n"))
    assert "Nothing was deleted" in command("delete", ID, typed="n\n", asks=True).stderr
    assert (root / ID).is_dir()
    good(command("delete", ID, "--yes"))
    assert not (root / ID).exists()
    assert "no such session" in failed(command("delete", ID, "--yes"))


def test_pruning_tells_first_and_deletes_when_asked(command: Command, root: Path) -> None:
    old = "00000000-0000-4000-8000-000000000000"
    write_session_file(old, "a", b"x", root)
    aged(root / old, 30 * 24)
    dry = command("prune", "--older-than", "7d")
    assert good(dry) == f"{old}\n"
    assert "Dry run" in dry.stderr
    assert "--yes" in failed(command("prune", "--older-than", "7d", "--apply"))
    assert (root / old).is_dir()
    done = json.loads(good(command("prune", "--older-than", "7d", "--apply", "--yes", "--json")))
    assert done["deleted_sessions"] == [old]
    assert not (root / old).exists()
    assert "30m, 24h" in failed(command("prune", "--older-than", "soon"))


def test_an_archive_goes_out_and_comes_in(command: Command, root: Path, tmp_path: Path) -> None:
    write_session_file(ID, "a", b"x", root)
    told = good(command("export", ID))
    assert told.startswith(f"{ID}.tar.gz: 1 files, 0 states of memory, ")
    assert "exists" in failed(command("export", ID))
    fresh = good(command("import", f"{ID}.tar.gz")).strip()
    assert (root / fresh / "a").read_bytes() == b"x"
    assert "already" in failed(command("import", f"{ID}.tar.gz", "--as"))
    made = json.loads(good(command("import", f"{ID}.tar.gz", "--as", "named", "--json")))
    assert made["session_id"] == "named"
    forks = json.loads(good(command("fork", ID, "-n", "2", "--json")))
    assert [(root / name / "a").read_bytes() for name in forks] == [b"x"] * 2
    (tmp_path / "bad").write_bytes(b"no archive")
    assert "not an archive of a session" in failed(command("import", "bad"))
    assert "missing" in failed(command("import", "missing"))


def test_a_session_is_named_by_the_beginning_of_its_id_or_its_notebook(
    command: Command, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = "1a2b0000-0000-4000-8000-000000000000", "1a2c0000-0000-4000-8000-000000000000"
    for number, name in enumerate((first, second, "1a2b")):
        write_session_file(name, f"f{number}", b"", root)
    (tmp_path / "orders.ipynb").write_text("{}")
    bind(SessionsRoot(root), first, tmp_path / "orders.ipynb")
    for text in (first, "1a2b0", "orders.ipynb", "./orders.ipynb", str(tmp_path / "orders.ipynb")):
        assert good(command("files", text)) == "f0\n"
    assert good(command("files", "1a2b")) == "f2\n"  # a full id goes before ids that begin with it
    assert good(command("files", "1a2c")) == "f1\n"
    for words in (("show", "1a2"), ("delete", "1a2", "--yes"), ("open", "1a2"), ("fork", "1a2")):
        said = failed(command(*words))
        assert f"3 sessions fit 1a2 (1a2b, {first}, {second}). Nothing was done" in said
    assert "no such session" in failed(command("show", "3"))
    assert "`wasm-kernel sessions list` shows both" in failed(command("show", "other.ipynb"))
    assert "ends in .ipynb" in failed(command("bind", first, "other"))
    good(command("delete", "1a2c", "--yes"))
    assert sorted(path.name for path in root.iterdir()) == ["1a2b", first]
    ROOTS.add(root)
    monkeypatch.setenv("WASM_KERNEL_WORKSPACE_ROOT", str(tmp_path / "another"))
    assert f"has session {first}" in good(command("bind", "orders.ipynb", "orders.ipynb"))


def test_a_fork_is_named_after_its_parent_and_its_notebook_has_the_cells(
    command: Command, root: Path, tmp_path: Path
) -> None:
    parent, child, grandchild = (ids.new() for _ in range(3))
    write_session_file(parent, "a", b"", root)
    for name, line in ((child, (parent, parent)), (grandchild, (child, parent))):
        Session(SessionsRoot(root), name, about=Lineage(*line).fields).closed()
    shown = good(command("list"))
    assert f"fork of {parent:.8}" in shown
    assert f"fork of {child:.8}" in shown
    book = {"cells": [{"source": "x = 1", "outputs": ["big"]}], "metadata": {"kernelspec": {}}}
    (tmp_path / "orders.ipynb").write_text(json.dumps(book))
    bind(SessionsRoot(root), parent, tmp_path / "orders.ipynb")
    assert good(command("list")).count("fork of orders.ipynb") == 2
    said = good(command("bind", grandchild, "variant.ipynb"))
    assert "Its cells are those of orders.ipynb, as they were saved last. Open it." in said
    assert json.loads((tmp_path / "variant.ipynb").read_text()) == book
    assert f"has session {parent}" in good(command("bind", "orders.ipynb", "orders.ipynb"))
    (tmp_path / "orders.ipynb").write_text("[not a notebook")
    assert "cells" not in good(command("bind", child, "empty.ipynb"))
    assert json.loads((tmp_path / "empty.ipynb").read_text())["cells"] == []


def test_a_reader_that_has_had_enough_is_no_error(root: Path, environment: dict[str, str]) -> None:
    for number in range(300):
        write_session_file(ID, f"file-{number}" + "x" * 200, b"", root)
    program = (
        f"{sys.executable} -m wasm_kernel.frontends.cli.main sessions --root {root} files {ID}"
    )
    done = completed(
        f"{program} | head -1", shell=True, env={**environment, "PYTHONPATH": str(Path.cwd())}
    )
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


def test_a_note_has_no_terminal_escapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Imported("abc", 0, 0, {}, "\x1b]0;owned\x07")
    monkeypatch.setattr(archives, "import_session", lambda *args, **options: made)
    assert main(["sessions", "import", str(tmp_path / "a.tar.gz")]) == 0
    assert "\\x1b]0;owned\\x07" in capsys.readouterr().err
