"""The folder of a session's packages: it changes as a whole, or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from importlib.metadata import distribution, distributions
from pathlib import Path
from typing import Any

import pytest

from tests.tasks import cancelled_after
from wasm_kernel.errors import PackageError
from wasm_kernel.guests.python.packages import site as module
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


def test_files_in_the_place_of_its_folders_do_not_stop_it(
    folder: Path, site: SitePackages, make: Make
) -> None:
    """An archive of a session may have put files where the host expects folders."""
    (folder / "new").write_text("")
    (folder / "old").symlink_to("missing")
    (folder / "site-packages" / "round").symlink_to("round")
    os.mkfifo(folder / "site-packages" / "pipe")
    site.change([open_wheel(make("two"))])
    assert modules(folder) == {"one.py", "two.py"}
    assert entries(folder) == ["site-packages"]
    assert not {"round", "pipe"} & set(entries(folder / "site-packages"))


def test_a_change_that_is_not_wanted_any_more_is_taken_back(
    folder: Path, site: SitePackages, make: Make
) -> None:
    many = open_wheel(make("many", files={f"many/m{i}.py": "" for i in range(20)}))
    with pytest.raises(Cancelled):
        site.change([many], task=cancelled_after(10))
    assert modules(folder) == {"one.py"}
    assert entries(folder) == ["site-packages"]


def test_a_bad_wheel_among_good_ones_changes_nothing(
    folder: Path, site: SitePackages, make: Make
) -> None:
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
