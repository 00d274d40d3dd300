"""The changed files in a result, found by comparing the workspace before and after the cell."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine import twins
from wasm_kernel import Sandbox, create_sandbox

NAMES = ["a", "b", "c", "d", "d/a", "d/twin", "d/e", "d/e/x", "new", "way", "here/b", "d/up/c"]
ONE = [
    "with open({0!r}, 'w') as f: f.write({2!r})",
    "with open({0!r}, 'a') as f: f.write({2!r})",
    "with open({0!r}, 'r+') as f: f.write({2!r})",
    "with open({0!r}, 'x') as f: pass",
    "kept.append(open({0!r}, 'r+b', 0))",
    "kept[-1].write(b'later')",
    "kept.pop().close()",
    "os.truncate({0!r}, 3)",
    "os.remove({0!r})",
    "os.mkdir({0!r})",
    "os.rmdir({0!r})",
    "shutil.rmtree({0!r})",
    "open({0!r}, 'a').close()",
    "os.utime({0!r}, (5, 5))",
    "sqlite3.connect({0!r}).execute('create table if not exists t (x)')",
]
TWO = [
    "os.rename({0!r}, {1!r})",
    "os.replace({0!r}, {1!r})",
    "os.link({0!r}, {1!r})",
    "os.symlink({0!r}, {1!r})",
    "shutil.copy({0!r}, {1!r})",
    "shutil.copytree({0!r}, {1!r}, symlinks=True)",
    "shutil.move({0!r}, '/tmp/moved'); shutil.move('/tmp/moved', {1!r})",
]
STEP = st.builds(
    lambda code, one, two, text: code.format(one, two, text),
    st.sampled_from(ONE * 2 + TWO * 3),
    st.sampled_from(NAMES),
    st.sampled_from(NAMES),
    st.text("xyz", min_size=1, max_size=5),
)
CELL = st.lists(STEP, min_size=1, max_size=12)
RUN = (
    "for step in {0!r}:\n    try: exec(step)\n    except (OSError, IndexError, sqlite3.Error): pass"
)


@pytest.fixture(scope="module")
def sandbox(warm: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with create_sandbox(workspace=tmp_path_factory.mktemp("app")) as made:
        made.execute("import os, pathlib, shutil, sqlite3\nos.chdir('/app'); kept = []")
        yield made


@settings(max_examples=15)
@given(cells=st.lists(CELL, min_size=1, max_size=2))
def test_the_files_of_a_result_are_what_the_tree_tells(
    sandbox: Sandbox, cells: list[list[str]]
) -> None:
    root = sandbox.workspace
    for path in root.iterdir():
        twins.remove(path)
    twins.plant(root)
    for steps in cells:
        twins.age(root)
        before = twins.snapshot(root)
        result = sandbox.execute(RUN.format(steps))
        assert result.error is None, (steps, result.error)
        told = (result.files_created, result.files_modified, result.files_deleted)
        created, modified, deleted = twins.compared(before, twins.snapshot(root))
        utimed = {path for path in modified if root.joinpath(path).lstat().st_mtime == 5}
        assert set(told[0]) == created, steps
        assert set(told[1]) | utimed == modified | utimed, steps
        assert set(told[2]) == deleted, steps
        assert told == tuple(tuple(sorted(paths)) for paths in told)
    sandbox.execute("[f.close() for f in kept]; kept.clear(); shutil.rmtree('/tmp/moved', True)")
