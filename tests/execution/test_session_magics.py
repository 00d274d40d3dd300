"""The magics of a session in a real guest: values, tables, errors, help and completion."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from wasm_kernel import BaseSandbox, ExecutionPolicy, SandboxResult, create_sandbox
from wasm_kernel.policy import Mount
from wasm_kernel.sessions.files import list_session_files

Run = Callable[..., SandboxResult]


@pytest.fixture
def run(module_sandbox: BaseSandbox) -> Iterator[Run]:
    """Runs a cell; empties the workspace after the test."""

    def one(code: str, *, fails: str = "") -> SandboxResult:
        result = module_sandbox.execute(code)
        assert (result.error.ename if result.error else "") == fails, result.error
        return result

    yield one
    one(
        "import os, shutil\n"
        "for entry in os.scandir('/app'):\n"
        "    shutil.rmtree(entry) if entry.is_dir(follow_symlinks=False) else os.unlink(entry)"
    )


def value(result: SandboxResult, kind: str = "text/plain") -> str:
    """The MIME bundle of the cell's last expression."""
    (shown,) = [output for output in result.outputs if output.kind == "result"]
    return str(shown.data[kind])


def printed(run: Run, code: str) -> Any:
    """The JSON that a cell prints."""
    return json.loads(run(f"import json\n{code}").stdout)


# -- files


def test_files_are_listed_as_a_value_and_as_a_table(run: Run) -> None:
    run("import os\nos.makedirs('a/b')\nfor p in ('x.csv', 'a/b/y.csv', 'z.txt'): open(p, 'w')")
    assert printed(run, "found = %session_files\nprint(json.dumps(found))") == [
        "a/b/y.csv", "x.csv", "z.txt"
    ]  # fmt: skip
    assert printed(run, "f = %session_files **/*.csv\nprint(json.dumps(f))") == [
        "a/b/y.csv", "x.csv"
    ]  # fmt: skip
    shown = run("%session_files *.csv")
    assert value(shown).split() == ["file", "x.csv"]
    assert "<td" in value(shown, "text/html")
    run("open('big', 'w').write('x' * 3000)")
    long = value(run("%session_files --long"))
    assert "2.9 KiB" in long
    assert long.splitlines()[0].split() == ["file", "size", "modified"]


def test_names_are_shown_and_never_acted_on(run: Run) -> None:
    run("open('<script>alert(1)<', 'w')\nopen('\\x1b[2Jx', 'w')\nopen('a\\nb', 'w')")
    shown = run("%session_files")
    assert "<script>" not in value(shown, "text/html")
    assert "\x1b" not in value(shown)
    assert "a\\nb" in value(shown)


def test_a_listing_of_thousands_is_cut_in_the_page(run: Run, module_sandbox: BaseSandbox) -> None:
    many = [module_sandbox.workspace / f"f{i}" for i in range(1003)]
    for path in many:
        path.touch()
    assert value(run("%session_files")).endswith("... and 3 more")
    assert printed(run, "f = %session_files\nprint(len(f))") == 1003
    for path in many:
        path.unlink()


def test_the_same_files_as_from_outside(run: Run, module_sandbox: BaseSandbox) -> None:
    run(
        "import os\nos.makedirs('d/e')\nfor p in ('a', 'd/b', 'd/e/c', '.dot'): open(p, 'w')\n"
        "os.symlink('d/b', 'link')\nos.symlink('d', 'folder')\nos.symlink('nothing', 'dangling')\n"
        "os.symlink('../..', 'out')"
    )
    root = module_sandbox.workspace
    for pattern in (None, "*", "**", "**/*", "d/*", "d/**", "?", "[ab]", ".*", "*/e/*", "./d\\b"):
        inside = printed(run, f"f = %session_files {pattern or ''}\nprint(json.dumps(f))")
        link = root.parent / "as-session"
        assert inside == from_outside(root, link, pattern), pattern


def from_outside(workspace: Path, link: Path, pattern: str | None) -> list[str]:
    """The files that the Python API lists for a session whose folder is named by its id."""
    workspace.rename(link)
    try:
        return list_session_files(link.name, link.parent, pattern)
    finally:
        link.rename(workspace)


