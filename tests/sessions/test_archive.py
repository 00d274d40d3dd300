"""A session exported to an archive and imported again has the same files and variables."""

from __future__ import annotations

import io
import json
import os
import re
import stat
import subprocess
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests import stored
from tests.aged import metadata_of
from tests.documented import Heard
from tests.faces import error_of, full_disk, says
from tests.private import private_of
from tests.stored import commits_in, state_of
from wasm_kernel import (
    RuntimeType,
    Sandbox,
    SessionInUse,
    get_session_sandbox,
    list_session_files,
    read_session_file,
    write_session_file,
)
from wasm_kernel.linux import trees
from wasm_kernel.sessions.archives import export_session, import_session
from wasm_kernel.state.index import Name, Record

ID = "abc-123"


def session_in(root: Path, runtime: RuntimeType = RuntimeType.PYTHON) -> Sandbox:
    """A session that will be exported; JavaScript's memory is small."""
    return get_session_sandbox(ID, workspace_root=root, runtime=runtime)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "here"
    trees.remove_tree(tmp_path / "here")


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "there"
    trees.remove_tree(tmp_path / "there")


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return tmp_path / "session.tar.gz"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The archive of a session with a variable and three open files; tests don't change it."""
    folder = tmp_path_factory.mktemp("exported")
    with session_in(folder / "here") as sandbox:
        says(sandbox, "x = 1; open('a', 'w').write('kept')")
        says(sandbox, "files = [open(f'notes{n}', 'w+') for n in range(3)]")
        says(sandbox, "for f in files: _ = f.write('one'); f.flush()")
    export_session(ID, folder / "exported.tar.gz", folder / "here")
    yield folder / "exported.tar.gz"
    (folder / "exported.tar.gz").unlink()


# -- files


def test_files_come_back_as_they_were(here: Path, there: Path, archive: Path) -> None:
    write_session_file(ID, "a/b/deep.bin", bytes(range(256)) * 1000, here)
    write_session_file(ID, "empty", b"", here)
    app = here / ID
    (app / "folder").mkdir(mode=0o750)
    (app / "link").symlink_to("a/b/deep.bin")
    (app / "dangling").symlink_to("nothing")
    (app / "a" / "b" / "deep.bin").chmod(0o754)
    os.utime(app / "empty", (1_000_000, 1_000_000))
    os.mkfifo(app / "pipe")
    made = export_session(ID, archive, here)
    assert (made.files, made.states) == (2, 0)
    assert made.left_out == {"files/pipe": "it is neither a file nor a folder"}
    assert "no variables" in made.note
    back = import_session(archive, there)
    assert back.session_id != ID
    other = there / back.session_id
    assert list_session_files(back.session_id, there) == ["a/b/deep.bin", "empty", "link"]
    assert read_session_file(back.session_id, "link", there) == bytes(range(256)) * 1000
    assert (other / "dangling").readlink() == Path("nothing")
    assert stat.S_IMODE((other / "folder").stat().st_mode) == 0o750
    assert stat.S_IMODE((other / "a/b/deep.bin").stat().st_mode) == 0o754
    assert (other / "empty").stat().st_mtime == 1_000_000
    assert metadata_of(other)["session_id"] == back.session_id


