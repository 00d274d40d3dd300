"""ATTACKS 9, 11, 12, 15, 16: the guest sees its own folder, without the host's own names in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.attacks.conftest import Making, Victim
from tests.faces import PATIENCE
from wasm_kernel.policy import Mount

TOUCHES = {
    "open": "open({0!r})",
    "write": "open({0!r}, 'w')",
    "append": "open({0!r}, 'a')",
    "stat": "os.stat({0!r})",
    "lstat": "os.lstat({0!r})",
    "rename from": "os.rename({0!r}, 'mine')",
    "rename to": "open('src', 'w').close(); os.rename('src', {0!r})",
    "link from": "os.link({0!r}, 'mine')",
    "link to": "open('src', 'w').close(); os.link('src', {0!r})",
    "symlink to": "os.symlink({0!r}, 'way'); open('way')",
    "symlink at": "os.symlink('src', {0!r})",
    "remove": "os.remove({0!r})",
    "rmdir": "os.rmdir({0!r})",
    "mkdir": "os.mkdir({0!r})",
    "listdir": "os.listdir({0!r})",
    "chdir": "os.chdir({0!r}); os.listdir('.'); raise SystemError(os.getcwd())",
    "utime": "os.utime({0!r})",
    "truncate": "os.truncate({0!r}, 0)",
    "readlink": "os.readlink({0!r})",
    "dir_fd": "os.open({0!r}, os.O_RDONLY, dir_fd=os.open('/app', os.O_RDONLY))",
    "dir_fd stat": "os.stat({0!r}, dir_fd=os.open('/app', os.O_RDONLY))",
    "dir_fd behind a link": (
        "os.path.islink('here') or os.symlink('.', 'here')\n"
        "fd = os.open('here/.', os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)\n"
        "os.stat({0!r}, dir_fd=fd)"
    ),
    "sqlite": "import sqlite3; sqlite3.connect({0!r}).execute('create table t (x)')",
}
NAMES = [
    ".metadata.json",
    ".metadata.json~",
    ".metadata.json/x",
    ".METADATA.JSON",
    ".metadata.json.",
]


@pytest.fixture
def hiding(victim: Victim) -> Victim:
    """A workspace that holds a file with one of the host's own names."""
    (victim.app / ".metadata.json").write_text("secret")
    return victim


def ends(victim: Victim, codes: list[str]) -> dict[str, str]:
    """The name of the error that each code ends with, or an empty text. Each begins in `/app`."""
    said = victim.says(
        f"import json, os\nends = {{}}\nfor code in {codes!r}:\n    os.chdir('/app')\n"
        "    try: exec(code, {'os': os}); ends[code] = ''\n"
        "    except Exception as error: ends[code] = type(error).__name__\nprint(json.dumps(ends))"
    )
    found: dict[str, str] = json.loads(said)
    return found


def test_case_09_hidden_names_do_not_exist_and_can_not_be_removed(hiding: Victim) -> None:
    codes = [touch.format(name) for touch in TOUCHES.values() for name in NAMES]
    found = ends(hiding, codes)
    assert list(found) == codes
    missing = ("FileNotFoundError", "OperationalError")
    assert {code: end for code, end in found.items() if end not in missing} == {}
    assert (hiding.app / ".metadata.json").read_text() == "secret"
    assert not (hiding.app / "mine").exists()
    hiding.run("import shutil, os; shutil.rmtree('/app', ignore_errors=True)")
    assert (hiding.app / ".metadata.json").read_text() == "secret"
    hiding.run("import os; os.chdir('/app')")


LISTINGS = [
    "os.listdir('/app')",
    "os.listdir()",
    "[e.name for e in os.scandir('/app')]",
    "[str(p) for p in pathlib.Path('/app').rglob('*')]",
    "glob.glob('/app/.*') + glob.glob('/app/**', recursive=True, include_hidden=True)",
    "list(os.walk('/app'))",
    "(os.path.islink('h') or os.symlink('.', 'h'), os.listdir('h'), os.listdir('h/.'))",
    "[d for d in os.fwalk('/app')] if hasattr(os, 'fwalk') else []",
]


