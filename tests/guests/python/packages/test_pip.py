"""`%pip` in a real guest, with a real pip and an index made by the test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.faces import PATIENCE, error_of, traceback_of
from tests.faults import faulty
from tests.guests.python.packages.conftest import index_in
from tests.private import private_of
from wasm_kernel import (
    BaseSandbox,
    SandboxResult,
    create_sandbox,
    create_session_sandbox,
    get_session_sandbox,
)
from wasm_kernel.guests.python.packages import pip
from wasm_kernel.linux.broker import tied_command

pytestmark = pytest.mark.usefixtures("forked_pip")

Make = Callable[..., Path]


@pytest.fixture
def guest(sandbox: BaseSandbox, index: Make) -> BaseSandbox:
    """A sandbox whose cells may use %pip, on the test's index."""
    sandbox.offer_pip()
    return sandbox


@pytest.fixture(scope="module")
def installed(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[BaseSandbox, SandboxResult]]:
    """A sandbox with a package and its dependencies, and the cell that installed them."""
    with (
        pytest.MonkeyPatch.context() as patch,
        create_sandbox(workspace=tmp_path_factory.mktemp("app")) as sandbox,
    ):
        index = index_in(tmp_path_factory.mktemp("index") / "all", patch)
        source = "version = '1.5'\ndef fail():\n    return 1 / 0\n"
        index("one", "1.5", files={"one.py": source}, needs=("two>=1",))
        index("two")
        sandbox.offer_pip()
        code = "%pip install one\nimport one, two\none.version, two.version"
        yield sandbox, sandbox.execute(code)


@pytest.fixture
def stocked(installed: tuple[BaseSandbox, SandboxResult]) -> BaseSandbox:
    """The file's sandbox with packages, for tests that don't change them."""
    return installed[0]


def value(result: SandboxResult) -> str:
    assert result.success, result.error
    return str(result.outputs[-1].data["text/plain"])


def test_packages_can_be_imported_at_once(installed: tuple[BaseSandbox, SandboxResult]) -> None:
    _, result = installed
    assert value(result) == "('1.5', '1.0')"
    assert result.stdout.splitlines() == [
        "Fetching one-1.5-py3-none-any.whl",
        "Fetching two-1.0-py3-none-any.whl",
        "Installing one, two",
        "Successfully installed one-1.5 two-1.0",
    ]
    assert not result.files_created


def test_sandbox_that_may_install_allows_it_for_its_forks_too(tmp_path: Path, index: Make) -> None:
    index("one")
    session_id, sandbox = create_session_sandbox(workspace_root=tmp_path)
    with sandbox:
        assert "with pip=True" in sandbox.execute("%pip install one").stderr
        assert "numpy" in sandbox.execute("%pip list").stdout
        with get_session_sandbox(session_id, workspace_root=tmp_path, pip=True) as again:
            (fork,) = again.fork()
        with fork:
            assert value(fork.execute("%pip install one\nimport one; one.version")) == "'1.0'"
        assert not sandbox.execute("import one").success


def test_packages_show_their_source_are_known_and_not_fetched_again(stocked: BaseSandbox) -> None:
    assert "return" in "\n".join(traceback_of(stocked.execute("import one; one.fail()")))
    result = stocked.execute("%pip install one numpy")
    assert result.stdout.startswith("Requirement already satisfied: numpy ")
    assert "Requirement already satisfied: one 1.5" in result.stdout
    assert "Fetching" not in result.stdout
    code = "from importlib.metadata import version\n"
    result = stocked.execute(code + "[version(n) != '' for n in ('one', 'pandas', 'traitlets')]")
    assert value(result) == "[True, True, True]"


def test_upgrade_takes_the_newer_one_and_says_what_stays(guest: BaseSandbox, index: Make) -> None:
    """Also checks that packages which a killed kernel left half fetched are removed."""
    index("one", "1.0")
    left = private_of(guest.workspace) / "fetched" / "w_old"
    left.mkdir(parents=True)
    guest.execute("%pip install one\nimport one")
    assert not left.exists()
    index("one", "2.0")
    assert "Successfully" not in guest.execute("%pip install one").stdout
    result = guest.execute("%pip install -U one")
    assert "Successfully installed one-2.0" in result.stdout
    assert "one was imported before" in result.stdout
    fresh = "import sys; del sys.modules['one']; import one; one.version"
    assert value(guest.execute(fresh)) == "'2.0'"
    index("one", "3.0")
    assert guest.execute("%pip uninstall -q -y one").stdout.startswith("Note: one")
    assert guest.execute("%pip install -q one").stdout == ""
    assert value(guest.execute("sys.modules.pop('one', None); import one; one.version")) == "'3.0'"


