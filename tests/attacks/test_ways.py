"""Every path out of the folder and to hidden names, while files are swapped: cases 9 to 14, 16."""

from __future__ import annotations

import itertools
import os
import shutil
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.attacks.conftest import SMALL, Victim
from tests.faces import host_tree
from tests.sampled import but_for, sampled
from wasm_kernel import (
    ExecutionPolicy,
    Mount,
    WorkspaceError,
    create_sandbox,
    delete_session_path,
    read_session_file,
    write_session_file,
)

SECRET = "the secret of another session"


@pytest.fixture(scope="module")
def _session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    """A session beside another one; both have the host's own names."""
    root = tmp_path_factory.mktemp("root")
    for name in ("own", "other"):
        (root / name).mkdir()
        (root / name / ".metadata.json").write_text(SECRET)
        (root / name / "data.txt").write_text(SECRET if name == "other" else "own")
    (root / "outside").write_text(SECRET)
    sandbox = create_sandbox(workspace=root / "own", policy=SMALL)
    yield Victim(sandbox)
    sandbox.close()


@pytest.fixture
def session(_session: Victim) -> Iterator[Victim]:
    """The session; after the attack nothing outside has changed, and it goes on."""
    before = _outside(_session.app.parent)
    _session.says("import os, glob, shutil, pathlib\nos.chdir('/app')")
    yield _session
    assert _outside(_session.app.parent) == before
    _session.lives()
    for path in _session.app.iterdir():
        if path.name not in (".metadata.json", "data.txt"):
            if path.is_dir() and not path.is_symlink():
                _session.says(f"shutil.rmtree({path.name!r})")
            else:
                path.unlink()


def _outside(root: Path) -> dict[str, object]:
    own = f"{root / 'own'}/"
    hidden = f"{own}.metadata.json"
    return {path: it for path, it in host_tree(root).items() if path == hidden or own not in path}


ESCAPES = [
    "'../other/data.txt'",
    "'/app/../other/data.txt'",
    "'/other/data.txt'",
    "'d/../../other/data.txt'",
    "'/tmp/../../../other/data.txt'",
    "'/tmp/../../.metadata.json'",
    "'/tmp/../history'",
    "'/usr/local/lib/../../../../../../../etc/passwd'",
    "'/proc/self/cwd/data.txt'",
    "'/proc/self/root/etc/passwd'",
    "'/dev/zero'",
]
USES = [
    "print(open({0}).read())",
    "open({0}, 'a').write('x')",
    "print(os.stat({0}))",
    "os.rename({0}, 'mine')",
    "os.link({0}, 'mine'); print(open('mine').read())",
    "os.remove({0})",
    "os.truncate({0}, 0)",
    "os.utime({0}, (0, 0))",
    "shutil.copy({0}, 'mine'); print(open('mine').read())",
    "print(os.listdir(os.path.dirname({0})))",
    "os.chdir(os.path.dirname({0})); print(os.listdir())",
]


def worked(session: Victim, codes: list[str]) -> str:
    """The attempts that ended without an error, and what they printed. Each begins in `/app`."""
    return session.says(
        f"for code in {codes!r}:\n    os.chdir('/app')\n"
        "    try: exec(code); print('worked:', code)\n    except Exception: pass\n"
        "os.chdir('/app')"
    )


def test_case_10_no_path_leads_out(session: Victim) -> None:
    session.says("os.makedirs('d/e')")
    said = worked(session, [use.format(path) for path in ESCAPES for use in USES]).splitlines()
    assert not [line for line in said if "worked" in line and "dirname" not in line]
    seen = "\n".join(line for line in said if "worked" not in line)  # the guest's own folders
    assert not [bad for bad in (SECRET, "outside", "history", "root:", "passwd") if bad in seen]


LINKS = ["..", "../", "../other", "../other/data.txt", "d/../../other", "../own/../other"]


ABSOLUTE = ["/", "/etc", "/etc/passwd", "/app/../other"]


@pytest.mark.parametrize("by", ["guest", "host"])
def test_case_10_no_link_leads_out(session: Victim, by: str) -> None:
    session.says("os.mkdir('d')")
    paths = ("way", "way/data.txt", "way/other/data.txt", "way/passwd", "d/../way/data.txt")
    codes = [use.format(repr(path)) for use in USES for path in paths if use[:9] in FOLLOWING]
    for target in [*LINKS, *ABSOLUTE]:
        if by == "host":
            (session.app / "way").symlink_to(target)
        elif target in ABSOLUTE:
            assert session.run(f"os.symlink({target!r}, 'way')").error is not None
            continue
        else:
            session.says(f"os.symlink({target!r}, 'way')")
        assert worked(session, codes) == "", target
        (session.app / "way").unlink()


FOLLOWING = ("print(ope", "open({0},", "os.trunca", "shutil.co")  # other calls act on the link