def test_a_file_is_written_read_and_deleted(run: Run, module_sandbox: BaseSandbox) -> None:
    written = run("%%session_write reports/summary.md\nAll is well.\nžluť")
    assert "Wrote 20 bytes to reports/summary.md" in written.stdout
    assert written.files_created == ("reports/summary.md",)
    file = module_sandbox.workspace / "reports" / "summary.md"
    assert file.read_text() == "All is well.\nžluť\n"
    assert value(run("%session_read reports\\summary.md")) == "All is well.\nžluť\n"
    assert run("x = %session_read reports/summary.md\nprint(x.upper())").stdout.startswith("ALL IS")
    assert run("%session_delete reports/summary.md").files_deleted == ("reports/summary.md",)
    assert not file.exists()


def test_writing_may_leave_a_file_and_reading_gives_text_or_bytes(run: Run) -> None:
    run("%%session_write a\nold")
    run("%%session_write --no-overwrite a\nnew", fails="UsageError")
    assert value(run("%session_read a")) == "old\n"
    assert value(run("%session_read a --bytes")) == "b'old\\n'"
    run("name = 'my file'\nopen('my file.bin', 'wb').write(b'\\xff\\x00')")
    assert value(run("%session_read '{name}.bin'")) == "b'\\xff\\x00'"


def test_a_folder_goes_with_everything_only_when_asked_and_a_link_alone(run: Run) -> None:
    run("import os\nos.makedirs('d/e')\nopen('d/e/f', 'w')\nos.mkdir('empty')")
    run("os.symlink('d', 'way')\n%session_delete -r way")
    assert "--recursive" in run("%session_delete d", fails="UsageError").stderr
    run("%session_delete -r d")
    run("%session_delete empty/")
    assert value(run("%session_files")) == "no files"


PATHS_OUT = ["../x", "C:\\x", "up/x"]


@pytest.mark.parametrize("path", PATHS_OUT)
def test_a_path_out_is_refused(run: Run, path: str) -> None:
    run("import os\nos.symlink('..', 'up')")
    for line in (
        f"%session_read {path}",
        f"%session_delete --recursive {path}",
        f"%%session_write {path}\nx",
    ):
        assert "session workspace" in run(line, fails="UsageError").stderr


def test_a_missing_file_is_told_in_one_line_with_the_name_that_was_asked_for(run: Run) -> None:
    told = "UsageError: There is no file 'missing.txt' in the session. %session_files lists the"
    for line in ("%session_read missing.txt", "x = %session_read missing.txt"):
        result = run(line, fails="UsageError")
        assert result.stderr == f"{told} files.\n"
        assert result.error is not None and not result.error.traceback


@pytest.mark.parametrize(
    "line",
    ["%session_read", "%session_read --what a", "%session_files a b", "%session_read 'a"],
)  # fmt: skip
def test_a_wrong_use_is_told_in_one_line(run: Run, line: str) -> None:
    assert len(run(line, fails="UsageError").stderr.splitlines()) == 1


# -- facts


def test_the_sessions_facts_are_a_dict_and_a_table(run: Run, module_sandbox: BaseSandbox) -> None:
    info = printed(run, "i = %session_info\nprint(json.dumps(i))")
    assert info["runtime"] == "python"
    assert info["memory_bytes"] > 50 << 20
    assert info["history_is_saved"] is True
    shown = run("%session_info")
    assert "2.0 GiB" in value(shown)
    assert "/app" in value(shown)
    assert "%session_path" not in value(shown)  # only kernels have it
    assert "<table>" in value(shown, "text/html")
    for magic in ("session_info", "policy", "fuel"):
        code = f"import json\nx = get_ipython().run_line_magic('{magic}', '')\nprint(dict(x))"
        assert str(module_sandbox.workspace.parent) not in run(code).stdout


