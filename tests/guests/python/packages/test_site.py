"""Wheels, hostile ones too, and the folder of a session's packages: it changes as a whole."""

from __future__ import annotations

import os
import shutil
import stat
import zipfile
from collections.abc import Callable
from importlib.metadata import distribution, distributions
from pathlib import Path
from typing import Any

import pytest

from tests.tasks import cancelled_after
from wasm_kernel.errors import PackageError
from wasm_kernel.guests.python.packages import site as module
from wasm_kernel.guests.python.packages import wheel
from wasm_kernel.guests.python.packages.site import SitePackages
from wasm_kernel.guests.python.packages.wheel import open_wheel
from wasm_kernel.linux.task import Cancelled

Make = Callable[..., Path]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "packages"


@pytest.fixture
def site(folder: Path, make: Make) -> SitePackages:
    """The packages of a session that has `one`."""
    site = SitePackages(folder)
    site.change([open_wheel(make("one"))])
    return site


def content(folder: Path) -> set[str]:
    site = folder / "site-packages"
    return {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}


def entries(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def modules(folder: Path) -> set[str]:
    return {n for n in content(folder) if "dist-info" not in n and n != module.RECORD}


def test_installed_packages_are_described_as_python_expects(folder: Path, make: Make) -> None:
    SitePackages(folder).change([open_wheel(make("one", needs=("two",)))], asked=["one"])
    [found] = distributions(path=[str(folder / "site-packages")])
    assert found.read_text("INSTALLER") == "wasm-kernel\n"
    assert found.read_text("REQUESTED") == ""
    assert found.requires == ["two"]
    named = {str(path): path.hash for path in found.files or ()}
    assert set(named) == content(folder) - {module.RECORD}
    with pytest.raises(Exception, match="one"):
        distribution("one")  # not for the host's own Python


def test_the_host_reads_only_its_own_record_of_packages(folder: Path, make: Make) -> None:
    """No file of a package is read again, since it may have any size."""
    site = SitePackages(folder)
    site.change([open_wheel(make("one", needs=("two>1",))), open_wheel(make("two"))])
    for place in ("METADATA", "RECORD"):
        there = folder / "site-packages" / "one-1.0.dist-info" / place
        there.unlink()
        os.mkfifo(there)  # a read would block for ever
    found = site.installed()
    assert {name: (str(k.version), k.requires) for name, k in found.items()} == {
        "one": ("1.0", ("two>1",)),
        "two": ("1.0", ()),
    }
    site.change(without=["one"])
    assert modules(folder) == {"two.py"}
    assert not [name for name in content(folder) if name.startswith("one")]
    assert set(site.installed()) == {"two"}


@pytest.mark.parametrize(
    "planted",
    [
        b"",
        b"{" * 100_000,
        b'{"packages": [{"name": "../x", "version": "1", "requires": [], "files": []}]}',
        b'{"packages": [{"name": "one", "version": "?", "requires": [], "files": []}]}',
        b'{"packages": [{"name": "one", "version": "1", "files": [], "requires": ['
        + b'"x",' * 1001
        + b'"x"]}]}',
        b'{"packages": []}' + b" " * module.RECORD_BYTES,
    ],
)  # fmt: skip
def test_a_record_that_an_archive_brought_is_a_strangers(
    folder: Path, site: SitePackages, make: Make, planted: bytes
) -> None:
    (folder / "site-packages" / module.RECORD).write_bytes(planted)
    assert site.installed() == {}
    site.change([open_wheel(make("one"))])
    assert set(site.installed()) == {"one"}


def test_files_for_folders_stop_nothing(folder: Path, site: SitePackages, make: Make) -> None:
    """An archive of a session may have put files where the host expects folders."""
    (folder / "new").write_text("")
    (folder / "old").symlink_to("missing")
    (folder / "site-packages" / "round").symlink_to("round")
    os.mkfifo(folder / "site-packages" / "pipe")
    site.change([open_wheel(make("two"))])
    assert modules(folder) == {"one.py", "two.py"}
    assert entries(folder) == ["site-packages"]
    assert not {"round", "pipe"} & set(entries(folder / "site-packages"))


def test_unwanted_changes_are_taken_back(folder: Path, site: SitePackages, make: Make) -> None:
    many = open_wheel(make("many", files={f"many/m{i}.py": "" for i in range(20)}))
    with pytest.raises(Cancelled):
        site.change([many], task=cancelled_after(10))
    assert modules(folder) == {"one.py"}
    assert entries(folder) == ["site-packages"]


def test_a_bad_wheel_among_good_changes_none(folder: Path, site: SitePackages, make: Make) -> None:
    bad = open_wheel(make("bad", extra=lambda archive: archive.writestr("extra.py", "x")))
    two = open_wheel(make("two", files={"one.py": "another"}))
    for without in (["one"], []):
        with pytest.raises(PackageError):
            site.change([two, bad], without=without)
    assert modules(folder) == {"one.py"}
    assert (folder / "site-packages" / "one.py").read_text() != "another"
    assert entries(folder) == ["site-packages"]


@pytest.mark.parametrize(
    ("first", "second"), [({"x": ""}, {"x/y.py": ""}), ({"x/y.py": ""}, {"x": ""})]
)
def test_a_file_and_a_folder_of_one_name_are_refused(
    folder: Path, make: Make, first: dict[str, str], second: dict[str, str]
) -> None:
    site = SitePackages(folder)
    site.change([open_wheel(make("one", files=first))])
    with pytest.raises(PackageError, match="a file and a folder"):
        site.change([open_wheel(make("two", files=second))])
    assert set(site.installed()) == {"one"}


def test_there_is_an_end_to_what_a_session_holds(
    site: SitePackages, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FILES_MOST", 8)
    with pytest.raises(PackageError, match="packages of this session"):
        site.change([open_wheel(make("two", files={f"f{i}.py": "" for i in range(5)}))])
    assert set(site.installed()) == {"one"}


class Killed(BaseException):
    """Stands for the end of the process."""


def test_a_kernel_killed_at_any_step_leaves_the_old_or_the_new(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = open_wheel(make("one", "1.0")), open_wheel(make("one", "2.0"))
    rename, remove = Path.rename, shutil.rmtree
    steps, step = 0, 0

    def counted(act: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any, **options: Any) -> Any:
            nonlocal step
            step += 1
            if step == steps:
                raise Killed
            return act(*args, **options)

        return counting

    while True:
        folder = tmp_path / str(steps)
        SitePackages(folder).change([old])
        steps, step = steps + 1, 0
        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", counted(rename))
            patch.setattr(shutil, "rmtree", counted(remove))
            try:
                SitePackages(folder).change([new])
            except Killed:
                pass
            else:
                break
        assert str(SitePackages(folder).installed()["one"].version) in ("1.0", "2.0")
        assert modules(folder) == {"one.py"}
        assert entries(folder) == ["site-packages"]
    assert steps > 4


def test_a_pure_wheel_gives_its_files_and_its_needs(make: Make) -> None:
    files = {
        "good/__init__.py": "x = 1",
        "good/data.txt": "d",
        "good.pth": "import os",
        "good/__pycache__/x.cpython-315.pyc": "",
        "good-1.0.data/purelib/more.py": "y = 2",
        "good-1.0.data/scripts/run": "#!python",
        "good-1.0.data/data/etc/x": "z",
    }
    found = open_wheel(make("good", "1.0", files, needs=("rich>=13", "numpy")))
    assert found.known.requires == ("rich>=13", "numpy")
    installed = dict(found.files())
    assert {name for name in installed if "dist-info" not in name} == {
        "good/__init__.py",
        "good/data.txt",
        "more.py",
    }
    assert installed["more.py"] == b"y = 2"


def member(name: str, content: bytes = b"x", mode: int = 0, method: int | None = None) -> Any:
    """The options of a wheel that holds one more file."""
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return {"extra": lambda archive: archive.writestr(info, content, method)}


ODD_NAMES = (
    "../out.py", "/etc/out.py", "a/../../out.py", "a\\..\\out.py", "C:/out.py", "./a.py",
    "a//b.py", "a/./b.py", "\x1b[2J.py", "x" * 300 + ".py", "/".join("d" * 50) + "/x.py",
)  # fmt: skip
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "compiled code": ({"files": {"bad/fast.cpython-315-wasm32-wasi.so": b"\0"}}, "compiled code"),
    "compiled for Windows": ({"files": {"b.pyd": b"\0"}}, "compiled code"),
    "for one machine": ({"tags": "cp315-cp315-linux_x86_64"}, "compiled code"),
    "for Windows": ({"tags": "py3-none-win32"}, "compiled code|not a pure-Python"),
    "not pure": ({"pure": False}, "compiled code|not a pure-Python"),
    "a bomb": ({"files": {"bomb/zeros.py": b"\0" * (40 * 1024 * 1024)}}, "too much"),
    "needs without end": ({"needs": ("x",) * 1001}, "more requirements"),
    "a need without end": ({"needs": ("x" * 2001,)}, "more requirements"),
    "a header of many lines": ({"metadata": "Keywords: " + "word\n  " * 200_000}, "more metadata"),
    "many headers": ({"metadata": "X: y\n" * 100_000}, "more metadata than"),
    "a link": (member("bad/link", b"/etc/passwd", stat.S_IFLNK | 0o777), "not an ordinary file"),
    "a pipe": (member("bad/pipe", b"", stat.S_IFIFO | 0o777), "not an ordinary file"),
    # `zipfile` bounds the size of a decompressed part for `deflate` only: 1 MB may become 7 GB
    "odd packing": (member("x.py", bytes(10_000), method=zipfile.ZIP_LZMA), "wheels are not"),
    **{f"the name {name[:20]!r}": (member(name), "name that can't be used") for name in ODD_NAMES},
}


@pytest.mark.parametrize("kind", REFUSED)
def test_wheels_that_no_session_should_hold_are_refused(make: Make, kind: str) -> None:
    options, why = REFUSED[kind]
    path = make("bad", **options)
    with pytest.raises(PackageError, match=why) as refusal:
        _ = open_wheel(path).known
    assert str(refusal.value).isprintable()


@pytest.mark.parametrize("told", ["sha256=AAAA", "md5=AAAA", ""])
def test_a_changed_file_or_a_weak_hash_is_noticed(make: Make, told: str) -> None:
    path = make("bad", files={"bad.py": "x = 1"}, record=False)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("bad-1.0.dist-info/RECORD", f"bad.py,{told},5\n")
    with pytest.raises(
        PackageError, match="not what its record says" if "sha" in told else "record"
    ):
        dict(open_wheel(path).files())


def test_too_large_and_too_many_are_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel, "FILES_MOST", 3)
    with pytest.raises(PackageError, match="more than 3 files"):
        open_wheel(make("many", files={f"m{i}.py": "" for i in range(4)}))
    monkeypatch.setattr(wheel, "FILES_MOST", 100)
    monkeypatch.setattr(wheel, "BYTES_MOST", 1000)
    with pytest.raises(PackageError, match="too much"):
        open_wheel(make("large", files={"large.py": bytes(range(256)) * 8}))


def test_a_list_of_files_without_end_is_not_read(make: Make) -> None:
    def fill(archive: zipfile.ZipFile) -> None:
        for i in range(250):
            archive.writestr(f"{i:060000}", b"")

    path = make("many", extra=fill, record=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zipfile, "ZipFile", lambda *args: pytest.fail("it was read"))
        with pytest.raises(PackageError, match="damaged"):
            open_wheel(path)


def test_a_long_description_is_not_read_and_a_length_that_lies_noticed(make: Make) -> None:
    more = "\n" + "Requires-Dist: this is no header\n" * 50_000
    assert open_wheel(make("wordy", needs=("rich",), metadata=more)).known.requires == ("rich",)
    path = make("liar", files={"liar.py": "x = 1\n" * 1000})
    data = path.read_bytes()
    size = (6000).to_bytes(4, "little")
    path.write_bytes(data.replace(size, (10).to_bytes(4, "little")))
    with pytest.raises(PackageError):
        dict(open_wheel(path).files())


def test_two_files_of_one_name_and_a_wheel_under_another_are_refused(make: Make) -> None:
    with pytest.warns(UserWarning, match="Duplicate"):
        path = make("twice", extra=lambda archive: archive.writestr("twice.py", "other"))
    with pytest.raises(PackageError, match="one name"):
        open_wheel(path)
    path = make("evil")
    other = path.with_name("numpy-1.0-py3-none-any.whl")
    path.rename(other)
    with pytest.raises(PackageError, match="metadata of that name"):
        open_wheel(other)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 nonsense"])
def test_a_file_that_is_not_a_wheel_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad-1.0-py3-none-any.whl"
    path.write_bytes(content)
    with pytest.raises(PackageError, match="damaged"):
        open_wheel(path)


def test_a_wheel_that_says_it_is_another_is_refused(make: Make) -> None:
    def swap(archive: zipfile.ZipFile) -> None:
        archive.writestr("two-1.0.dist-info/METADATA", "Name: one\nVersion: 1.0\n")

    path = make("one", files={"two-1.0.dist-info/WHEEL": "x"}, extra=swap)
    other = path.with_name("two-1.0-py3-none-any.whl")
    path.rename(other)
    with pytest.raises(PackageError):
        open_wheel(other)
