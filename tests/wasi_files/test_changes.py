"""The files that a cell created, changed and deleted, by its own calls."""

from __future__ import annotations

import pytest

from tests.engine.tiny import APP, OTHER, Guest
from wasm_kernel.engine import abi


def test_an_empty_new_file_is_created(guest: Guest) -> None:
    guest.make("a")
    assert guest.told == ({"a"}, set(), set())


def test_a_new_file_that_is_written_is_both(guest: Guest) -> None:
    guest.make("a", b"x")
    assert guest.told == ({"a"}, {"a"}, set())


def test_opening_an_old_file_to_read_changes_nothing(guest: Guest) -> None:
    (guest.app / "a").touch()
    guest.open("a")
    assert guest.told == (set(), set(), set())


def test_opening_an_old_file_that_may_be_created_changes_nothing(guest: Guest) -> None:
    (guest.app / "a").touch()
    guest.open("a", abi.O_CREAT)
    assert guest.told == (set(), set(), set())


def test_emptying_an_old_file_modifies_it(guest: Guest) -> None:
    (guest.app / "a").write_text("x")
    guest.open("a", abi.O_TRUNC)
    assert guest.told == (set(), {"a"}, set())


def test_writing_an_old_file_modifies_it(guest: Guest) -> None:
    (guest.app / "a").write_text("x")
    _, fd = guest.open("a")
    guest.write(fd, b"y")
    assert guest.told == (set(), {"a"}, set())


def test_writing_at_a_position_modifies(guest: Guest) -> None:
    (guest.app / "a").write_text("x")
    _, fd = guest.open("a")
    at, length = guest.text(b"y")
    guest.instance.memory.write(64, at.to_bytes(4, "little") + length.to_bytes(4, "little"))
    assert guest.call("fd_pwrite", fd, 64, 1, 0, 96) == abi.SUCCESS
    assert guest.told == (set(), {"a"}, set())


def test_removing_an_old_file_deletes_it(guest: Guest) -> None:
    (guest.app / "a").touch()
    guest.one_path("path_unlink_file", "a")
    assert guest.told == (set(), set(), {"a"})


def test_a_file_made_and_removed_is_no_change(guest: Guest) -> None:
    guest.make("a", b"x")
    guest.one_path("path_unlink_file", "a")
    assert guest.told == (set(), set(), set())


def test_a_file_removed_and_made_again_is_modified(guest: Guest) -> None:
    (guest.app / "a").touch()
    guest.one_path("path_unlink_file", "a")
    guest.make("a")
    assert guest.told == (set(), {"a"}, set())


def test_a_renamed_file_is_deleted_here_and_created_there(guest: Guest) -> None:
    (guest.app / "a").write_text("x")
    guest.rename("a", "b")
    assert guest.told == ({"b"}, {"b"}, {"a"})


def test_a_file_renamed_over_another_modifies_that(guest: Guest) -> None:
    (guest.app / "a").touch()
    (guest.app / "b").touch()
    guest.rename("a", "b")
    assert guest.told == (set(), {"b"}, {"a"})


def test_a_temporary_file_renamed_into_place_is_one_created_file(guest: Guest) -> None:
    guest.make("a.tmp", b"x")
    guest.rename("a.tmp", "a")
    assert guest.told == ({"a"}, {"a"}, set())


def test_a_renamed_folder_tells_its_files(guest: Guest) -> None:
    (guest.app / "d" / "e").mkdir(parents=True)
    (guest.app / "d" / "x").touch()
    (guest.app / "d" / "e" / "y").touch()
    guest.rename("d", "f")
    assert guest.told[2] == {"d/x", "d/e/y"}
    assert guest.told[0] == {"f/x", "f/e/y"}


def test_a_file_written_after_its_folder_moved_is_told_by_its_new_name(guest: Guest) -> None:
    (guest.app / "d").mkdir()
    _, fd = guest.open("d/x", abi.O_CREAT)
    guest.rename("d", "f")
    guest.changes.clear()
    guest.write(fd, b"x")
    assert guest.told[1] == {"f/x"}


def test_a_name_through_a_link_is_told_by_where_it_leads(guest: Guest) -> None:
    (guest.app / "d").mkdir()
    guest.symlink("d", "way")
    guest.changes.clear()
    guest.make("way/x")
    assert guest.told[0] == {"d/x"}


