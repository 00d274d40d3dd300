"""Capability: workspace operations. A test for each scenario, in the specification's order."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from tests.documented import Heard
from tests.specification.conftest import ID
from wasm_kernel import (
    SandboxLogger,
    delete_session_path,
    list_session_files,
    read_session_file,
    write_session_file,
)
from wasm_kernel.sessions.files import _validate_session_path

OUTSIDE = "../../../etc/passwd"
OPERATIONS: dict[str, Callable[[str, str], Any]] = {
    "read": read_session_file,
    "write": lambda session_id, path: write_session_file(session_id, path, b"evil"),
    "delete": delete_session_path,
}
each_operation = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)


@pytest.fixture(autouse=True)
def workspace(root: Path) -> Path:
    """The empty workspace of the session."""
    (root / ID).mkdir(parents=True)
    return root / ID


def put(workspace: Path, **files: bytes) -> None:
    """Writes files; in the names of arguments, `__` stands for a slash and `_` for a dot."""
    for name, content in files.items():
        path = workspace / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


# List session files


def test_list_all_files_in_session(workspace: Path) -> None:
    put(workspace, data_csv=b"", output_txt=b"", results__summary_json=b"")
    assert list_session_files(ID) == ["data.csv", "output.txt", "results/summary.json"]


def test_list_files_with_pattern_filter(workspace: Path) -> None:
    put(workspace, data_csv=b"", results_csv=b"", output_txt=b"")
    assert list_session_files(ID, pattern="*.csv") == ["data.csv", "results.csv"]
    assert list_session_files(ID, pattern="[dr]*.cs?") == ["data.csv", "results.csv"]
    assert list_session_files(ID, pattern="**/o*") == ["output.txt"]


def test_list_empty_session_workspace() -> None:
    assert list_session_files(ID) == []


def test_list_files_with_custom_workspace_root(tmp_path: Path) -> None:
    custom = tmp_path / "custom"
    (custom / ID).mkdir(parents=True)
    put(custom / ID, here_txt=b"")
    assert list_session_files(ID, workspace_root=custom) == ["here.txt"]


# Read session files


def test_read_text_file_from_session(workspace: Path) -> None:
    put(workspace, output_txt=b"Hello World")
    before = (workspace / "output.txt").stat()
    assert read_session_file(ID, "output.txt") == b"Hello World"
    after = (workspace / "output.txt").stat()
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)
    assert (workspace / "output.txt").read_bytes() == b"Hello World"


def test_read_binary_file_from_session(workspace: Path) -> None:
    data = bytes(range(256)) + b"\r\n\xff\xfe"
    put(workspace, data_bin=data)
    assert read_session_file(ID, "data.bin") == data


def test_read_nested_file(workspace: Path) -> None:
    put(workspace, results__analysis__report_csv=b"a,b")
    assert read_session_file(ID, "results/analysis/report.csv") == b"a,b"


def test_read_nonexistent_file() -> None:
    for session_id in (ID, "no-such-session"):
        with pytest.raises(FileNotFoundError, match=r"missing\.txt"):
            read_session_file(session_id, "missing.txt")


def test_reject_path_traversal_in_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    with pytest.raises(ValueError, match="escapes session workspace"):
        read_session_file(ID, OUTSIDE)
    with pytest.raises(ValueError, match="escapes session workspace"):
        read_session_file(ID, "../../secret")
    with pytest.raises(ValueError, match="escapes session workspace"):
        read_session_file("no-such-session", "../../etc/passwd")


# Write session files


def test_write_new_file_to_session(workspace: Path) -> None:
    write_session_file(ID, "config.json", b'{"setting": "value"}')
    assert (workspace / "config.json").read_bytes() == b'{"setting": "value"}'


def test_write_nested_file_with_directory_creation(workspace: Path) -> None:
    write_session_file(ID, "reports/summary.txt", b"Summary")
    assert (workspace / "reports" / "summary.txt").read_bytes() == b"Summary"


def test_overwrite_existing_file_with_overwrite_true(workspace: Path) -> None:
    put(workspace, data_txt=b"old content")
    write_session_file(ID, "data.txt", b"new content", overwrite=True)
    assert (workspace / "data.txt").read_bytes() == b"new content"


def test_reject_overwrite_with_overwrite_false(workspace: Path) -> None:
    put(workspace, data_txt=b"existing")
    with pytest.raises(FileExistsError):
        write_session_file(ID, "data.txt", b"new", overwrite=False)
    assert (workspace / "data.txt").read_bytes() == b"existing"


def test_reject_path_traversal_in_write(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    for path in ("../../../tmp/evil.txt", "../../tmp/evil.txt", "../evil.txt"):
        with pytest.raises(ValueError, match="escapes"):
            write_session_file(ID, path, b"data")
    for path in ("../../../tmp/evil.txt", "../evil.txt", "a/../../evil.txt"):
        with pytest.raises(ValueError, match="escapes"):
            write_session_file("no-such-session", path, b"data")
    assert not list(tmp_path.rglob("evil.txt"))
    assert not (tmp_path / "workspace" / "no-such-session").exists()


# Delete session paths


def test_delete_single_file(workspace: Path) -> None:
    put(workspace, temp_txt=b"")
    delete_session_path(ID, "temp.txt")
    assert not (workspace / "temp.txt").exists()
    with pytest.raises(FileNotFoundError):
        read_session_file(ID, "temp.txt")


def test_delete_empty_directory(workspace: Path) -> None:
    (workspace / "empty_folder").mkdir()
    delete_session_path(ID, "empty_folder/")
    assert not (workspace / "empty_folder").exists()


def test_delete_directory_with_recursive_true(workspace: Path) -> None:
    put(workspace, data__file1_txt=b"", data__file2_txt=b"")
    delete_session_path(ID, "data/", recursive=True)
    assert not (workspace / "data").exists()


def test_reject_non_recursive_delete_of_non_empty_directory(workspace: Path) -> None:
    put(workspace, data__file1_txt=b"1", data__file2_txt=b"2")
    with pytest.raises(OSError, match="data/"):
        delete_session_path(ID, "data/", recursive=False)
    assert list_session_files(ID) == ["data/file1.txt", "data/file2.txt"]


def test_reject_path_traversal_in_delete(tmp_path: Path) -> None:
    target = tmp_path / "tmp" / "target"
    target.mkdir(parents=True)
    for path in ("../../../tmp/target", "../../tmp/target"):
        with pytest.raises(ValueError, match="escapes"):
            delete_session_path(ID, path, recursive=True)
    assert target.is_dir()


def test_delete_nonexistent_path() -> None:
    for session_id in (ID, "no-such-session"):
        with pytest.raises(FileNotFoundError, match=r"nonexistent\.txt"):
            delete_session_path(session_id, "nonexistent.txt")


# Path validation and security


@each_operation
def test_validate_relative_paths(workspace: Path, operation: Callable[[str, str], Any]) -> None:
    put(workspace, here_txt=b"x")
    (workspace / "folder").mkdir()
    operation(ID, "folder/../here.txt")  # the path contains `..` but stays inside
    with pytest.raises(ValueError, match="escapes"):
        operation(ID, "folder/../../outside.txt")


@each_operation
def test_reject_absolute_paths(operation: Callable[[str, str], Any]) -> None:
    with pytest.raises(ValueError, match="Absolute paths are not allowed"):
        operation(ID, "/etc/passwd")


@each_operation
def test_resolve_symlinks_safely(
    workspace: Path, tmp_path: Path, operation: Callable[[str, str], Any]
) -> None:
    (tmp_path / "secret").write_text("secret")
    put(workspace, inside__file_txt=b"mine")
    for name, target in {
        "link.txt": "/etc/passwd",
        "up": "../../secret",
        "two": "up",
        "folder": "..",
    }.items():
        (workspace / name).symlink_to(target)
    for path in ("link.txt", "up", "two", f"folder/{ID}/../../secret"):
        with pytest.raises(ValueError, match="escapes"):
            operation(ID, path)
    assert (tmp_path / "secret").read_text() == "secret"
    (workspace / "good").symlink_to("inside")
    assert read_session_file(ID, "good/file.txt") == b"mine"


def test_normalize_path_separators(workspace: Path) -> None:
    put(workspace, data__subdir__file_txt=b"x")
    assert read_session_file(ID, "data\\subdir/file.txt") == b"x"
    write_session_file(ID, "data\\subdir/new.txt", b"y")
    assert (workspace / "data" / "subdir" / "new.txt").read_bytes() == b"y"
    assert list_session_files(ID, pattern="data\\subdir/*.txt") == [
        "data/subdir/file.txt", "data/subdir/new.txt"
    ]  # fmt: skip
    delete_session_path(ID, "data\\subdir/new.txt")
    assert not (workspace / "data" / "subdir" / "new.txt").exists()
    with pytest.raises(ValueError, match="escapes"):
        read_session_file(ID, "data\\..\\..\\outside")
    for absolute in ("C:\\Windows\\win.ini", "C:file", "\\\\server\\share", "\\etc\\passwd"):
        with pytest.raises(ValueError, match="Absolute"):
            read_session_file(ID, absolute)


# Logging


def test_log_file_list_operation(workspace: Path, heard: Heard) -> None:
    put(workspace, a_csv=b"", b_csv=b"", c_txt=b"")
    list_session_files(ID, pattern="*.csv", logger=heard.logger)
    assert heard.one("session.file.list") == {
        "session_id": ID, "pattern": "*.csv", "count": 2, "level": "info"
    }  # fmt: skip


def test_log_file_read_operation(workspace: Path, heard: Heard) -> None:
    put(workspace, data_txt=b"12345")
    read_session_file(ID, "data.txt", logger=heard.logger)
    assert heard.one("session.file.read") == {
        "session_id": ID, "path": "data.txt", "size_bytes": 5, "level": "info"
    }  # fmt: skip


def test_log_file_write_operation(heard: Heard) -> None:
    write_session_file(ID, "output.txt", "žluť", logger=heard.logger)
    assert heard.one("session.file.write") == {
        "session_id": ID, "path": "output.txt", "size_bytes": 6, "level": "info"
    }  # fmt: skip


def test_log_file_delete_operation(workspace: Path, heard: Heard) -> None:
    put(workspace, temp_txt=b"")
    delete_session_path(ID, "temp.txt", logger=heard.logger)
    assert heard.one("session.file.delete") == {
        "session_id": ID, "path": "temp.txt", "level": "info"
    }  # fmt: skip


# Error handling


def test_file_not_found_error(tmp_path: Path) -> None:
    for session_id in (ID, "no-such-session"):
        with pytest.raises(FileNotFoundError) as caught:
            read_session_file(session_id, "missing.txt")
        assert "missing.txt" in str(caught.value)
        assert str(tmp_path) not in str(caught.value)
        assert caught.value.filename == "missing.txt"


def test_permission_error(workspace: Path) -> None:
    put(workspace, readonly_txt=b"kept")
    (workspace / "readonly.txt").chmod(0o444)
    with pytest.raises(PermissionError, match="Permission denied"):
        write_session_file(ID, "readonly.txt", b"data", overwrite=True)
    assert (workspace / "readonly.txt").read_bytes() == b"kept"


class Untouched:
    """A root that fails the test if it is used at all."""

    def __fspath__(self) -> str:
        raise AssertionError("the file system was asked")


def test_invalid_session_id() -> None:
    root: Any = Untouched()
    for session_id in ("../invalid", "", ".", "a/b", "a\\b", "ä", "a" * 65, "x\0y"):
        for operation in (read_session_file, delete_session_path):
            with pytest.raises(ValueError, match="session id"):
                operation(session_id, "file.txt", workspace_root=root)
        with pytest.raises(ValueError, match="session id"):
            write_session_file(session_id, "file.txt", b"", workspace_root=root)
        with pytest.raises(ValueError, match="session id"):
            list_session_files(session_id, workspace_root=root)


# Type safety


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The type hints of a function; every parameter must have one."""
    hints = get_type_hints(function)
    assert set(hints) == {*inspect.signature(function).parameters, "return"}
    return hints


def test_list_session_files_type_hints() -> None:
    hints = hints_of(list_session_files)
    assert hints["return"] == list[str]
    assert hints["pattern"] == str | None
    assert hints["logger"] == SandboxLogger | None


def test_read_session_file_type_hints() -> None:
    assert hints_of(read_session_file)["return"] is bytes


def test_write_session_file_type_hints() -> None:
    hints = hints_of(write_session_file)
    assert hints["data"] == bytes | str
    assert hints["return"] is type(None)
    assert hints_of(delete_session_path)["return"] is type(None)


def test_path_validation_helper_type_hints() -> None:
    assert hints_of(_validate_session_path)["return"] is Path
    text = inspect.getdoc(_validate_session_path) or ""
    assert "Raises:" in text
    for name in ("SessionIdError", "SessionPathError", "FileNotFoundError"):
        assert name in text