OUT = [
    "fd = os.open('.', 0)\nprint(os.listdir(os.open('..', 0, dir_fd=fd)))",
    "fd = os.open('d', 0)\nprint(os.open('../.metadata.json', 0, dir_fd=fd))",
    "fd = os.open('d', 0)\nprint(os.open('../../other/data.txt', 0, dir_fd=fd))",
    (
        "fd = os.open('d', 0)\nos.rename('d', 'e'); os.symlink('../other', 'd')\n"
        "print(os.open('data.txt', 0, dir_fd=fd))"
    ),
    (
        "fd = os.open('d', 0)\nos.rmdir('d'); os.symlink('..', 'd')\n"
        "print(os.listdir('d'))\nprint(os.open('other', 0, dir_fd=fd))"
    ),
    "fd = os.open('/tmp', 0)\nprint(os.open('../history', 0, dir_fd=fd))",
    "fd = os.open('/tmp', 0)\nos.rename('../history', 'h', src_dir_fd=fd)",
    "fd = os.open('/tmp', 0)\nos.symlink('..', '/tmp/up'); print(os.listdir('/tmp/up'))",
    "fd = os.open('/', 0)\nprint(os.open('etc/passwd', 0, dir_fd=fd))",
    "os.rename('/app', '/tmp/app')",
    "os.rename('/tmp', '/app/tmp')",
    "os.link('/app', '/tmp/app')",
    "os.symlink('x', '/new')",
    "os.mkdir('/new')",
    "os.replace('data.txt', '/usr/local/lib/data.txt')",
    "os.chroot('..')",
    "os.mknod('device', 0o20666, 0x105)",
    "os.chmod('data.txt', 0o4777)\nraise OSError",
    "os.fchmod(os.open('data.txt', 0), 0o4777)\nraise OSError",
]


@pytest.mark.parametrize("code", sampled({code: code for code in OUT}, 4))
def test_case_10_no_open_folder_and_no_call_leads_out(session: Victim, code: str) -> None:
    session.run("os.mkdir('d')")
    mode = (session.app / "data.txt").stat().st_mode
    result = session.run(code)
    assert result.error is not None, result.stdout
    assert SECRET not in result.stdout
    assert "history" not in result.stdout
    assert (session.app / "data.txt").stat().st_mode == mode
    session.run("shutil.rmtree('/tmp/up', ignore_errors=True)\nos.remove('/tmp/up')")


def test_case_09_no_descriptor_shows_a_hidden_name_or_the_host(session: Victim) -> None:
    """Tries every descriptor number; folders that the guest's C library keeps are among them."""
    session.says("os.symlink('.', 'here')")
    names = [".METADATA.json/tmp", "../app/.metadata.json", "../other", "../../etc"]
    names += [".metadata.json", "here/.metadata.json", "here/here/../.metadata.json", "/etc"]
    code = f"""
    seen = []
    for fd in range(-1, 80):
        try:
            if os.path.samestat(os.fstat(fd), os.stat('/tmp')): continue  # nothing is hidden there
        except OSError: pass
        for name in {names!r}:
            for act in (
                lambda: os.stat(name, dir_fd=fd),
                lambda: os.stat(name, dir_fd=fd, follow_symlinks=False),
                lambda: os.open(name, os.O_RDONLY, dir_fd=fd),
                lambda: os.open(name, os.O_RDWR | os.O_CREAT, dir_fd=fd),
                lambda: os.readlink(name, dir_fd=fd),
                lambda: os.rename(name, 'mine', src_dir_fd=fd, dst_dir_fd=fd),
                lambda: os.link(name, 'mine', src_dir_fd=fd, dst_dir_fd=fd),
                lambda: os.unlink(name, dir_fd=fd),
                lambda: os.rmdir(name, dir_fd=fd),
                lambda: os.mkdir(name, dir_fd=fd),
                lambda: os.symlink('x', name, dir_fd=fd),
            ):
                try: seen.append((fd, name, act()))
                except (OSError, NotImplementedError): pass
    print(seen)
    """
    assert session.says(textwrap.dedent(code)) == "[]"


def test_case_09_no_link_too_deep_to_look_at_shows_a_hidden_name(session: Victim) -> None:
    """The guest builds folders deeper than the host can look, with a link up in them."""
    code = """
    name = 'L' * 250
    def down(fd, levels):
        for _ in range(levels):
            os.mkdir(name, dir_fd=fd)
            deeper = os.open(name, os.O_RDONLY, dir_fd=fd); os.close(fd); fd = deeper
        return fd
    os.mkdir('one'); os.mkdir('two')
    one = down(os.open('one', 0), 12)
    two = down(os.open('two', 0), 12)
    os.symlink('../' * 30, 'way', dir_fd=two)
    os.symlink('/'.join([name] * 12), 'two/t')
    os.symlink('one/' + '/'.join([name] * 12), 's')
    os.rename('two', 'two', dst_dir_fd=one)
    """
    assert session.fails(textwrap.dedent(code)) == "OSError"
    for path in ("s/two/t/way/.metadata.json", "s/two/t/way/.metadata.json~"):
        assert session.run(f"print(os.stat({path!r}))").error is not None


