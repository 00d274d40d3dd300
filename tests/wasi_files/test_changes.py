"""The files that a cell created, changed and deleted, by its own calls."""

from __future__ import annotations

from tests.engine.tiny import APP, OTHER, Guest
from wasm_kernel.engine import abi


def test_other_folders_are_not_told(guest: Guest) -> None:
    guest.open("a", abi.O_CREAT, fd=OTHER)
    assert guest.told == (set(), set(), set())


def test_a_file_that_comes_in_from_another_folder_is_created(guest: Guest) -> None:
    guest.open("a", abi.O_CREAT, fd=OTHER)
    guest.call("path_rename", OTHER, *guest.text("a"), APP, *guest.text("b"))
    assert guest.told[0] == {"b"}


def test_writing_to_a_file_that_lost_its_name_modifies_what_it_has_left(guest: Guest) -> None:
    (guest.app / "a").write_text("x")
    guest.link("a", "b")
    guest.changes.clear()
    _, fd = guest.open("a")
    guest.one_path("path_unlink_file", "a")
    guest.write(fd, b"y")
    assert guest.told == (set(), {"b"}, {"a"})


def test_writing_by_a_name_elsewhere_modifies(guest: Guest) -> None:
    (guest.app / "a").write_text("x")
    (guest.app.parent / "other" / "b").hardlink_to(guest.app / "a")
    _, fd = guest.open("b", fd=OTHER)
    guest.write(fd, b"y")
    assert guest.told == (set(), {"a"}, set())


def test_setting_a_files_times_is_no_change(guest: Guest) -> None:
    (guest.app / "a").write_text("x")
    at = guest.text("a")
    assert guest.call("path_filestat_set_times", APP, 1, *at, 0, 0, 5) == abi.SUCCESS
    assert guest.told == (set(), set(), set())


def test_a_file_with_two_names_that_an_earlier_cell_opened(guest: Guest) -> None:
    (guest.app / "a").write_text("x")
    (guest.app / "b").hardlink_to(guest.app / "a")
    _, fd = guest.open("a")
    guest.changes.clear()
    guest.write(fd, b"y")
    assert guest.told == (set(), {"a", "b"}, set())