@pytest.mark.parametrize("name", ["a", "d/../a", "./a", "d//../a"])
def test_every_spelling_of_a_path_is_one_file(guest: Guest, name: str) -> None:
    (guest.app / "d").mkdir()
    guest.make(name)
    assert guest.told[0] == {"a"}


def test_a_link_is_a_created_file(guest: Guest) -> None:
    guest.symlink("nowhere", "way")
    assert guest.told[0] == {"way"}


def test_a_second_name_is_a_created_file(guest: Guest) -> None:
    (guest.app / "a").touch()
    assert guest.link("a", "b") == abi.SUCCESS
    assert guest.told[0] == {"b"}


def test_a_folder_is_no_file(guest: Guest) -> None:
    guest.one_path("path_create_directory", "d")
    guest.one_path("path_remove_directory", "d")
    assert guest.told == (set(), set(), set())


def test_a_call_that_fails_changes_nothing(guest: Guest) -> None:
    guest.one_path("path_unlink_file", "nothing")
    guest.rename("nothing", "a")
    guest.open("d/e/f", abi.O_CREAT)
    assert guest.told == (set(), set(), set())


def test_other_folders_are_not_told(guest: Guest) -> None:
    guest.open("a", abi.O_CREAT, fd=OTHER)
    assert guest.told == (set(), set(), set())


def test_a_file_that_comes_in_from_another_folder_is_created(guest: Guest) -> None:
    guest.open("a", abi.O_CREAT, fd=OTHER)
    guest.call("path_rename", OTHER, *guest.text("a"), APP, *guest.text("b"))
    assert guest.told[0] == {"b"}


def test_a_new_cell_begins_with_nothing(guest: Guest) -> None:
    guest.make("a", b"x")
    guest.changes.clear()
    assert guest.told == (set(), set(), set())


def test_writing_by_one_name_modifies_the_others(guest: Guest) -> None:
    (guest.app / "d").mkdir()
    for path in ("a", "d/b"):
        (guest.app / path).write_text("x")
    (guest.app / "c").hardlink_to(guest.app / "d" / "b")
    _, fd = guest.open("c")
    guest.write(fd, b"y")
    assert guest.told == (set(), {"c", "d/b"}, set())


def test_writing_to_a_file_that_lost_its_name_modifies_what_it_has_left(guest: Guest) -> None:
    (guest.app / "a").write_text("x")
    guest.link("a", "b")
    guest.changes.clear()
    _, fd = guest.open("a")
    guest.one_path("path_unlink_file", "a")
    guest.write(fd, b"y")
    assert guest.told == (set(), {"b"}, {"a"})


def test_writing_to_a_file_without_a_name_is_no_change(guest: Guest) -> None:
    (guest.app / "a").write_text("x")
    _, fd = guest.open("a")
    guest.one_path("path_unlink_file", "a")
    guest.changes.clear()
    guest.write(fd, b"y")
    assert guest.told == (set(), set(), set())


def test_writing_by_a_name_elsewhere_modifies(guest: Guest) -> None:
    (guest.app / "a").write_text("x")
    (guest.app.parent / "other" / "b").hardlink_to(guest.app / "a")
    _, fd = guest.open("b", fd=OTHER)
    guest.write(fd, b"y")
    assert guest.told == (set(), {"a"}, set())


def test_a_move_there_and_back_is_not_a_change(guest: Guest) -> None:
    (guest.app / "a").write_text("x")
    guest.rename("a", "b")
    guest.rename("b", "a")
    assert guest.told == (set(), set(), set())


def test_two_files_that_change_places_are_modified(guest: Guest) -> None:
    for name in "ab":
        (guest.app / name).write_text(name)
    guest.rename("a", "c")
    guest.rename("b", "a")
    guest.rename("c", "b")
    assert guest.told == (set(), {"a", "b"}, set())


def test_a_folder_in_a_files_place_deletes_it(guest: Guest) -> None:
    (guest.app / "a").write_text("x")
    guest.one_path("path_unlink_file", "a")
    guest.one_path("path_create_directory", "a")
    assert guest.told == (set(), set(), {"a"})


def test_a_link_in_a_files_place_modifies_it(guest: Guest) -> None:
    (guest.app / "a").write_text("x")
    guest.one_path("path_unlink_file", "a")
    guest.symlink("b", "a")
    assert guest.told == (set(), {"a"}, set())


def test_writing_nothing_is_no_change(guest: Guest) -> None:
    (guest.app / "a").write_text("x")
    _, fd = guest.open("a")
    guest.write(fd, b"")
    assert guest.told == (set(), set(), set())


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
