"""A notebook that a stranger made never gets another notebook's session.

A stranger is the author of a notebook or of an archive, or shares a folder with the user. Strangers
choose the contents of files, their names, links and times, but not inode numbers.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.beneath import over
from tests.faces import full_disk, host_tree, says
from tests.nobody import as_nobody
from tests.sessions.notebook_kernel import NotebookKernel, session_of, written
from wasm_kernel import (
    ExecutionPolicy,
    Sandbox,
    create_session_sandbox,
    export_session,
    get_session_sandbox,
    import_session,
    list_session_files,
)
from wasm_kernel.folders.notebook_file import NotebookRefused
from wasm_kernel.sessions import ids
from wasm_kernel.sessions.notebooks import bind
from wasm_kernel.sessions.root import SessionsRoot

pytestmark = pytest.mark.usefixtures("impatient")


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    return written(tmp_path / "mine" / "analysis.ipynb")


@pytest.fixture
def strangers(tmp_path: Path) -> Path:
    """A folder that a stranger has filled."""
    (folder := tmp_path / "theirs").mkdir()
    return folder


Trick = Callable[[Path, Path], object]
TRICKS: dict[str, Trick] = {
    "a link": lambda victim, planted: planted.symlink_to(victim),
    "a relative link": lambda victim, planted: planted.symlink_to(f"../mine/{victim.name}"),
    "another name of the file": lambda victim, planted: planted.hardlink_to(victim),
    "a copy with all its times": shutil.copy2,
    "a FIFO": lambda _, planted: os.mkfifo(planted),
    "a folder": lambda _, planted: planted.mkdir(),
    "a link to itself": lambda _, planted: planted.symlink_to(planted),
    "nothing": lambda _, planted: None,
}


@pytest.mark.parametrize("trick", TRICKS.values(), ids=list(TRICKS))
def test_nothing_in_a_strangers_folder_leads_to_a_session(
    root: Path, victim: Path, strangers: Path, trick: Trick
) -> None:
    session = session_of(root, victim)
    planted = strangers / victim.name
    trick(victim, planted)
    for _ in range(2):
        assert session_of(root, planted) != session
    assert session_of(root, victim) == session


def test_a_file_with_the_inode_of_a_deleted_one_is_another(root: Path, victim: Path) -> None:
    session, number = session_of(root, victim), victim.stat().st_ino
    times = victim.stat()
    for _ in range(100):
        victim.unlink()
        written(victim, "a stranger's")
        os.utime(victim, ns=(times.st_atime_ns, times.st_mtime_ns))
        if victim.stat().st_ino == number:
            break
    assert session_of(root, victim) != session


def test_a_notebooks_own_metadata_counts_for_nothing(root: Path, victim: Path) -> None:
    session = session_of(root, victim)
    claims = {"session_id": session, "path": str(victim), "wasm_kernel": {"session": session}}
    book = {"cells": [], "metadata": claims | {"pad": "x" * 2000}, "nbformat": 4}
    victim.unlink()
    victim.write_text(json.dumps(book))
    assert session_of(root, victim) != session


def test_names_that_strangers_chose_are_text(root: Path, victim: Path, strangers: Path) -> None:
    planted = strangers / "a; touch x\x1b]52;c;eA==\x07$(id).ipynb"
    shutil.copy(victim, strangers / "first.ipynb")
    session_of(root, strangers / "first.ipynb")
    shutil.copy(strangers / "first.ipynb", planted)
    first = NotebookKernel(root, planted)
    assert first.said.endswith(" NOTEBOOK\n")
    assert first.said.replace("\n", "").isprintable()
    first.end()
    quoted = strangers / "$(id); x.ipynb"
    shutil.copy(victim, quoted)
    second = NotebookKernel(root, quoted)
    assert second.said.endswith(" '$(id); x.ipynb'\n")
    second.end()


def test_another_users_notebook_has_no_session(root: Path, victim: Path, strangers: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give a file to another user")
    with as_nobody(strangers):
        theirs = written(strangers / "theirs.ipynb")
    session = session_of(root, theirs)
    assert session_of(root, theirs) != session
    with pytest.raises(NotebookRefused, match="belongs to another user"):
        bind(SessionsRoot(root), session, theirs)


@pytest.mark.parametrize("damage", ["", "[" * 100_000, '[{"root": 1}, 2]', "FIFO"])
def test_a_damaged_list_costs_the_sessions_their_notebooks_and_nothing_else(
    root: Path, victim: Path, damage: str
) -> None:
    session = session_of(root, victim)
    place = Path(os.environ["XDG_STATE_HOME"], "wasm-kernel", "notebooks", "notebooks.json")
    place.unlink()
    if damage == "FIFO":
        os.mkfifo(place)
    else:
        place.write_text(damage)
    fresh = session_of(root, victim)
    assert fresh != session
    assert session_of(root, victim) == fresh
    assert (root / session).is_dir()


def test_a_full_disk_is_told_and_leaves_the_list_as_it_was(
    root: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = session_of(root, victim)
    with monkeypatch.context() as patch:
        patch.setattr("wasm_kernel.linux.folders.os.rename", full_disk)
        kernel = NotebookKernel(root, victim)
        assert "could not be noted" in kernel.said
        assert kernel.end() == session
    assert session_of(root, victim) == session


SECRET = "secret of the host"
Opening = Callable[..., Sandbox]
LONG_NAMES = """
import os
os.makedirs(above := "/".join("a" * 199 for _ in range(4)))
for number in range(10):
    open(f"{above}/{number}{'b' * 190}.csv", "w").close()
