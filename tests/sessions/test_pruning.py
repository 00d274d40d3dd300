"""Pruning: the plan, the refusals, and changes during the work."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.aged import aged_session
from wasm_kernel import PruneError, prune_sessions
from wasm_kernel.events import SandboxLogger
from wasm_kernel.linux.folders import Folder
from wasm_kernel.result import readable
from wasm_kernel.sessions import ids, metadata

KINDS = ["old", "young", "chosen", "unmarked", "corrupted"]


@given(sessions=st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 10**4)), max_size=6))
def test_what_is_older_goes_the_oldest_first_and_all_is_accounted_for(
    sessions: list[tuple[str, int]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        made = [(kind, hours, made_as(kind, Path(folder), hours)) for kind, hours in sessions]
        result = prune_sessions(24, folder, dry_run=True)
    old = sorted(((h, name) for kind, h, name in made if kind == "old"), reverse=True)
    assert sorted(result.deleted_sessions) == sorted(name for _, name in old)
    hours = {name: h for _, h, name in made}
    assert [hours[name] for name in result.deleted_sessions] == [h for h, _ in old]
    assert set(result.skipped_sessions) == {
        name for kind, _, name in made if kind in ("chosen", "unmarked", "corrupted")
    }
    assert not result.errors


def made_as(kind: str, root: Path, hours: int) -> str:
    """Makes a session that was used a day and this many hours ago; returns its id."""
    name = f"chosen-{ids.new()}" if kind == "chosen" else ""
    workspace = aged_session(root, 0 if kind == "young" else 24 + hours, name=name)
    if kind == "unmarked":
        (workspace / ".metadata.json").unlink()
    elif kind == "corrupted":
        (workspace / ".metadata.json").write_text("{")
    return workspace.name


@pytest.mark.parametrize(
    "hours", [-1, -0.001, float("nan"), float("inf"), -float("inf"), True, "24", None]
)
def test_an_invalid_number_of_hours_is_refused(tmp_path: Path, hours: Any) -> None:
    old = aged_session(tmp_path, 10**5)
    with pytest.raises(PruneError, match="older_than_hours") as caught:
        prune_sessions(hours, tmp_path)
    assert isinstance(caught.value, ValueError)
    assert prune_sessions(1e300, tmp_path).deleted_sessions == []
    assert old.exists()


def test_an_old_session_whose_id_was_chosen_is_skipped_with_a_word(tmp_path: Path) -> None:
    for name, hours in (("my-thesis", 48), ("yesterday", 1)):
        aged_session(tmp_path, hours, name=name)
    (tmp_path / "no-session").mkdir()
    result = prune_sessions(24, tmp_path)
    assert (result.deleted_sessions, result.skip_reasons) == ([], {"my-thesis": "not_a_uuid"})
    assert (tmp_path / "my-thesis").exists()
    assert "skipped my-thesis: not_a_uuid" in str(result)


def test_a_session_that_was_used_since_it_was_found_is_kept(tmp_path: Path) -> None:
    used, unused, gone = (aged_session(tmp_path, hours) for hours in (50, 49, 48))

    class Busy:
        """Another process uses one session, and deletes another, when the first is about to be
        deleted.
        """

        def info(self, event: str, **fields: Any) -> None:
            if event == "session.prune.candidate" and fields["session_id"] == used.name:
                with Folder.open(used) as folder:
                    metadata.touch(folder, used.name, None)
                (gone / ".metadata.json").unlink()
                gone.rmdir()

        warning = info

    result = prune_sessions(24, tmp_path, logger=SandboxLogger(Busy()))
    assert result.deleted_sessions == [unused.name]
    assert (result.skipped_sessions, result.errors) == ([], {})
    assert used.exists()


def test_a_link_to_the_root_is_a_root(tmp_path: Path) -> None:
    old = aged_session(tmp_path / "real", 48)
    (tmp_path / "link").symlink_to("real")
    assert prune_sessions(24, tmp_path / "link").deleted_sessions == [old.name]


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (1, "1 byte"),
        (1023, "1023 bytes"),
        (1024 * 1024 - 1, "1.0 MiB"),
        (1_572_864, "1.5 MiB"),
        (2**75, "32768.0 EiB"),
    ],
)
def test_bytes_are_told_as_people_read_them(size: int, text: str) -> None:
    assert readable(size) == text