def test_the_policy_tells_what_each_limit_means_and_fuel_how_to_count_it(run: Run) -> None:
    policy = printed(run, "p = %policy\nprint(json.dumps(p))")
    assert policy["memory_bytes"] == ExecutionPolicy().memory_bytes
    assert policy["fuel_budget"] is None
    assert "Wall-clock seconds" in value(run("%policy"), "text/html")
    assert run("p = %policy\nprint(p.meanings['env'])").stdout.startswith("Environment")
    assert "WasmKernel.fuel_budget" in value(run("%fuel"))
    assert printed(run, "f = %fuel\nprint(json.dumps(f))")["metered"] is False
    assert run("%limit seconds=9").stderr == ""
    assert "counts no fuel: fuel= limits nothing" in run("%%limit fuel=5\n1").stderr


def test_mounts_are_told_by_their_place_in_the_guest(tmp_path: Path) -> None:
    (tmp_path / "secret-place").mkdir()
    policy = ExecutionPolicy(mounts=(Mount(tmp_path / "secret-place", "/data"),))
    with create_sandbox(workspace=tmp_path / "app", policy=policy) as sandbox:
        shown = value(sandbox.execute("%policy"))
    assert "/data (read-only)" in shown
    assert "secret-place" not in shown


def test_fuel_is_told_so_far_left_and_for_the_last_cell(warm_metered: None, tmp_path: Path) -> None:
    policy = ExecutionPolicy(fuel_budget=10**11)
    with create_sandbox(workspace=tmp_path / "app", policy=policy) as sandbox:
        last = sandbox.execute("sum(range(100_000))").fuel_consumed
        result = sandbox.execute("import json\nf = %fuel\nprint(json.dumps(f))")
        told = json.loads(result.stdout)
        lowered = sandbox.execute("%limit fuel=1e9\nf = %fuel\nprint(json.dumps(f))")
        shown = value(sandbox.execute("%fuel"))
    assert told["last"] == last
    assert 0 < told["consumed"] < (result.fuel_consumed or 0)
    assert told["consumed"] + told["left"] == told["budget"] == 10**11
    assert json.loads(lowered.stdout)["left"] <= 10**9
    assert "of its 100,000,000,000 so far" in shown


@pytest.mark.parametrize("line", ["%session_path", "%prune_sessions --older-than 1h --apply"])
def test_magics_that_need_a_kernel_are_refused_elsewhere(run: Run, line: str) -> None:
    text = run(line, fails="UsageError").stderr
    assert "works in notebooks and consoles. Here, the program that runs this session" in text


# -- help and completion


def test_every_magic_has_help_that_shows_its_use(run: Run) -> None:
    names = "session_files session_read session_delete session_info session_path policy fuel"
    for magic in ("%%session_write", "%prune_sessions", *(f"%{name}" for name in names.split())):
        (page,) = run(f"{magic}?").reply["payload"]
        assert magic in page["data"]["text/plain"]


COMPLETED = {
    "%session_read da": ["data/a.csv", "data/b.csv"],
    "x = %session_read data/b": ["data/b.csv"],
    "%session_delete da": ["data/", "data/a.csv", "data/b.csv"],
    "%%session_write data/a": ["data/a.csv"],
    "%session_read --": ["--bytes"],
    "%session_files --": ["--long"],
    "%session_delete --r": ["--recursive"],
    "%prune_sessions --": ["--apply", "--dry-run", "--older-than"],
    "%fork --": ["--deterministic"],
    "%undo --": ["--files"],
    "%restore --": ["--files"],
    "%session_fi": ["%session_files"],
    "%%session_w": ["%%session_write"],
}


def test_paths_options_and_checkpoints_are_completed(run: Run, module_sandbox: BaseSandbox) -> None:
    run("import os\nos.mkdir('data')\nfor n in 'ab': open(f'data/{n}.csv', 'w')")
    assert {typed: completed(module_sandbox, typed) for typed in COMPLETED} == COMPLETED
    run("x = 1")
    run("%checkpoint cleaned")
    assert "cleaned" in completed(module_sandbox, "%restore cle")
    assert "cleaned" in completed(module_sandbox, "%restore ")
    run("x = 2")
    run("%restore cleaned")
    assert printed(run, "print(x)") == 1


def completed(sandbox: BaseSandbox, typed: str) -> list[str]:
    request = {"op": "complete", "code": typed, "cursor_pos": len(typed)}
    matches: list[str] = sandbox.query(request).result()["matches"]
    return matches
