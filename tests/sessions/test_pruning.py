"""Pruning: the plan, the refusals, and changes during the work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.aged import aged_session
from wasm_kernel import PruneError, prune_sessions
from wasm_kernel.events import SandboxLogger
from wasm_kernel.linux.folders import Folder
from wasm_kernel.result import readable
from wasm_kernel.sessions import metadata


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
