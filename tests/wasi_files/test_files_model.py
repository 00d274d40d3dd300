"""Any sequence of file calls: the hidden names and the outside stay unread and unwritten, the rest
works as on any file system, and the result's files are those that changed in the tree.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine import twins
from tests.engine.tiny import Guest
from tests.engine.twins import Answer, GuestSide, NativeSide, OnOpen, OnPath, OnTwo, Open, Symlink
from wasm_kernel.engine import abi
from wasm_kernel.wasi_files.preopens import is_hidden_name

PLAIN = ["a", "b", "c", "d", "empty", "d/a", "d/twin", "d/c", "d/e", "d/e/x", "d/e/y", "new"]
WINDING = ["./a", "d/../a", "d//c", "here/a", "d/up/b", "way", "here", "d/e/top/new", "here/here/d"]
NOWHERE = ["ring", "ring/a", "a/b", "nothing/a", "..", "../outside/x", "out/x", "d/e/../../../x"]
HIDDEN_NAMES = [
    *(".metadata.json", ".METADATA.json", ".metadata.json/x", "here/.metadata.json"),
    *("d/up/.metadata.json", "d/../.metadata.json", ".metadata.json.", ".metadata.json/../a"),
    *("d/.metadata.json", "d/e/top/.metadata.json"),
]
PATH = st.sampled_from([*PLAIN * 3, *WINDING * 2, *NOWHERE, *HIDDEN_NAMES])
BARE = st.sampled_from(PLAIN)
SLOT = st.integers(0, twins.SLOTS - 1)
FROM = st.sampled_from([None, None, None, 0, 1, 1, 2])
TARGET = st.sampled_from(["a", "d", "d/a", "..", ".", "../..", "new", "d/e", *HIDDEN_NAMES[:4]])
DATA = st.binary(min_size=1, max_size=12)
HOWS = [0, 0, 1, 1, 8, 9, 5, 2, 13]
HOW = st.sampled_from(HOWS)
RIGHTS = st.sampled_from([twins.READ, twins.WRITE, twins.READ | twins.WRITE])
OPENING = st.builds(Open, SLOT, FROM, PATH, HOW, RIGHTS, st.booleans(), st.booleans())
ON_PATH = ["mkdir", "rmdir", "unlink", "unlink", "readlink", "stat"]
ON_OPEN = ["write", "write", "pwrite", "truncate", "seek", "read", "close", "list"]
OPERATION = st.one_of(
    OPENING,
    OPENING,
    st.builds(OnPath, st.sampled_from(ON_PATH), FROM, PATH),
    st.builds(OnTwo, st.sampled_from(["rename", "rename", "link"]), FROM, PATH, FROM, PATH),
    st.builds(OnTwo, st.just("rename"), st.none(), BARE, st.none(), BARE),
    st.builds(Symlink, TARGET, FROM, PATH),
    st.builds(OnOpen, st.sampled_from(ON_OPEN), SLOT, st.integers(0, 40), DATA),
    st.builds(OnOpen, st.sampled_from(ON_OPEN), SLOT, st.integers(0, 40), DATA),
)
CELLS = st.lists(st.lists(OPERATION, min_size=4, max_size=20), min_size=1, max_size=3)
FULL = twins.READ | twins.WRITE
OPENED = [
    Open(0, None, "a", 0, FULL, False, False),
    Open(1, None, "d", abi.O_DIRECTORY, twins.READ, False, False),
    Open(2, None, "d/twin", 0, FULL, True, False),
]


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """One guest for all sequences, with a file outside of its folders."""
    folder = tmp_path_factory.mktemp("twins")
    (folder / "native").mkdir()
    (folder / "outside").mkdir()
    (folder / "outside" / "x").write_text("secret")
    made = Guest(folder)
    yield made
    made.close()


def kept(guest: Guest) -> list[tuple[str, bytes, int, int]]:
    """Everything that the guest may neither see nor change."""
    folder = guest.app.parent
    places = [folder / "outside", guest.app / ".metadata.json"]
    found = []
    for place in places:
        for path in [place, *place.rglob("*")]:
            status = path.lstat()
            content = path.read_bytes() if path.is_file() else b""
            found.append((str(path), content, status.st_ino, status.st_mtime_ns))
    return found


def may_differ(op: twins.Operation, links: set[str]) -> bool:
    """Returns whether the guest may be refused a call that another process may make: for `..`, a
    link that may have one, or a hidden name.
    """
    if isinstance(op, OnOpen) and op.what == "seek":
        return True  # WASI has no position in a folder
    parts = [part for path in twins.paths_of(op) for part in path.split("/")]
    return any(part in links or is_hidden_name(part) or part == ".." for part in parts)


def check(op: twins.Operation, here: Answer, native: NativeSide, links: set[str]) -> None:
    """The copy's answer to an operation must be the guest's."""
    assert b"secret" not in str(here).encode()
    if here[0] == "ok":
        there = native.do(op)
        if isinstance(op, OnOpen) and op.what == "list":
            here = ("ok", [name for name in here[1] if not name.startswith("out")])
        assert (op, here) == (op, there)
        if isinstance(op, Symlink):
            links.add(op.path.rpartition("/")[2])
        if isinstance(op, OnTwo):
            links |= {op.new.rpartition("/")[2]} if op.path.rpartition("/")[2] in links else set()
        return
    if isinstance(op, Open):
        native.empty(op.into)
    if not may_differ(op, links):
        there = native.do(op)
        assert there[0] == "error", (op, here, there)


@given(cells=CELLS)
def test_any_sequence_of_calls(guest: Guest, cells: list[list[twins.Operation]]) -> None:
    twins.build(guest.app, hidden=True)
    twins.build(guest.app.parent / "native", hidden=False)
    (guest.app / "out").symlink_to("../outside")
    (guest.app.parent / "native" / "out").symlink_to("../outside")
    secrets = kept(guest)
    here, native = GuestSide(guest), NativeSide(guest.app.parent / "native")
    links = {"here", "up", "way", "top", "ring", "out"}
    try:
        for opening in OPENED:
            check(opening, here.do(opening), native, links)
        for cell in cells:
            twins.age(guest.app)
            before = twins.snapshot(guest.app)
            guest.changes.clear()
            for op in cell:
                check(op, here.do(op), native, links)
            assert guest.told == twins.compared(before, twins.snapshot(guest.app))
        assert twins.shape(guest.app) == twins.shape(guest.app.parent / "native")
        assert kept(guest) == secrets
    finally:
        here.close()
        native.close()


THERE = ["a", "d", "empty", "way", "here", "ring", "hanging", "d/e", "d/twin"]
PLACES = [*THERE, "nothing", "nothing/x", "a/x", "a/../d", "ring/x"]
WITH_SLASH = ["a/", "d/", "nothing/", "way/", "here/", "hanging/"]
NATIVE = {
    getattr(abi, name): number for number, name in errno.errorcode.items() if hasattr(abi, name)
}


def each_call() -> Iterator[twins.Operation]:
    """Calls by paths that are there, are not, are wrong, or lead through links."""
    for path in [*PLACES, *WITH_SLASH]:
        yield from (OnPath(what, None, path) for what in sorted({*ON_PATH}))
        yield from (OnTwo("rename", None, path, None, new) for new in PLACES)
    for path in THERE:
        yield OnTwo("rename", None, path, None, "nothing/")
        yield from (OnTwo("link", None, path, None, new) for new in PLACES)
    for path in [*PLACES, "nothing/"]:
        yield Symlink("a", None, path)
        for how in sorted({*HOWS}):
            yield from (Open(0, None, path, how, FULL, False, follow) for follow in (False, True))


def test_each_call_succeeds_or_fails_as_any_process_has_it(guest: Guest) -> None:
    """The facts of wasmtime's `p1_*` programs and cap-std's tests about paths."""
    native = guest.app.parent / "native"
    here, there = GuestSide(guest), NativeSide(native)
    is_changed = True
    for op in each_call():
        if is_changed:
            for root in (guest.app, native):
                twins.build(root, hidden=False)
                (root / "hanging").symlink_to("nothing")
        answers = here.do(op), there.do(op)
        is_changed = answers[0][0] == "ok"
        if not is_changed:
            answers = ("error", NATIVE[answers[0][1]]), answers[1]
        assert (op, answers[0]) == (op, answers[1])
    here.close()
    there.close()