def test_case_09_hidden_names_appear_in_no_listing_and_no_completion(hiding: Victim) -> None:
    code = "".join(f"print({listing})\n" for listing in LISTINGS)
    seen = hiding.says(f"import glob, os, pathlib; os.chdir('/app')\n{code}").splitlines()
    assert not [pair for pair in zip(LISTINGS, seen, strict=True) if "metadata" in pair[1]]
    request = {"op": "complete", "code": "open('/app/.", "cursor_pos": len("open('/app/.")}
    found = hiding.sandbox.query(request).result(PATIENCE)
    assert not [name for name in found["matches"] if "metadata" in name or "wasm_k" in name]


SPELLINGS = [
    ".METADATA.JSON",
    ".meta\u200bdata.json",
    ".ｍetadata.json",
    ".metadata.j\u017fon",
    ".metadata.json ",
    ".metadata.json::$DATA",
    "\u200c.metadata.json",
    "\uff0emetadata.json",
]


def test_case_11_no_spelling_shows_a_hidden_name(hiding: Victim) -> None:
    codes = [f"open({name!r}, 'w')" for name in SPELLINGS]
    assert ends(hiding, codes) == dict.fromkeys(codes, "FileNotFoundError")


def test_case_12_an_impossible_name_is_refused_and_an_odd_one_is_a_name(victim: Victim) -> None:
    errors = ("OSError", "ValueError", "UnicodeEncodeError", "UnicodeDecodeError")
    for name in ("n" * 300, "a\0b", b"a\xffb"):
        assert victim.fails(f"open({name!r}, 'w')") in errors
    for name in ("COM1", "..\\x", "a\nb", "a\x1b[31mb", "a b", "é", "-rf", "$(x)"):
        result = victim.run(f"open({name!r}, 'w').close()")
        assert result.success
        assert result.files_created == (name,)
        assert (victim.app / name).exists()
        assert victim.run(f"import os; os.remove({name!r})").files_deleted == (name,)


def test_case_15_open_files_live_from_cell_to_cell(victim: Victim) -> None:
    victim.says("long = open('long.txt', 'w'); long.write('one ')")
    victim.run("import os; os._exit(1)")
    victim.says("long.write('two'); long.close()")
    assert victim.says("print(open('long.txt').read())").endswith("two")


CHANGES = [
    "os.link('/data/given', '/app/mine')",
    "os.rename('/data/given', '/app/mine')",
    "os.rename('/app/plain', '/data/given')",
    "os.replace('/app/plain', '/data/new')",
    "os.link('/app/plain', '/data/new')",
    "os.symlink('/app/plain', '/data/new')",
    "open('/data/given', 'w')",
    "open('/data/given', 'a')",
    "open('/data/given', 'r+')",
    "open('/data/new', 'w')",
    "os.remove('/data/given')",
    "os.mkdir('/data/new')",
    "os.rmdir('/data')",
    "os.truncate('/data/given', 0)",
    "os.utime('/data/given', (0, 0))",
    "os.utime(os.open('/data/given', os.O_RDONLY), (0, 0))",
    "os.ftruncate(os.open('/data/given', os.O_RDONLY), 0)",
    "os.write(os.open('/data/given', os.O_RDONLY), b'x')",
    "os.rename('/data', '/app/data')",
    "open('/usr/local/lib/wasm-kernel.zip', 'w')",
    "open('/new', 'w')",
]


def test_case_16_a_read_only_mount_can_be_read_and_nothing_changes_it(
    fresh_victim_of: Making, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "given").write_text("given")
    before = (data / "given").stat().st_mtime_ns
    mounted = fresh_victim_of(mounts=(Mount(data, "/data"),))
    assert mounted.says("print(open('/data/given').read())") == "given"
    mounted.says("open('/app/plain', 'w').close()")
    found = ends(mounted, CHANGES)
    assert list(found) == CHANGES
    assert [code for code, end in found.items() if not end] == []
    assert [path.name for path in data.iterdir()] == ["given"]
    assert (data / "given").read_text() == "given"
    assert (data / "given").stat().st_mtime_ns == before
    assert [path.name for path in mounted.app.iterdir()] == ["plain"]
