"""Sessions whose root lies in another guest's folder, in either order (case 42)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks.test_places_inside import OUTER, Opening
from wasm_kernel import ExecutionPolicy, PolicyError, create_sandbox, create_session_sandbox
from wasm_kernel.folders.hiding import OverlapError
from wasm_kernel.policy import Mount

SEE = """
import os
found = [os.path.join(folder, name) for top in ('/app', '/m', '/notebook') if os.path.isdir(top)
         for folder, names, files in os.walk(top) for name in (*names, *files)]
print([name for name in found if 'secret' in name or 'metadata' in name])
"""
REACH = """
for top in ('/app', '/m', '/notebook'):
    for act in (os.listdir, os.stat, os.rmdir, lambda p: os.rename(p, top + '/stolen'),
                lambda p: open(p + '/planted', 'w'), lambda p: os.listdir(p + '/../nested')):
        try:
            act(top + '/nested')
            print('reached', top, act)
        except OSError:
            pass
"""
EARLY = """
import os
places = [top + '/nested' for top in ('/app', '/m', '/notebook')
          if os.path.isdir(top + '/nested')]
early = [os.open(place, os.O_RDONLY) for place in places]
"""
LATE = "print([os.listdir(fd) for fd in early])"
KINDS = ("session", "mount", "notebook")
OPENINGS = [OUTER[kind] for kind in KINDS]


@pytest.fixture
def outer(tmp_path: Path) -> Path:
    folder = tmp_path / "root" / "aaa"
    (folder / "nested").mkdir(parents=True)
    return folder


def inhabit(outer: Path) -> str:
    """Make a session in a root that lies in the outer folder."""
    name, sandbox = create_session_sandbox(workspace_root=outer / "nested")
    with sandbox:
        (sandbox.workspace / "secret").touch()
    return name


@pytest.mark.parametrize("opening", OPENINGS, ids=KINDS)
def test_a_guest_reaches_no_session_that_was_there_before(outer: Path, opening: Opening) -> None:
    """Formerly, the outer guest saw the session in its workspace, and could rename it."""
    name = inhabit(outer)
    with opening(outer) as sandbox:
        assert sandbox.execute(SEE).stdout == "[]\n"
        assert sandbox.execute(REACH).stdout == ""
    assert (outer / "nested" / name / "secret").exists()


@pytest.mark.parametrize("opening", OPENINGS, ids=KINDS)
def test_a_guest_reaches_no_session_that_comes_later(outer: Path, opening: Opening) -> None:
    with opening(outer) as sandbox:
        assert sandbox.execute(EARLY).success
        try:
            name = inhabit(outer)
        except OverlapError:
            return  # a root inside a session's workspace is refused
        assert sandbox.execute(SEE).stdout == "[]\n"
        assert sandbox.execute(REACH).stdout == ""
        assert name not in sandbox.execute(LATE).stdout
    assert (outer / "nested" / name / "secret").exists()


@pytest.mark.parametrize("place", [".", "NAME", "NAME/sub", "plain"])
def test_no_mount_is_a_root_of_sessions_or_lies_in_one(tmp_path: Path, place: str) -> None:
    """Formerly, a cell listed the folders of other sessions, and could write to them."""
    root = tmp_path / "theirs"
    name, sandbox = create_session_sandbox(workspace_root=root)
    with sandbox:
        (sandbox.workspace / "sub").mkdir()
    (root / "plain").mkdir()
    folder = root / place.replace("NAME", name)
    with pytest.raises(PolicyError, match="root of sessions"):
        create_sandbox(
            workspace=tmp_path / "w", policy=ExecutionPolicy(mounts=(Mount(folder, "/m"),))
        )
    assert not (tmp_path / "w").exists()
