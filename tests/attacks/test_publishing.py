"""A hostile notebook publishes files, or writes with `folder=write`.

Its means: names, planted links, files that change, and files that are not its own.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.faces import host_tree
from tests.private import private_of
from tests.publishing.published import Publishing
from tests.sampled import sampled
from wasm_kernel.folders.places import ROOTS
from wasm_kernel.linux import files
from wasm_kernel.linux.files import FileMark
from wasm_kernel.linux.task import QUIET
from wasm_kernel.linux.walks import FolderWalk
from wasm_kernel.publishing import tree
from wasm_kernel.publishing.names import PublishError
from wasm_kernel.publishing.place import WriteFiles

SECRET = "secret of the host"


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Publishing]:
    made = Publishing(tmp_path)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "key.csv").write_text(SECRET)
    monkeypatch.chdir(made.book)
    yield made
    assert (tmp_path / "outside" / "key.csv").read_text() == SECRET
    assert len(host_tree(tmp_path / "outside")) <= 2
    made.session.closed()


NAMES = [
    *("../r.csv", "a/../../r.csv", "/etc/r.csv", "./r.csv", "a//r.csv", "a/", "", ".", ".."),
    *(".r.csv", ".git/r.csv", "-rf.csv", "--x=y.csv", "~r.csv", "@r.txt", "#r.csv", " r.csv"),
    *("a\nb.csv", "a\0.csv", "a;reboot.csv", "$(reboot).csv", "a|b.csv", "<b>.csv", '".csv'),
    *("a\\b.csv", "a:b.csv", "*.csv", "r\ufe0f.csv", "a\u202egnp.csv", "\udc80.csv", "r.csv "),
    *("a\x1b[2J.csv", "r.csv.", "a./r.csv", "x" * 201 + ".csv", "r.py", "r.html", "r.ipynb"),
    *("r.csv.py", "r", "csv", "Makefile", "TEST_R.TXT", "a/tests.txt", "package.json"),
    *("function.json", "tsconfig.build.json", "x.dist-info/r.txt", "etc/jupyter.d/r.json"),
    *("x.app/r.csv", "/".join(["a"] * 40) + "/r.csv"),
]


OF_TOOLS = [
    *("biome.json", "kernel.json", "Tasks.json", "requirements.txt", "CMakeLists.txt"),
    *("a/Requirements/dev.TXT", "lab/conf.json", "of-a-tool-that-nobody-knows-yet.json"),
]


@pytest.mark.parametrize("name", OF_TOOLS)
def test_names_of_tools_land_in_folders_for_results_alone(one: Publishing, name: str) -> None:
    for path in (name, f"results/{name}", f"a/b.files/{name}", f"results.x/{name}"):
        one.write(path)
        refused = brought(one, path)
        assert bool(refused) == path.startswith((name, "results.x"))
        assert (one.book / path).exists() is not bool(refused)
    (one.book / name).parent.mkdir(parents=True, exist_ok=True)
    (one.book / name).write_text("mine")
    assert brought(one, name)
    (one.app / name).unlink()
    above, _, last = name.rpartition("/")
    (one.app / above / f".wh.{last}").touch()
    assert brought(one, name)
    assert (one.book / name).read_text() == "mine"
    one.write(name)
    assert one.publish(name).links == {name: f"orders.files/{name}"}


def test_data_lands_where_cells_write_it(one: Publishing) -> None:
    for name in ("r.csv", "r.jsonl", "a/r v1.2.png", "v1.2/r.csv", "txt.csv"):
        one.write(name)
        assert brought(one, name) == {}
        assert (one.book / name).exists()


def test_a_name_that_leads_elsewhere_or_is_acted_on_is_refused(one: Publishing) -> None:
    for name in NAMES:
        with contextlib.suppress(OSError, ValueError):
            one.write(name.lstrip("/") or "x")
        assert one.refusal(name), name
        assert [*one.files] == [], name


def test_only_the_sessions_own_regular_files_are_copied(one: Publishing, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (one.app / "link.csv").symlink_to(outside / "key.csv")
    (one.app / "way").symlink_to(outside)
    os.mkfifo(one.app / "pipe.csv")
    (one.app / "folder.csv").mkdir()
    for name in ("link.csv", "way/key.csv", "pipe.csv", "folder.csv"):
        assert "regular file" in one.refusal(name)
    assert one.files == {}


def test_sessions_in_the_workspace_are_not_published(one: Publishing) -> None:
    one.write("inner/key.csv", SECRET)
    ROOTS.add(one.app / "inner")  # cells can't reach a root of sessions
    assert "no such file" in one.refusal("inner/key.csv")
    assert one.files == {}


PLANTED: dict[str, Callable[[Path, Path], object]] = {
    "the folder": lambda book, outside: (book / "orders.files").symlink_to(outside),
    "a folder in it": lambda book, outside: (book / "orders.files" / "a").symlink_to(outside),
    "the file": lambda book, outside: (book / "orders.files/a/r.csv").symlink_to(
        outside / "key.csv"
    ),
    "a dangling link": lambda book, outside: (book / "orders.files/a/r.csv").symlink_to(
        outside / "new.csv"
    ),
    "a pipe": lambda book, outside: os.mkfifo(book / "orders.files/a/r.csv"),
    "another name": lambda book, outside: os.link(
        outside / "key.csv", book / "orders.files/a/r.csv"
    ),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_planted_files_lead_nowhere(one: Publishing, tmp_path: Path, planted: str) -> None:
    if planted != "the folder":
        (one.book / "orders.files").mkdir()
    if planted not in ("the folder", "a folder in it"):
        (one.book / "orders.files" / "a").mkdir()
    PLANTED[planted](one.book, tmp_path / "outside")
    before = sorted(os.walk(one.book))
    one.write("a/r.csv", "evil")
    try:
        assert one.refusal("a/r.csv")
    except PublishError as problem:
        assert "is a link, or something else" in str(problem)
        assert str(tmp_path) not in str(problem)
    assert sorted(os.walk(one.book)) == before


def test_a_published_file_whose_place_a_link_takes_is_not_written_through(
    one: Publishing, tmp_path: Path
) -> None:
    one.write("r.csv", SECRET)  # a file of the same content is another file
    one.publish("r.csv")
    there = one.book / "orders.files/r.csv"
    there.unlink()
    there.symlink_to(tmp_path / "outside" / "key.csv")
    one.write("r.csv", "evil")
    assert "was changed since" in one.refusal("r.csv")
    there.unlink()
    there.write_text(SECRET)  # a file of the user with the same content
    assert "was changed since" in one.refusal("r.csv")
    assert one.files == {"orders.files/r.csv": SECRET}


def test_the_user_saves_in_the_last_moment_and_keeps_his_file(
    one: Publishing, monkeypatch: pytest.MonkeyPatch
) -> None:
    one.write("r.csv", "1")
    one.publish("r.csv")
    one.write("r.csv", "2")

    def late(*names: Any) -> bool:
        (one.book / "mine").write_text("mine")
        (one.book / "mine").replace(one.book / "orders.files/r.csv")
        monkeypatch.undo()
        monkeypatch.chdir(one.book)
        return files.swap_names(*names)

    monkeypatch.setattr(tree, "swap_names", late)
    assert "was left as it is" in one.refusal("r.csv")
    assert one.files == {"orders.files/r.csv": "mine"}


def test_a_file_that_changes_is_copied_whole_or_not_at_all(one: Publishing) -> None:
    stop, size = threading.Event(), 100_000

    def change() -> None:
        digit = 0
        while not stop.is_set():
            digit = (digit + 1) % 10
            with (one.app / "r.txt").open("r+b", buffering=0) as file:
                file.write(str(digit).encode() * size)
                file.truncate(size + digit)

    one.write("r.txt", "0" * size)
    guest = threading.Thread(target=change)
    guest.start()
    try:
        for _ in range(30):
            one.publish("r.txt")
            assert set(one.files) <= {"orders.files/r.txt"}
            assert all(len(text) <= size + 10 for text in one.files.values())
    finally:
        stop.set()
        guest.join()
    assert one.publish("r.txt").refused == {}


def test_changes_behind_copies_are_seen(one: Publishing, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = files.FileCopier.copy

    def late(self: files.FileCopier, source: int, target: int, size: int) -> None:
        copy(self, source, target, size)
        one.write("r.txt", "new")
        os.utime(one.app / "r.txt", (0, 0))

    one.write("r.txt", "old")
    os.utime(one.app / "r.txt", (0, 0))
    monkeypatch.setattr(files.FileCopier, "copy", late)
    assert "changed while" in one.refusal("r.txt")
    assert one.files == {}


def test_a_huge_file_is_refused_before_it_is_read(one: Publishing) -> None:
    one.write("r.csv")
    os.truncate(one.app / "r.csv", 1 << 40)
    assert "workspace_bytes" in one.refusal("r.csv")
    with pytest.raises(PublishError):
        one.publish(*[f"{n}.csv" for n in range(5000)])


def test_nothing_is_put_where_private_state_or_sessions_lie(
    one: Publishing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one.write("r.csv")
    state = Path(os.environ["XDG_STATE_HOME"], "wasm-kernel")
    for place in (one.app, one.root, state, state / "private", tmp_path / "kept"):
        place.mkdir(exist_ok=True)
        monkeypatch.chdir(place)
        one.place = replace(one.place, kept=(tmp_path / "kept",))
        with pytest.raises(PublishError, match="Nothing was published"):
            one.publish("r.csv")
        assert not [*place.rglob("orders.files/*")]


# -- folder=write


def brought(one: Publishing, *paths: str) -> dict[str, str]:
    """The paths that a cell has changed and that are refused."""
    return one.place.write(WriteFiles(paths), QUIET).refused


@pytest.mark.parametrize("name", sampled({name: name for name in NAMES}, 7))
def test_no_such_name_is_written_or_deleted_in_the_folder(one: Publishing, name: str) -> None:
    if ".." not in name and not name.startswith("/"):
        with contextlib.suppress(OSError, ValueError):
            (one.book / name).parent.mkdir(parents=True, exist_ok=True)
            (one.book / name).write_text("mine")
        with contextlib.suppress(OSError, ValueError):
            one.write(name, "evil")
    before = host_tree(one.book)
    brought(one, name)
    above, _, last = name.rpartition("/")
    with contextlib.suppress(OSError, ValueError):
        (one.app / name).unlink()
        (one.app / above / f".wh.{last}").touch()
    brought(one, name)
    assert host_tree(one.book) == before


def test_links_in_the_folder_are_neither_used_nor_deleted(one: Publishing, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (one.book / "a").symlink_to(outside)
    (one.book / "r.csv").symlink_to(outside / "key.csv")
    os.mkfifo(one.book / "pipe.csv")
    os.link(outside / "key.csv", one.book / "same.csv")
    for path in ("a/key.csv", "a/new.csv", "r.csv", "pipe.csv", "same.csv"):
        one.write(path, "evil")
    refused = brought(one, "a/key.csv", "a/new.csv", "r.csv", "pipe.csv", "same.csv")
    assert set(refused) == {"a/key.csv", "a/new.csv", "r.csv", "pipe.csv"}
    assert (one.book / "same.csv").read_text() == "evil"  # the file belongs to the folder now
    for path in ("a", "r.csv", "pipe.csv", "same.csv"):
        one.write(f".wh.{path}", "")
    shutil.rmtree(one.app / "a")
    (one.app / "r.csv").unlink()
    (one.app / "pipe.csv").unlink()
    assert set(brought(one, "a", "r.csv", "pipe.csv")) == {"a", "r.csv", "pipe.csv"}
    assert (one.book / "r.csv").is_symlink()
    assert [each.name for each in outside.iterdir()] == ["key.csv"]


def test_files_that_cells_are_not_shown_are_neither_replaced_nor_deleted(
    one: Publishing, tmp_path: Path
) -> None:
    (one.book / "kept").mkdir()
    for path in ("secret.json", "kept/r.csv", "inner/r.csv"):
        (one.book / path).parent.mkdir(exist_ok=True)
        (one.book / path).write_text("mine")
        one.write(path, "evil")
    ROOTS.add(one.book / "inner")
    one.place = replace(one.place, kept=(one.book / "kept",))
    before = host_tree(one.book)
    assert len(brought(one, "secret.json", "kept/r.csv", "inner/r.csv")) == 3
    (one.book / "kept2").mkdir()
    one.place = replace(one.place, kept=(one.book / "kept", one.book / "kept2"))
    one.write(".wh.kept2", "")  # cells don't see the folder, so they may not remove it
    brought(one, "kept2")
    assert (one.book / "kept2").is_dir()
    (one.book / "deep").mkdir()
    (one.book / "kept2").rename(one.book / "deep" / "kept2")
    one.place = replace(one.place, kept=(one.book / "kept", one.book / "deep" / "kept2"))
    one.write(".wh.deep", "")
    brought(one, "deep")
    assert (one.book / "deep" / "kept2").is_dir()
    shutil.rmtree(one.book / "deep")
    for path in ("secret.json", "kept/r.csv", "inner/r.csv"):
        above, _, name = path.rpartition("/")
        (one.app / path).unlink()
        one.write(f"{above}/.wh.{name}".lstrip("/"), "")
    brought(one, "secret.json", "kept/r.csv", "inner/r.csv")
    assert host_tree(one.book) == before


def test_a_deep_path_is_not_looked_for(one: Publishing, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = "/".join(["d"] * 2000)
    steps: list[str] = []
    monkeypatch.setattr(FolderWalk, "enter", lambda self, name: steps.append(name))
    assert len(brought(one, deep, f"{deep}/r.csv", "d" * 5000)) == 3
    assert steps == []


def test_kept_originals_can_not_be_planted(one: Publishing) -> None:
    (one.book / "mine.csv").write_text("mine")
    one.write("written/kept-x", "evil")
    one.write("mine.csv", "evil")
    assert brought(one, "mine.csv") == {}
    (one.app / "mine.csv").unlink()
    assert brought(one, "mine.csv") == {}
    assert one.files == {"mine.csv": "mine"}


def test_a_forged_record_brings_no_other_file_or_name_into_the_folder(one: Publishing) -> None:
    """The record lies in the private folder, where a kernel that was taken over can write."""
    written = private_of(one.app) / "written"
    (one.book.parent / "secret.csv").write_text("secret")
    (one.book / "mine.csv").write_text("mine")
    one.write("a.csv", "1")
    brought(one, "a.csv")
    (one.app / "a.csv").unlink()
    (record,) = (each for each in written.iterdir() if "." not in each.name)
    (written / "kept-0").write_text("import os")
    text, signature = record.read_bytes().split(b"\t")
    before, known = one.files, json.loads(text)
    digest = hashlib.blake2b(b"mine", digest_size=32).hexdigest()
    mark = msgspec.to_builtins(FileMark.at(one.book / "mine.csv"))
    for path, forged in {
        "b.csv": {"own": None, "kept": os.path.relpath(one.book.parent / "secret.csv", written)},
        "c.csv": {"own": None, "kept": str(one.book.parent / "secret.csv")},
        "run.py": {"own": None, "kept": "kept-0"},
        "package.json": {"own": None, "kept": "kept-0"},
        "mine.csv": {"own": {"mark": mark, "size": 4, "digest": digest}},
    }.items():
        line = json.dumps(known | {"files": {path: forged}}).encode()
        for signed in (line, line + b"\t" + signature):
            record.write_bytes(signed)
            brought(one, path)
            assert one.files == before
