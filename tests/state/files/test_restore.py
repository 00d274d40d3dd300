"""Files are restored to their earlier contents, whatever happened to them."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.state.files.workspace import Workspace
from wasm_kernel.linux.files import file_identity
from wasm_kernel.state.file_journal import NotKept


def test_files_that_changed_their_kind_are_restored(workspace: Workspace) -> None:
    link = "a link that is no \udcff UTF-8"
    workspace.write("file", "text")
    workspace.make_folder("folder")
    workspace.write("folder/in", "x")
    workspace.link(link, f"{link} either")
    one = workspace.commit()
    workspace.remove("file")
    workspace.make_folder("file")
    workspace.write("file/in", "y")
    workspace.remove_folder("folder")
    workspace.link("folder", "file")
    workspace.remove(link)
    workspace.write(link, "z")
    two = workspace.commit()
    workspace.bring(one)
    assert workspace.state == workspace.states[one]
    workspace.bring(two)
    assert workspace.state == workspace.states[two]


def test_a_link_out_is_never_followed(workspace: Workspace, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text("mine")
    workspace.make_folder("d")
    workspace.write("d/f", "old")
    one = workspace.commit()
    workspace.write("d/f", "new")
    (workspace.root / "d" / "f").unlink()
    (workspace.root / "d").rmdir()
    (workspace.root / "d").symlink_to(outside)  # another process replaced it
    missed = workspace.bring(one).missed
    assert missed == [("d/f", NotKept("unwritable"))]
    assert (outside / "f").read_text() == "mine"
    assert [path.name for path in outside.iterdir()] == ["f"]


def test_a_file_that_others_wrote_to_since_can_be_had_again(workspace: Workspace) -> None:
    one = workspace.commit(a="old")
    two = workspace.commit(a="cell")
    (workspace.root / "a").write_text("editor")
    workspace.bring(one)
    assert workspace.state == {"a": "old"}
    workspace.bring(two)
    assert workspace.state == {"a": "editor"}


def test_files_that_others_made_in_a_folder_stay(workspace: Workspace) -> None:
    workspace.make_folder("d")
    workspace.write("d/f", "cell")
    (workspace.root / "d" / "theirs").write_text("x")
    brought = workspace.bring(1)
    assert brought.removed == ["d/f"]
    assert brought.missed == [("d", NotKept("unwritable"))]
    assert workspace.state == {"d": None, "d/theirs": "x"}


def test_only_changed_files_are_brought_back(workspace: Workspace) -> None:
    one = workspace.commit(same="same", moved="moved", b="old")
    before = file_identity(str(workspace.root / "same"))
    workspace.rename("moved", "away")
    workspace.rename("away", "moved")
    workspace.write("b", "new")
    brought = workspace.bring(one)
    assert (brought.back, brought.removed, brought.missed) == (["b"], [], [])
    assert file_identity(str(workspace.root / "same")) == before


NAMES = ["a", "b", "d", "d/a", "d/b", "e", "e/a"]
ACTS = ["write", "append", "remove", "link", "folder", "rename", "commit", "bring", "fold", "load"]


def act(workspace: Workspace, what: str, name: str, other: str, number: int) -> None:
    """Do something if it can be done."""
    root = workspace.root
    there = os.path.lexists(root / name)
    is_folder = (root / name).is_dir() and not (root / name).is_symlink()
    plain = not there or not (is_folder or (root / name).is_symlink())
    parent = (root / name).parent
    has_parent = parent.is_dir() and not parent.is_symlink()
    if what in ("write", "append") and has_parent and plain:
        workspace.write(name, f"{number}", append=what == "append")
    elif what == "remove" and there and has_parent:
        (workspace.remove_folder if is_folder else workspace.remove)(name)
    elif what == "link" and not there and has_parent:
        workspace.link(name, other)
    elif what == "folder" and not there and has_parent:
        workspace.make_folder(name)
    elif what == "rename" and there and has_parent and not os.path.lexists(root / other):
        above = (root / other).parent
        if above.is_dir() and not above.is_symlink() and not f"{other}/".startswith(f"{name}/"):
            workspace.rename(name, other)


@given(st.data())
def test_every_commit_can_be_brought_back(data: st.DataObject) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.closing(Workspace(Path(folder))) as workspace,
    ):
        any_life(workspace, data)


def any_life(workspace: Workspace, data: st.DataObject) -> None:
    for number in range(data.draw(st.integers(1, 40))):
        what = data.draw(st.sampled_from(ACTS))
        if what == "commit":
            workspace.commit()
        elif what == "bring":
            one = data.draw(st.sampled_from(workspace.commits))
            assert workspace.bring(one).missed == []
            assert workspace.state == workspace.states[one]
        elif what == "fold" and len(workspace.commits) > 1:
            workspace.forget(data.draw(st.sampled_from(workspace.commits[:-1])))
        elif what == "load":
            workspace.close()
            again = Workspace(workspace.root.parent, load=True)
            workspace = again.load(workspace)
            assert workspace.whole
        else:
            name, other = data.draw(st.sampled_from(NAMES)), data.draw(st.sampled_from(NAMES))
            act(workspace, what, name, other, number)
    for one in reversed(workspace.commits):
        assert workspace.bring(one).missed == []
        assert workspace.state == workspace.states[one]