kept = 1
"""
LIST = "import os; print(sorted(os.listdir()))"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A notebook's folder, beside a file that cells must not reach."""
    made = tmp_path / "book"
    (made / "data").mkdir(parents=True)
    (made / "orders.csv").write_text("a\n1\n")
    (made / "data" / "x.csv").write_text("x")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "key").write_text(SECRET)
    return made


@pytest.fixture
def begin(folder: Path, tmp_path: Path, ending: ExitStack) -> Opening:
    """Opens a session like a Jupyter kernel that was started in the folder."""

    def one(root: Path = tmp_path / "sessions", plant: Callable[[Path], object] = str) -> Sandbox:
        made = over(folder, root, ids.new(), ExecutionPolicy(cell_timeout=20.0))
        plant(made.workspace)
        return ending.enter_context(closing(made))

    return one


def test_a_planted_workspace_leads_nowhere(begin: Opening, folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"

    def plant(app: Path) -> None:
        (app / "link").symlink_to(outside)
        (app / "up").symlink_to("../../outside")
        (app / "data").mkdir()
        (app / "data" / ".wh.x.csv").symlink_to(outside / "key")
        (app / ".wh.orders.csv").mkdir()
        os.mkfifo(app / ".wh..wh.part")
        os.mkfifo(app / "fifo")

    before, sandbox = host_tree(folder), begin(plant=plant)
    for path in ("link/key", "up/key", "/app/link/key", "data/.wh.x.csv", "data/../../key", "fifo"):
        result = sandbox.execute(f"print(open({path!r}).read())")
        assert not result.success
        assert SECRET not in result.stdout
    for name in ("link/new", "up/new", "fifo"):
        assert not sandbox.execute(f"open({name!r}, 'w').write('x')").success
    assert says(sandbox, LIST) == "['.wh.orders.csv', 'data', 'fifo', 'link', 'orders.csv', 'up']"
    assert says(sandbox, "open('data/x.csv', 'w').write('1'); print(os.listdir('data'))")
    says(sandbox, "os.remove('data/x.csv'); os.rmdir('.wh.orders.csv')")
    assert says(sandbox, "open('orders.csv', 'a').write('2'); print(open('orders.csv').read())")
    assert host_tree(folder) == before
    assert [path.name for path in outside.iterdir()] == ["key"]


def test_a_lost_guest_sees_it_again(begin: Opening) -> None:
    sandbox = begin()
    assert says(sandbox, LIST) == "['data', 'orders.csv']"
    assert not sandbox.execute("os.remove('orders.csv'); os.abort()").success
    assert says(sandbox, LIST) == "['data']"


def test_a_file_that_was_replaced_is_never_read_on_in_silence(begin: Opening, folder: Path) -> None:
    sandbox = begin()
    says(sandbox, "rows = open('orders.csv', 'rb', 0); kept = open('data/x.csv'); rows.read(2)")
    says(sandbox, "y = 1")
    (folder / "new").write_text("b\n2\n")
    (folder / "new").replace(folder / "orders.csv")
    sandbox.undo()
    assert says(sandbox, "print(kept.read())") == "x"
    result = sandbox.execute("print(rows.read())")
    assert not result.success
    assert not result.stdout


def test_results_tell_of_the_sessions_files_alone(begin: Opening, tmp_path: Path) -> None:
    sandbox = begin()
    result = sandbox.execute("import os; os.remove('orders.csv'); open('new', 'w').write('n')")
    assert result.files_created == ("new",)
    assert result.files_deleted == ()
    assert sandbox.session_id is not None
    assert list_session_files(sandbox.session_id, workspace_root=tmp_path / "sessions") == ["new"]


def test_another_door_sees_the_session_alone(begin: Opening, folder: Path, tmp_path: Path) -> None:
    root, sandbox = tmp_path / "sessions", begin()
    says(sandbox, "import os; os.remove('orders.csv'); open('new', 'w').write('n'); x = 5")
    name = sandbox.session_id
    assert name is not None
    sandbox.close()
    archive = tmp_path / "archive"
    export_session(name, archive, workspace_root=root)
    copy = import_session(archive, workspace_root=root).session_id
    for each in (name, copy):
        with get_session_sandbox(each, workspace_root=root) as again:
            seen = "import os; print(os.getcwd(), os.path.exists('/notebook'), os.listdir())"
            assert says(again, seen) == "/app False ['new', '.wh.orders.csv']" or (
                says(again, seen) == "/app False ['.wh.orders.csv', 'new']"
            )
            assert says(again, "print(globals().get('x', 5))") == "5"


def test_sessions_in_the_folder_are_hidden_when_they_come(begin: Opening, folder: Path) -> None:
    root = folder / "sessions"
    sandbox = begin(root)
    assert says(sandbox, LIST) == "['data', 'orders.csv']"
    assert says(sandbox, "print(os.path.exists('sessions'))") == "False"
    _, other = create_session_sandbox(workspace_root=folder / "later")
    try:
        assert says(sandbox, LIST) == "['data', 'orders.csv']"
        assert says(sandbox, "print(os.path.exists('later'))") == "False"
        assert says(sandbox, "os.mkdir('later'); print(os.listdir('later'))") == "[]"
    finally:
        other.close()


def test_files_with_long_names_are_noted(folder: Path, tmp_path: Path, ending: ExitStack) -> None:
    """Before, the note was too long for its message: the worker was ended, and the cell lost."""
    made = over(folder, tmp_path / "sessions", suffixes=(".csv",))
    ending.enter_context(closing(made))
    says(made, LONG_NAMES)
    assert says(made, "print(kept)") == "1"
