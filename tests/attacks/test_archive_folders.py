"""F16: archives of folders and links only: few bytes, but a million folders or steps of lookup.

A folder counts like a file, also if it is made because a path needs it, and so does a link. The
cost of all paths together grows with the decompressed size of the archive.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.attacks.test_archives import Members, folder, link, manifest, member, packed, refused
from tests.peak import MB
from wasm_kernel import list_session_files
from wasm_kernel.linux import trees, walks
from wasm_kernel.sessions.archives import export_session, import_session
from wasm_kernel.sessions.files import write_session_file

MOST = 4 * MB
DEEP = "d/" * 2000


SWOLLEN: dict[str, Members] = {
    "folders 30,000 deep": [folder(f"{k}/" + "a/" * 30_000 + "b") for k in range(5)],
    "folders on the way to files": [member(f"files/{k}/{DEEP}f") for k in range(30)],
    "links": [link(str(k), "x" * 90) for k in range(1200)],
}


@pytest.mark.parametrize("members", SWOLLEN.values(), ids=SWOLLEN)
def test_folders_and_links_take_room(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, members: Members
) -> None:
    most, empty = 0, trees.remove_contents

    def measured(place: int) -> None:
        nonlocal most
        statuses = (
            os.stat(entry.name, dir_fd=entry.folder, follow_symlinks=False)
            for entry in walks.entries(place)
        )
        most = sum(status.st_blocks * 512 for status in statuses)
        empty(place)

    monkeypatch.setattr(trees, "remove_contents", measured)
    archive = packed(tmp_path / "a.tar.gz", [manifest(), *members])
    refused(root, archive, max_bytes=MOST)
    assert most < 2 * MOST


def to_and_fro(count: int) -> Members:
    return [member(f"files/{'ab'[k % 2]}/{DEEP}{k}", b"") for k in range(count)]


def circles(count: int) -> Members:
    """Forty links that lead through each other, up and down."""
    chain = [link(f"l{k}", "d/../" * 700 + f"l{k + 1}") for k in range(39)]
    return [folder("d"), *chain, link("l39", "d"), *(link(f"m{k}", "l0") for k in range(count))]


@pytest.mark.parametrize("made", [to_and_fro, circles])
def test_endless_paths_are_refused_soon(root: Path, tmp_path: Path, made: object) -> None:
    """Each member may cost 4,000 steps, and each link 60,000: hours for a million of them."""
    assert callable(made)
    archive = packed(tmp_path / "a.tar.gz", [manifest(), *made(100)])
    begun = time.process_time()
    assert "too long to follow" in refused(root, archive)
    assert time.process_time() - begun < 10


def test_a_tree_in_its_own_order_is_accepted(root: Path, tmp_path: Path) -> None:
    """An export's own order of members is accepted, however deep it is and however many it has."""
    for k in range(2):
        write_session_file("here", f"{k}/" + "d/" * 600 + "f", b"", tmp_path / "own")
        for n in range(100):
            write_session_file("here", f"{k}/" + "d/" * 30 + f"f{n}", b"", tmp_path / "own")
    export_session("here", tmp_path / "a.tar.gz", tmp_path / "own", files_only=True)
    made = import_session(tmp_path / "a.tar.gz", root)
    assert made.left_out == {}
    assert list_session_files(made.session_id, root) == list_session_files("here", tmp_path / "own")
    trees.remove_tree(tmp_path / "own")


def test_a_path_that_no_guest_can_name_is_left_out_and_told(root: Path, tmp_path: Path) -> None:
    write_session_file(
        "here", "x" * 250 + "/" + ("y" * 200 + "/") * 20 + "f", b"", tmp_path / "own"
    )
    write_session_file("here", "kept", b"", tmp_path / "own")
    made = export_session("here", tmp_path / "a.tar.gz", tmp_path / "own", files_only=True)
    assert list(made.left_out.values()) == ["its path is too long"]
    back = import_session(tmp_path / "a.tar.gz", root)
    assert list_session_files(back.session_id, root) == ["kept"]


def test_the_export_of_an_alias_names_the_session(root: Path, tmp_path: Path) -> None:
    """A root's link to a session inside the root: id, lock and private folder are the session's."""
    alias = "4b0b5eec-92c2-443a-a471-803ea6050ac9"
    write_session_file("here", "f", b"", tmp_path / "own")
    (tmp_path / "own" / alias).symlink_to("here")
    made = export_session(alias, tmp_path / "a.tar.gz", tmp_path / "own", files_only=True)
    assert made.session_id == "here"
    assert import_session(tmp_path / "a.tar.gz", root, same_id=True).session_id == "here"