def test_files_that_the_guest_writes_are_not_runnable_on_the_host(session: Victim) -> None:
    tool = session.app / "tool"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o6755)
    session.says("open('tool', 'a').write('echo owned')")
    session.says("open('new', 'w').write('#!/bin/sh'); os.mkdir('d'); open('d/new', 'w').close()")
    for path in (tool, session.app / "new", session.app / "d" / "new"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o6111 == 0
    assert stat.S_IMODE((session.app / "d").stat().st_mode) & 0o6000 == 0


def test_case_11_names_that_only_look_like_the_hidden_ones_are_the_guests(session: Victim) -> None:
    for name in (".metadata.jsоn", ".metadata.jsonx", "x.metadata.json", ".wasm_kerneI", ".wasm"):
        assert session.run(f"open({name!r}, 'w').write('mine')").files_created == (name,)
        session.says(f"assert open({name!r}).read() == 'mine'; os.remove({name!r})")


NO_UTF8 = (b"a\xffb", b"\xc0\xae\xc0\xae", b"\xed\xa0\x80", b"\xf8\x88")


@pytest.mark.parametrize(
    "name", but_for({str(name): name for name in NO_UTF8}, *map(str, NO_UTF8[2:]))
)
def test_case_12_names_beyond_utf8_are_shown_and_refused(session: Victim, name: bytes) -> None:
    path = os.fsencode(session.app) + b"/" + name
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    try:
        assert session.says(f"print({name!r} in os.listdir(b'.'))") == "True"
        for use in ("open({0})", "os.stat({0})", "os.remove({0})", "os.rename({0}, b'x')"):
            assert session.fails(use.format(repr(name))) in ("OSError", "UnicodeDecodeError")
        session.says("print([repr(e) for e in os.scandir('.')], list(os.walk('.')))")
    finally:
        os.unlink(path)  # noqa: PTH108 - bytes


HELD = b"the host's own"
ROUNDS = 100


def untouched(root: Path) -> None:
    assert [path.name for path in (root / "outside").iterdir()] == ["file"]
    assert (root / "outside" / "file").read_bytes() == HELD
    assert (root / "s" / ".metadata.json").read_bytes() == HELD


SWAPPING = """
import itertools, os, shutil, sys
os.chdir(sys.argv[1])
kinds = sys.argv[2:]
print("ready", flush=True)
for turn in itertools.count():
    kind = kinds[turn % len(kinds)]
    try:
        if kind == "link":
            os.symlink("../outside", "new")
        elif kind == "file link":
            os.symlink("../outside/file", "new")
        elif kind == "hidden":
            os.symlink(".metadata.json", "new")
        elif kind == "root":
            os.symlink(".", "new")
        elif kind == "pipe":
            os.mkfifo("new")
        elif kind == "file":
            open("new", "w").close()
        else:
            os.mkdir("new"); open("new/file", "w").close()
        try:
            os.rename("swapped", "old")
        except FileNotFoundError:
            pass
        os.rename("new", "swapped")
        # they must not pile up: a walk through the folder would never end
        if os.path.isdir("old") and not os.path.islink("old"):
            shutil.rmtree("old")
        else:
            os.unlink("old")
    except OSError:
        pass
"""


@contextmanager
def swapping(folder: Path, *kinds: str) -> Iterator[None]:
    """Runs a process that swaps two things under the name `swapped`."""
    process = subprocess.Popen(
        [sys.executable, "-c", SWAPPING, str(folder), *kinds], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A session's folder without a guest, beside files of the host."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_bytes(HELD)
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / ".metadata.json").write_bytes(HELD)
    yield tmp_path
    shutil.rmtree(tmp_path / "s")


SWAPPED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "any for any": (("link", "folder", "pipe", "file"), ("swapped/file", "swapped/new/file")),
    "a file for a link": (("file", "file link", "pipe"), ("swapped",)),
    "a folder for a link to the reserved names": (
        ("folder", "hidden", "root"),
        ("swapped", "swapped/file", "swapped/.metadata.json"),
    ),
}


@pytest.mark.parametrize(("kinds", "paths"), SWAPPED.values(), ids=SWAPPED)
def test_swapped_files_lead_nowhere_outside_and_to_no_reserved_name(
    place: Path, kinds: tuple[str, ...], paths: tuple[str, ...]
) -> None:
    with swapping(place / "s", *kinds):
        for _, path in itertools.product(range(ROUNDS), paths):
            with suppress(ValueError, OSError):
                assert read_session_file("s", path, place) != HELD
            with suppress(ValueError, OSError):
                write_session_file("s", path, b"evil", place)
            with suppress(ValueError, OSError):
                delete_session_path("s", path, place, recursive=True)
    untouched(place)


def test_a_folder_whose_name_is_not_utf_8_is_refused_in_words(tmp_path: Path) -> None:
    """Formerly, each call said that its process had ended, and that the log says more."""
    strange = tmp_path / os.fsdecode(b"strange-\xff")
    strange.mkdir()
    mount = ExecutionPolicy(mounts=(Mount(strange, "/data"),))
    for workspace, policy in ((strange / "own", None), (tmp_path / "own", mount)):
        with (
            create_sandbox(workspace=workspace, policy=policy) as sandbox,
            pytest.raises(WorkspaceError, match="not UTF-8"),
        ):
            sandbox.execute("1")
