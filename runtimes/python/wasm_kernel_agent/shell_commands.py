"""Scripts of a shell: a guest beside this interpreter runs them, and asks for Python's programs."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from IPython.utils.text import LSString, SList

_MARK = b"\1"  # no frame begins with it
NOT_FOUND = 127
"""The exit status of a command that does not exist."""
_PIP = re.compile(r"(?:pip3?|(?:python3?|\{sys\.executable\}) +-m +pip)(?: +|$)")
_PIPES = {"|", ">", ">>", "&&", "||", ";"}
UNKNOWN = re.compile(r"^bash: (\S+): (?:command not found$|Parse error)", re.MULTILINE)
"""The line on a command that a script did not find."""
_PYTHON = "A file of Python runs by python FILE: the shell reads any file as a script of its own."

_PACKAGES = "To bring in pure-Python packages, use %pip install NAME."
_NETWORK = "Bring the data in as a file. Only Python reaches hosts, and only allowed ones."
_NO_PROGRAM = "No program of the machine runs in the sandbox."
_INSTEAD = {
    **dict.fromkeys(("conda", "mamba", "uv", "apt", "apt-get", "brew", "sudo"), _PACKAGES),
    **dict.fromkeys(("curl", "wget", "git", "ssh", "scp", "kaggle"), _NETWORK),
    **dict.fromkeys(("xxd", "hexdump"), "Use od -A x -t x1z FILE."),
    **dict.fromkeys(
        ("perl", "ruby", "patch", "iconv", "numfmt", "factor"), "Use sed, awk or Python."
    ),
    **dict.fromkeys(
        ("ps", "top", "kill", "pkill", "pgrep", "jobs"), "No process runs beside a script."
    ),
    **dict.fromkeys(("make", "gcc", "cc", "docker"), _NO_PROGRAM),
    **{
        name: f"After %pip install {name} on a line of its own, use python -m {name}."
        for name in ("pytest", "black", "flake8", "pylint", "isort")
    },
    **dict.fromkeys(("vim", "vi", "nano", "emacs", "code"), "Write files with %%writefile."),
    "ipython": "The notebook is IPython itself.",
    "sqlite3": "Use Python's module sqlite3.",
    "rsync": "Use cp -r.",
    "parallel": "Use xargs.",
    "dos2unix": r"Use sed -i 's/\r$//' FILE.",
    "envsubst": "Use a here-document.",
    "zgrep": "Use zcat FILE | grep.",
    "nvidia-smi": "The sandbox has no graphics processor.",
    **dict.fromkeys(("npm", "node", "npx", "yarn"), "JavaScript has a kernel of its own."),
    "jupyter": "Jupyter itself runs outside of the sandbox.",
}
_waiting: list[str] = []  # scripts that wait for programs, each asked for by the one before
running: list[Any] = []
"""The `ShellProcess` of each program of a script that has not ended, the outermost first."""


@dataclass(frozen=True)
class Finished:
    """The end of a script: its output, as bytes and as text, and its exit status."""

    output: bytes
    errors: bytes
    status: int

    @property
    def stdout(self) -> str:
        """The output as text."""
        return self.output.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """The errors as text."""
        return self.errors.decode("utf-8", "replace")


def end_programs() -> None:
    """Gives a cell its own streams, folder and modules back if interrupts cut programs short."""
    _waiting.clear()
    if running:
        outermost = running[0]
        running.clear()  # first: a failure is told once, not at the end of all later cells
        outermost.end()


def words_for_pip(line: str) -> str | None:
    """Returns the words behind `pip` in a command line, however it is called; otherwise None.

    The words are not expanded, because the host compares them with the cell's text. A list that
    goes through a pipe is for the shell.
    """
    found = _PIP.match(line.strip())
    words = None if found is None else line.strip()[found.end() :]
    if words and _PIPES & set(words.split()) and not words.startswith(("install", "uninstall")):
        return None
    return words


def run_script(
    script: str,
    stdin: bytes = b"",
    *,
    folder: str | None = None,
    env: Mapping[str, str] | None = None,
) -> Finished:
    """Runs a script of bash to its end, in a folder and an environment, by default this one's.

    Raises:
        KeyboardInterrupt: The cell was interrupted.
    """
    depth = len(_waiting)
    said = _ask(
        op="script",
        depth=depth,
        script=script,
        cwd=os.path.abspath(folder or "."),  # noqa: PTH100 - a link's name stays
        env={
            os.fsdecode(n): os.fsdecode(v) for n, v in (os.environ if env is None else env).items()
        },
        stdin=stdin.decode("latin1"),
    )
    while said["op"] == "program":
        from wasm_kernel_agent.shell_programs import run_program

        _waiting.append(script)
        try:
            result = run_program(said, running)
        finally:
            del _waiting[depth:]
        said = _ask(op="result", depth=depth + 1, **result)
    output, errors = (said[name].encode("latin1") for name in ("stdout", "stderr"))
    return Finished(output, errors + _advice(said).encode(), said["exitCode"])


def _ask(**request: Any) -> dict[str, Any]:
    import _host

    call: Any = _host.call
    data = json.dumps(request, ensure_ascii=False).encode("utf-8", "replace")
    try:
        said: dict[str, Any] = json.loads(call(_MARK + data))
    except OSError:
        raise OSError(errno.ENOMEM, "there is no room for the output of a script") from None
    return said


def _advice(said: Mapping[str, Any]) -> str:
    """Returns sentences on what to use instead of the commands that a script did not find."""
    names = dict.fromkeys(UNKNOWN.findall(said["stderr"]))
    found = ((name, _PYTHON if name.endswith(".py") else _INSTEAD.get(name)) for name in names)
    return "".join(f"{name}: {words}\n" for name, words in found if words)


def missing_command(name: str) -> FileNotFoundError:
    """Returns the error of `subprocess` about a command, or a script's path, that is not there."""
    error = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    if "/" not in name or name.startswith("/usr/"):
        error.add_note(f"[wasm-kernel] {_INSTEAD.get(name, _NO_PROGRAM)}")
    return error


def run_and_print(script: str) -> int:
    """Runs a script and prints its output; returns its exit status."""
    finished = run_script(script)
    sys.stdout.write(finished.stdout)
    sys.stderr.write(finished.stderr)
    return finished.status


def output_of(script: str, *, split: bool) -> SList | LSString:
    """Returns a script's output with its errors, as lines or as one text; as IPython does."""
    finished = run_script(script)
    text = finished.stdout + finished.stderr
    return SList(text.splitlines()) if split else LSString(text)


def command_of(args: Any, *, shell: bool) -> str:
    """Returns the line of a shell that does what `subprocess` is asked to do."""
    if isinstance(args, str | bytes | os.PathLike):
        text = os.fsdecode(args)
        return text if shell else shlex.quote(text)
    words = [os.fsdecode(word) for word in args]
    if shell:
        return words[0]
    return shlex.join(words)