def test_uninstall_list_freeze_and_show(stocked: BaseSandbox) -> None:
    """Uses a fork, which has its own packages."""
    [fork] = stocked.fork()
    with fork:
        assert value(fork.execute("import one; one.version")) == "'1.5'"
        assert fork.execute("%pip freeze").stdout == "one==1.5\ntwo==1.0\n"
        listed = fork.execute("%pip list").stdout
        assert "one " in listed
        assert any(row.split()[0] == "numpy" and "built in" in row for row in listed.splitlines())
        assert "Requires: two" in fork.execute("%pip show one").stdout
        gone = fork.execute("%pip uninstall -y one").stdout
        assert gone.startswith("Successfully uninstalled one-1.5\n")
        assert not fork.execute("del __import__('sys').modules['one']; import one").success
        assert "one is not installed" in fork.execute("%pip uninstall one").stderr
        assert "built in and can't be removed" in fork.execute("%pip uninstall numpy").stderr
        assert value(stocked.execute("len(open(one.__file__).read()) > 0")) == "True"


def test_exclamation_marks_bring_pip_too_and_never_end_the_cell(stocked: BaseSandbox) -> None:
    """Under ipykernel such lines are commands of a shell."""
    version = stocked.execute("!pip --version\n1").stdout
    assert "python 3.15" in version
    code = "!pip3 install one\nimport sys\n!{sys.executable} -m pip install one\n_exit_code"
    assert value(there := stocked.execute(code)) == "0"
    assert there.stdout.count("Requirement already satisfied: one 1.5") == 2
    failed = stocked.execute("!python -m pip install nothing-like-it\n_exit_code")
    assert value(failed) == "1"
    assert "Nothing was installed: nothing-like-it has no pure-Python wheel" in failed.stderr
    listed = stocked.execute("rows = !pip freeze\nlist(rows)")
    assert value(listed) == "['one==1.5', 'two==1.0']"
    piped = stocked.execute("!pip freeze > reqs.txt; pip list | grep one; cat reqs.txt")
    assert piped.stdout.split() == ["one", "1.5", "one==1.5", "two==1.0"]
    result = stocked.execute("!pip wheel one\n_exit_code")
    assert (value(result), result.stdout) == ("1", "")
    assert "UsageError" in result.stderr


def test_packages_are_there_after_a_restart_and_an_undo(tmp_path: Path, index: Make) -> None:
    index("one")
    with get_session_sandbox("app", workspace_root=tmp_path, pip=True) as first:
        first.execute("x = 1")
        first.execute("%pip install one")
        first.execute("%undo")
        assert value(first.execute("import one; one.version")) == "'1.0'"
    with get_session_sandbox("app", workspace_root=tmp_path) as second:
        assert value(second.execute("import one; one.version")) == "'1.0'"


def test_a_file_in_the_place_of_the_packages_does_not_keep_a_session_shut(tmp_path: Path) -> None:
    """An archive of a session may have put it there."""
    get_session_sandbox("app", workspace_root=tmp_path).close()
    place = private_of(tmp_path / "app") / "packages"
    place.mkdir(parents=True, exist_ok=True)
    (place / "site-packages").write_text("")
    with get_session_sandbox("app", workspace_root=tmp_path) as sandbox:
        assert value(sandbox.execute("1 + 1")) == "2"


def test_the_guest_can_not_change_what_is_installed(stocked: BaseSandbox) -> None:
    stocked.execute("import one, os, pathlib\np = pathlib.Path(one.__file__)")
    attempts = ["p.write_text('')", "p.unlink()", "p.rename('/app/x')", "os.link(p, '/app/y')"]
    attempts += ["p.with_name('y').mkdir()", "os.symlink('/app', p.with_name('z'))"]
    for attempt in attempts:
        assert not stocked.execute(attempt).success, attempt
    assert value(stocked.execute("os.listdir('/usr/local/lib/python3.15')")) == "['site-packages']"


SNEAKING = [
    "name = 'one'\n%pip install {name}",
    "def f():\n    get_ipython().system('pip install one')\nf()",
]


def test_only_a_line_of_the_cell_itself_installs(guest: BaseSandbox, index: Make) -> None:
    """`tests/attacks/test_host_commands.py` has the ways that are alike for all commands."""
    index("one")
    for code in SNEAKING:
        guest.execute(code)
        assert not guest.execute("import one").success, code


