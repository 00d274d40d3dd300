"""The few shell commands of everyday notebooks, in Python. All others are refused in words."""

from __future__ import annotations

import contextlib
import glob
import io
import platform
import re
import shlex
import shutil
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path

from IPython.utils.text import LSString, SList

_NOT_FOUND = 127
_SYNTAX = set("|&;<>`$()")
_PIP = re.compile(r"(?:pip3?|(?:python3?|\{sys\.executable\}) +-m +pip)(?: +|$)")

_SCRIPTS = "To run a Python file in the notebook, use %run FILE.py."
_PACKAGES = "To bring in pure-Python packages, use %pip install NAME."
_NETWORK = "There is no network either: put the data into the workspace folder and read it there."
_ARCHIVES = "Use shutil.unpack_archive() and shutil.make_archive(), or zipfile and tarfile."
_INSTEAD = {
    **dict.fromkeys(("python", "python3", "ipython"), _SCRIPTS),
    **dict.fromkeys(("conda", "mamba", "uv", "apt", "apt-get", "sudo"), _PACKAGES),
    **dict.fromkeys(("curl", "wget", "git", "ssh", "scp", "kaggle"), _NETWORK),
    **dict.fromkeys(("unzip", "zip", "tar", "gzip", "gunzip"), _ARCHIVES),
    "nvidia-smi": "The sandbox has no graphics processor.",
    **dict.fromkeys(("npm", "node", "npx", "yarn"), "JavaScript has a kernel of its own."),
    "jupyter": "Jupyter itself runs outside of the sandbox.",
    "cd": "Use %cd FOLDER.",
    **dict.fromkeys(("env", "export", "printenv"), "Use %env, or %env NAME=VALUE."),
}


class NoCommand(OSError):
    """A command that does not exist in the sandbox; the text says what to use instead."""

    def __init__(self, command: str) -> None:
        known = ", ".join(sorted(_COMMANDS))
        instead = _INSTEAD.get(command.split(maxsplit=1)[0])
        advice = instead or (
            f"Of shell commands only these work, alone and without pipes: {known}. "
            "Use Python instead."
        )
        super().__init__(
            f"{command!r} can't run: the sandbox has no shell and no processes. {advice}"
        )


def words_for_pip(line: str) -> str | None:
    """Returns the words behind `pip` in a command line, however it is called; otherwise None.

    The words are not expanded, because the host compares them with the cell's text.
    """
    found = _PIP.match(line.strip())
    return None if found is None else line.strip()[found.end() :]


class ShellCommands:
    """Runs a command line if it is one of ours."""

    def run(self, line: str) -> int:
        """Runs `line`. Returns its exit status, 127 if it can't run."""
        try:
            function, words = _parse(line)
            function(words)
        except NoCommand as refusal:
            print(refusal, file=sys.stderr)
            return _NOT_FOUND
        except (OSError, ValueError) as problem:
            # as under ipykernel, whose commands write to a terminal: errors are output, too
            print(f"{line.split(maxsplit=1)[0]}: {_reason(problem)}")
            return 1
        return 0

    def output(self, line: str, *, split: bool) -> SList | LSString:
        """Returns the output of `line`.

        Raises:
            OSError: The command can't run, or failed.
        """
        function, words = _parse(line)
        with contextlib.redirect_stdout(io.StringIO()) as text:
            function(words)
        return SList(text.getvalue().splitlines()) if split else LSString(text.getvalue())


def _reason(problem: Exception) -> str:
    """The reason of a failure in the words that a command would use."""
    if isinstance(problem, OSError) and problem.strerror and problem.filename:
        return f"{problem.filename}: {problem.strerror}"
    return str(problem)


def _parse(line: str) -> tuple[Callable[[list[str]], None], list[str]]:
    words = shlex.split(line)
    if not words:
        return _nothing, []
    if words[0] in ("python", "python3") and words[1:] in (["--version"], ["-V"]):
        return _COMMANDS["echo"], ["Python", platform.python_version()]
    function = _COMMANDS.get(words[0])
    if function is None or any(set(word) & _SYNTAX for word in shlex.split(line, posix=False)):
        raise NoCommand(words[0] if function is None else line)
    return function, [match for word in words[1:] for match in _expand(word)]