def test_holes_stay_holes_on_both_ways(
    here: Path, there: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hole of the file with too many parts becomes zeros."""
    monkeypatch.setattr("wasm_kernel.state.tar._RANGES_MOST", 1)
    write_session_file(ID, "x", b"", here)
    (here / ID / "parts").write_bytes(b"first")
    with (here / ID / "parts").open("r+b") as file:
        file.seek(1 << 17)
        file.write(b"second")
    with (here / ID / "sparse").open("wb") as file:
        file.truncate(1 << 40)
        file.seek(1 << 39)
        file.write(b"middle")
    with (here / ID / "hollow").open("wb") as file:
        file.truncate(1 << 30)
    export_session(ID, archive, here)
    assert archive.stat().st_size < 1 << 20
    back = there / import_session(archive, there).session_id
    assert (back / "parts").read_bytes() == b"first".ljust(1 << 17, b"\0") + b"second"
    found = (back / "sparse").stat()
    assert found.st_size == 1 << 40
    assert found.st_blocks * 512 < 1 << 20
    with (back / "sparse").open("rb") as read:
        read.seek(1 << 39)
        assert read.read(8) == b"middle\0\0"
    assert (back / "hollow").stat().st_size == 1 << 30


def test_tar_reads_the_archive(squeezed: None, here: Path, archive: Path, tmp_path: Path) -> None:
    write_session_file(ID, "data.csv", b"1,2\n", here)
    with (here / ID / "sparse").open("wb") as file:
        file.truncate(10 << 20)
        file.seek(5 << 20)
        file.write(b"x")
    export_session(ID, archive, here)
    subprocess.run(["tar", "-xzf", str(archive), "-C", str(tmp_path)], check=True)
    assert (tmp_path / "files" / "data.csv").read_bytes() == b"1,2\n"
    assert (tmp_path / "files" / "sparse").read_bytes() == (here / ID / "sparse").read_bytes()


ODD = ["a\nb", "ž" * 100, "x" * 255, "back\\slash", "-rf", "\udcff\udcfe", " ", "C:x"]


def test_odd_names_and_deep_trees_are_carried(here: Path, there: Path, archive: Path) -> None:
    write_session_file(ID, "deep/" * 600 + "leaf", b"x", here)
    for name in ODD:
        (here / ID / name).write_bytes(b"odd")
    export_session(ID, archive, here)
    back = import_session(archive, there).session_id
    assert list_session_files(back, there) == list_session_files(ID, here)
    names = [
        sorted(path.name for path in (root / one).iterdir())
        for root, one in ((here, ID), (there, back))
    ]
    assert names[0] == names[1]


# -- ids, and sessions that exist already


def test_the_id_is_new_kept_or_chosen(here: Path, there: Path, archive: Path) -> None:
    write_session_file(ID, "a", b"x", here)
    export_session(ID, archive, here)
    assert import_session(archive, there, same_id=True).session_id == ID
    assert import_session(archive, there, session_id="other").session_id == "other"
    fresh = import_session(archive, there).session_id
    assert sorted(path.name for path in there.iterdir()) == sorted([ID, "other", fresh])
    with pytest.raises(ValueError, match="session id"):
        import_session(archive, there, session_id="../x")


def test_full_disk_leaves_none(here: Path, archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_session_file(ID, "a", os.urandom(1 << 20), here)
    monkeypatch.setattr("wasm_kernel.state.tar.os.pread", full_disk)
    with pytest.raises(OSError, match="No space"):
        export_session(ID, archive, here)
    assert not archive.exists()


def test_both_ways_are_logged(here: Path, there: Path, archive: Path, heard: Heard) -> None:
    write_session_file(ID, "a", b"x", here)
    export_session(ID, archive, here, logger=heard.logger)
    made = import_session(archive, there, logger=heard.logger)
    ends = [("session.exported", ID), ("session.imported", made.session_id)]
    counts = {"files": 1, "states": 0, "level": "info"}
    assert heard.events == [(event, {"session_id": name, **counts}) for event, name in ends]


# -- variables


def test_variables_and_the_past_come_along(here: Path, there: Path, archive: Path) -> None:
    with session_in(here) as sandbox:
        says(sandbox, "import pandas as pd\ndf = pd.DataFrame({'a': [1, 2]})\nx = 1")
        says(sandbox, "%checkpoint first")
        says(sandbox, "import sqlite3\ndb = sqlite3.connect('data.db')")
        says(
            sandbox, "_ = db.execute('create table t (n)'), db.execute('insert into t values (7)')"
        )
        says(sandbox, "f = open('notes', 'w'); _ = f.write('one '); f.flush()")
        says(sandbox, "t = open('/tmp/t', 'w+'); _ = t.write('tmp'); t.flush()")
        says(sandbox, "gone = open('gone', 'w'); import os; os.remove('gone')")
        says(sandbox, "other = open('other', 'w'); os.remove('other'); open('other', 'w').close()")
        says(sandbox, "x = 2; gen = (i for i in range(9)); next(gen)")
    made = export_session(ID, archive, here)
    assert made.note == ""
    back = import_session(archive, there)
    assert (back.states, back.note) == (made.states, "")
    with get_session_sandbox(back.session_id, workspace_root=there) as sandbox:
        told = sandbox.execute("print(x, next(gen), df.a.sum(), open('/tmp/t').read())")
        assert told.stdout == "2 1 3 tmp\n"
        assert "variables and files are as they were" in told.stderr
        assert "imported" in told.stderr
        says(sandbox, "db.commit()")
        assert says(sandbox, "print(db.execute('select n from t').fetchall())") == "[(7,)]"
        says(sandbox, "_ = f.write('two'); f.flush()")
        assert says(sandbox, "print(open('notes').read())") == "one two"
        assert says(sandbox, "_ = t.seek(0); print(t.read())") == "tmp"
        for lost in ("gone", "other"):
            told = sandbox.execute(f"{lost}.write('x'); {lost}.flush()")
            assert error_of(told).startswith("OSError:")
        assert says(sandbox, "print(os.path.getsize('other'))") == "0"
        says(sandbox, "%restore first")
        assert says(sandbox, "print(x)") == "1"
    assert (here / ID / "notes").read_text() == "one "
    with session_in(here) as sandbox:
        assert says(sandbox, "print(x)") == "2"  # the exported session is unchanged


def test_two_that_are_imported_draw_other_numbers(here: Path, there: Path, archive: Path) -> None:
    with session_in(here, RuntimeType.JAVASCRIPT) as sandbox:
        says(sandbox, "Math.random()")
    export_session(ID, archive, here)
    drawn = set()
    for _ in range(2):
        made = import_session(archive, there).session_id
        with get_session_sandbox(made, "javascript", workspace_root=there) as sandbox:
            drawn.add(says(sandbox, "console.log(Math.random())"))
    assert len(drawn) == 2


def test_open_files_come_twice(exported: Path, here: Path, there: Path, archive: Path) -> None:
    export_session(import_session(exported, there).session_id, archive, there)
    made = import_session(archive, here).session_id
    with get_session_sandbox(made, workspace_root=here) as sandbox:
        assert says(sandbox, "f = files[0]; _ = f.seek(0); print(f.read())") == "one"


def test_an_open_session_is_exported_without_variables(here: Path, archive: Path) -> None:
    with session_in(here) as sandbox:
        says(sandbox, "open('a', 'w').write('x')")
        with pytest.raises(SessionInUse, match="Nothing was exported"):
            export_session(ID, archive, here)
        assert not archive.exists()
        made = export_session(ID, archive, here, files_only=True)
        assert (made.files, made.states) == (1, 0)


def test_variables_of_other_versions_are_left(exported: Path, there: Path, tmp_path: Path) -> None:
    other = "0" * 32 + ".image"
    changed = rewritten(exported, tmp_path / "changed.tar", image=False, artifact=other)
    made = import_session(changed, there)
    assert made.states == 0
    assert "another version of the sandbox" in made.note
    with get_session_sandbox(made.session_id, workspace_root=there) as sandbox:
        assert says(sandbox, "print(open('a').read(), 'x' in globals())") == "kept False"


def test_a_damaged_state_costs_the_variables_and_not_the_files(
    here: Path, there: Path, archive: Path, tmp_path: Path
) -> None:
    with session_in(here, RuntimeType.JAVASCRIPT) as sandbox:
        says(sandbox, "var x = 1; require('fs').writeFileSync('a', 'kept')")
    export_session(ID, archive, here)
    damaged = rewritten(archive, tmp_path / "damaged.tar", flip=True)
    made = import_session(damaged, there)
    assert (made.files, made.states) == (1, 0)
    assert "damaged" in made.note
    assert not list((private_of(there / made.session_id) / "state").iterdir())


def test_the_export_tells_of_missing_states_and_leaves_out_names_of_none(
    here: Path, there: Path, archive: Path
) -> None:
    with session_in(here, RuntimeType.JAVASCRIPT) as sandbox:
        says(sandbox, "var x = 1")
        sandbox.checkpoint("first")
        says(sandbox, "x = 2")

    def forged(record: Record) -> Record:
        return Name("\x1b[31m", record.id) if isinstance(record, Name) else record

    state = state_of(here / ID)
    stored.rewritten(state, forged)
    stored.flip(stored.content_of(state, max(commits_in(state))))
    made = export_session(ID, archive, here)
    assert "damaged or missing" in made.note
    assert made.states > 0
    back = import_session(archive, there)
    assert (back.states, back.note) == (made.states, "")
    runtime = RuntimeType.JAVASCRIPT
    with get_session_sandbox(back.session_id, workspace_root=there, runtime=runtime) as sandbox:
        assert says(sandbox, "console.log(x)") == "1"


def rewritten(
    archive: Path,
    target: Path,
    *,
    flip: bool = False,
    image: bool = True,
    **memory: Any,
) -> Path:
    """The archive with other words in its manifest, or with a byte of a member changed.

    Its base image is empty if the test does not read it.
    """
    with tarfile.open(archive) as old, tarfile.open(target, "w") as new:
        for info in old:
            skipped = not image and info.name == "memory/image"
            data = b"" if skipped else content_of(old, info)
            if info.name == "manifest.json":
                manifest = json.loads(data)
                manifest["memory"] |= memory
                data = json.dumps(manifest).encode()
            if flip and re.fullmatch("memory/[0-9a-f]{64}", info.name):
                data = data[:-100] + bytes([data[-100] ^ 1]) + data[-99:]
            put(new, info, data)
    return target


def content_of(archive: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    """The content of a member, empty if it has none.

    In one piece, `tarfile` copies what it has read so far at each of the base image's holes.
    """
    content = archive.extractfile(info)
    return b"" if content is None else b"".join(iter(partial(content.read, 1 << 20), b""))


def put(new: tarfile.TarFile, info: tarfile.TarInfo, data: bytes) -> None:
    """Adds a member of another archive, with this content and without its holes."""
    plain = tarfile.TarInfo(info.name)
    plain.type, plain.linkname, plain.size = info.type, info.linkname, len(data)
    plain.mode = info.mode
    new.addfile(plain, io.BytesIO(data))