IMPOSSIBLE = {
    "needy": "fast needs compiled code, which the sandbox can't run. It is needed by needy 1.0",
    "needier": "It is needed by needy 1.0 (any version), which is needed by needier 1.0 (any "
    "version). An older version of needier may do without: name needier<1.0 in quotes.",
    "hopeful": "gone>=2 has no pure-Python wheel that pip finds. It may be misspelt, have no such "
    "version, or be there as source code only, which is never built here. It is needed by hopeful",
    "numpy==1.0": "is built in and can't be replaced",
    "-r file.txt": "file.txt can't be read: No such file or directory",
    "-c file.txt": "'-c' was not used",
    "http://10.0.0.1/x.whl": "was not used",
}


def test_impossible_requests_are_refused_in_a_sentence_and_change_nothing(
    guest: BaseSandbox, index: Make
) -> None:
    index("fast", tags="py3-none-linux_x86_64")
    index("needy", needs=("fast", "one"))
    index("needier", needs=("needy",))
    index("hopeful", needs=("gone>=2",))
    index("one")
    for line, sentence in IMPOSSIBLE.items():
        result = guest.execute(f"%pip install {line}")
        assert not result.success, line
        assert sentence in result.stderr
        assert str(guest.workspace) not in result.stderr
    assert guest.execute("%pip freeze").stdout == "\n"


def test_a_requirements_file_is_installed(guest: BaseSandbox, index: Make) -> None:
    index("one", "1.0")
    index("one", "2.0")
    index("two")
    text = "one<2  # not the newest\n-r more.txt\nthree; sys_platform == 'win32'\n"
    guest.execute(f"from pathlib import Path; Path('reqs.txt').write_text({text!r})")
    guest.execute("Path('more.txt').write_text('two==1.0\\nnumpy')")
    result = guest.execute("%pip install -r reqs.txt\nimport one, two\none.version, two.version")
    assert value(result) == "('1.0', '1.0')"
    assert 'Ignoring three: sys_platform == "win32" is false in the sandbox' in result.stdout
    assert "Requirement already satisfied: numpy" in result.stdout
    guest.execute("Path('more.txt').write_text('numpy==1.26.4\\npandas<3')")
    refused = guest.execute("%pip install -r reqs.txt").stderr
    assert "another version is needed: you (==1.26.4); pandas 3" in refused


def test_demands_that_are_never_met_come_to_an_end(tmp_path: Path, index: Make) -> None:
    for version in range(1, 4):
        index("less", f"{version}.0", needs=(f"less<{version}",))
    with (
        faulty(guests__python__packages__command__ROUNDS_MOST=1),
        create_sandbox(workspace=tmp_path / "app", pip=True) as sandbox,
    ):
        error = sandbox.execute("%pip install less").stderr
    assert "the requirements change with each fetched package" in error


def test_nothing_of_a_package_shadows_what_is_built_in(guest: BaseSandbox, index: Make) -> None:
    """A line with an exclamation mark installs, too."""
    files = dict.fromkeys(("json.py", "numpy/__init__.py", "re.py"), "raise SystemError('mine')")
    index("shadow", files=files)
    code = "!pip install shadow\nimport sys\nfor n in ('json', 're'): del sys.modules[n]\n"
    result = guest.execute(code + "import json, re, numpy; numpy.arange(2)")
    assert result.success
    assert "Successfully installed shadow-1.0" in result.stdout


def test_an_interrupt_ends_the_fetching_and_its_process(
    guest: BaseSandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    monkeypatch.setattr(pip, "tied_command", tied_command)
    before = set(psutil.Process().children())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{silent.getsockname()[1]}/")
        cell = guest.submit("%pip install one")
        with silent.accept()[0]:  # pip has connected
            guest.interrupt()
            error = error_of(cell.result(PATIENCE))
    assert error.startswith("KeyboardInterrupt:")
    assert set(psutil.Process().children()) <= before
    assert guest.execute("1").success


@pytest.mark.soak
def test_a_real_package_of_the_configured_index(sandbox: BaseSandbox) -> None:
    sandbox.offer_pip()
    result = sandbox.execute("%pip install 'humanize>=4'")
    if "can't be reached" in result.stderr or "finds no" in result.stderr:
        pytest.skip("no package index answers here")
    assert "Successfully installed humanize-" in result.stdout
    assert value(sandbox.execute("import humanize; humanize.intcomma(1234567)")) == "'1,234,567'"
    assert os.listdir(private_of(sandbox.workspace) / "packages") == ["site-packages"]  # noqa: PTH208