def _expand(word: str) -> list[str]:
    if word.startswith("-"):
        return [word]
    return sorted(glob.glob(word)) or [word]  # noqa: PTH207 - Path.glob takes no absolute pattern


def _options(words: list[str], known: str) -> tuple[set[str], list[str]]:
    """The one-letter options of `words`, and the rest."""
    flags = {letter for word in words if word.startswith("-") for letter in word[1:]}
    unknown = flags - set(known)
    if unknown:
        raise ValueError(f"the option -{min(unknown)} is not known here")
    return flags, [word for word in words if not word.startswith("-")]


def _nothing(words: list[str]) -> None:
    """An empty line."""


def _ls(words: list[str]) -> None:
    flags, names = _options(words, "laA1hFotr")
    for name in names or ["."]:
        path = Path(name)
        entries = _entries(path, flags) if path.is_dir() else [path]
        for entry in entries:
            if entry.name.startswith(".") and not flags & {"a", "A"} and path.is_dir():
                continue
            shown = entry.name if path.is_dir() else name
            print(_long(entry, shown) if flags & {"l", "o"} else shown + "/" * entry.is_dir())


def _entries(folder: Path, flags: set[str]) -> list[Path]:
    """The entries of a folder by name; with `t` the newest first, with `r` in reverse order."""
    found = sorted(folder.iterdir())
    if "t" in flags:
        found.sort(key=lambda path: -path.lstat().st_mtime_ns)
    return found[::-1] if "r" in flags else found


def _long(path: Path, shown: str) -> str:
    status = path.lstat()
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(status.st_mtime))
    return f"{stat.filemode(status.st_mode)} {status.st_size:>12} {when} {shown}"


def _cat(words: list[str]) -> None:
    for name in words:
        print(Path(name).read_text(errors="replace"), end="")


def _count(words: list[str]) -> tuple[int, list[str]]:
    """The number of `-n N` or `-N`, and the file names."""
    number, names, rest = 10, [], iter(words)
    for word in rest:
        if word == "-n":
            number = int(next(rest, "10"))
        elif word.startswith("-"):
            number = int(word.removeprefix("-n").lstrip("-"))
        else:
            names.append(word)
    return number, names


def _head(words: list[str]) -> None:
    number, names = _count(words)
    for name in names:
        with Path(name).open(errors="replace") as lines:
            for _ in range(number):
                print(lines.readline(), end="")


def _tail(words: list[str]) -> None:
    number, names = _count(words)
    for name in names:
        lines = Path(name).read_text(errors="replace").splitlines(keepends=True)
        print("".join(lines[-number:] if number else []), end="")


def _wc(words: list[str]) -> None:
    flags, names = _options(words, "lwc")
    for name in names:
        data = Path(name).read_bytes()
        counts = {"l": data.count(b"\n"), "w": len(data.split()), "c": len(data)}
        print(*(counts[each] for each in "lwc" if each in (flags or "lwc")), name)


def _mkdir(words: list[str]) -> None:
    flags, names = _options(words, "p")
    for name in names:
        Path(name).mkdir(parents="p" in flags, exist_ok="p" in flags)


def _rmdir(words: list[str]) -> None:
    for name in _options(words, "")[1]:
        Path(name).rmdir()


def _rm(words: list[str]) -> None:
    flags, names = _options(words, "rRf")
    for name in names:
        path = Path(name)
        if path.is_dir() and not path.is_symlink() and flags & {"r", "R"}:
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok="f" in flags)


def _cp(words: list[str]) -> None:
    flags, names = _options(words, "rR")
    *sources, target = names
    for source in sources:
        if Path(source).is_dir() and flags:
            place = Path(target) / Path(source).name if Path(target).is_dir() else Path(target)
            shutil.copytree(source, place)
        else:
            shutil.copy(source, target)


def _touch(words: list[str]) -> None:
    for name in words:
        Path(name).touch()


def _mv(words: list[str]) -> None:
    *sources, target = _options(words, "f")[1]
    for source in sources:
        shutil.move(source, target)


_COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "cat": _cat,
    "cp": _cp,
    "echo": lambda words: print(*words),
    "head": _head,
    "ls": _ls,
    "mkdir": _mkdir,
    "mv": _mv,
    "pwd": lambda words: print(Path.cwd()),
    "rm": _rm,
    "rmdir": _rmdir,
    "tail": _tail,
    "touch": _touch,
    "wc": _wc,
}
