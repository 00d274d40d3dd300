"""The few shell commands written in Python."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest
from wasm_kernel_agent.shell_commands import NoCommand, ShellCommands


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("1\n2\n3\n")


@pytest.mark.parametrize(
    ("line", "lines"),
    [
        ("ls", ["a.txt"]),
        ("cat a.txt", ["1", "2", "3"]),
        ("head -n 2 a.txt", ["1", "2"]),
        ("tail -1 *.txt", ["3"]),
        ("wc -l a.txt", ["3 a.txt"]),
        ("echo a 'b c'", ["a b c"]),
        ("python --version", [f"Python {platform.python_version()}"]),
        ("python3 -V", [f"Python {platform.python_version()}"]),
    ],
)
def test_a_known_command_prints(line: str, lines: list[str]) -> None:
    assert list(ShellCommands().output(line, split=True)) == lines


@pytest.mark.parametrize(
    "line", ["gcc x.c", "ls | wc", "cat a.txt > b.txt", "echo $HOME", "python x.py", "nvidia-smi"]
)
def test_anything_else_is_refused_in_words(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ShellCommands().run(line) == 127
    assert "no shell and no processes" in capsys.readouterr().err
    with pytest.raises(NoCommand):
        ShellCommands().output(line, split=True)


def test_files_can_be_moved_and_removed() -> None:
    commands = ShellCommands()
    for line in ("mkdir -p d/e", "cp a.txt d", "mv d/a.txt d/b.txt", "touch c", "rm c a.txt"):
        assert commands.run(line) == 0
    assert sorted(str(path) for path in Path().rglob("*")) == ["d", "d/b.txt", "d/e"]


def test_a_failure_is_a_status_and_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert ShellCommands().run("cat nothing") == 1
    assert capsys.readouterr().out == "cat: nothing: No such file or directory\n"
